"""Emitters: how a tree of serializers becomes one pair of plain functions.

As attrs and dataclasses do for ``__init__``, source code is generated once, compiled, and run from then on. A
serializer contributes through two hooks, `emit_write` and `emit_read`; this module gives them something to write to.

Writing collects *parts*: values of fixed width, and expressions that are ``bytes``. Adjacent fixed parts share one
``struct.Struct``; at the end everything is one concatenation. Reading collects a pending run of fixed-width fields,
which is flushed as one ``unpack_from`` before anything of variable width is read. Statements that a hook needs (a
branch, a loop) go to the emitter's lines; parts only ever refer to variables, so they may be evaluated at the end.

Invariants: every name is unique within a function; an expression handed to `emit_write` may be evaluated once only,
unless it was made a variable by `once`; the position variable is exact after `flush`.
"""

from __future__ import annotations

import itertools
import linecache
import struct
from collections.abc import Callable
from types import CodeType
from typing import Any

_serial_number = itertools.count(1)

INDENT = "    "

_SINGLE_BYTES = {"B": "", "?": " != 0"}
"""Formats of one unsigned byte, with what makes the value of it."""


class GeneratedFunction:
    """The name space of one function under construction, shared by its emitters."""

    def __init__(self, name: str, parameters: str) -> None:
        self.name = name
        self.parameters = parameters
        self._numbers = itertools.count(1)
        self._namespace: dict[str, Any] = {}
        self._bound: dict[tuple[str, int], str] = {}

    def fresh(self, hint: str) -> str:
        """A variable name that nothing else uses."""
        return f"{hint}_{next(self._numbers)}"

    def bind(self, hint: str, value: Any) -> str:
        """A name for an object from outside; the same object with the same hint gets the same name."""
        known = self._bound.get((hint, id(value)))
        if known is not None:
            return known
        name = self.fresh("g_" + hint)
        self._namespace[name] = value
        self._bound[hint, id(value)] = name
        return name

    def bind_struct(self, format_characters: str, method: str) -> str:
        """A name for a method of the big-endian ``struct.Struct`` of that format."""
        return self.bind(f"{method}_{format_characters.replace('?', 'b1')}", _struct_method(format_characters, method))

    def compile(self, lines: list[str]) -> Callable[..., Any]:
        """Compiles the body; the source stays visible in tracebacks and debuggers."""
        body = "\n".join(INDENT + line for line in lines)
        source = f"def {self.name}({self.parameters}):\n{body}\n"
        exec(_code_of(self.name, source), self._namespace)
        function: Callable[..., Any] = self._namespace[self.name]
        function.__generated_source__ = source  # type: ignore[attr-defined]
        return function


_TOO_DEEP = ("too many statically nested blocks", "too many levels of indentation", "too many nested parentheses")
"""What Python says of source that is nested deeper than it compiles; twenty blocks are the first limit."""


def is_nested_too_deep(error: Exception) -> bool:
    """Whether a type is nested deeper than one function can be; any other error in generated code is a fault."""
    if isinstance(error, SyntaxError):
        return error.msg.startswith(_TOO_DEEP)
    return isinstance(error, RecursionError)


MAX_COMPILED_SOURCES = 4096
"""Distinct generated functions whose code a process keeps; then it begins again."""

_compiled: dict[str, CodeType] = {}


def _code_of(name: str, source: str) -> CodeType:
    """The code of a source. A worker makes the same functions again in every epoch: each is compiled, and noted for
    tracebacks, once.
    """
    code = _compiled.get(source)
    if code is None:
        if len(_compiled) >= MAX_COMPILED_SOURCES:
            for former in list(_compiled.values()):
                linecache.cache.pop(former.co_filename, None)
            _compiled.clear()
        file_name = f"<statebackend generated {name} {next(_serial_number)}>"
        code = compile(source, file_name, "exec")
        linecache.cache[file_name] = (len(source), None, source.splitlines(True), file_name)
        _compiled[source] = code
    return code


_struct_methods: dict[tuple[str, str], Any] = {}


def _struct_method(format_characters: str, method: str) -> Any:
    key = (format_characters, method)
    if key not in _struct_methods:
        _struct_methods[key] = getattr(struct.Struct(">" + format_characters), method)
    return _struct_methods[key]


def indented(lines: list[str]) -> list[str]:
    """The lines one level deeper, or ``pass`` when there are none."""
    return [INDENT + line for line in lines] or [INDENT + "pass"]


class WriteEmitter:
    """Collects the parts and statements that write one value."""

    def __init__(self, function: GeneratedFunction) -> None:
        self.function = function
        self.lines: list[str] = []
        self._parts: list[tuple[str, str]] = []

    def fixed(self, format_character: str, expression: str) -> None:
        """Adds a field of fixed width, given by its ``struct`` format character."""
        self._parts.append((format_character, expression))

    def append(self, expression: str) -> None:
        """Adds an expression that is ``bytes``."""
        self._parts.append(("", expression))

    def line(self, text: str) -> None:
        """Adds a statement."""
        self.lines.append(text)

    def once(self, expression: str) -> str:
        """A variable holding the expression, for hooks that must mention it more than once."""
        if expression.isidentifier():
            return expression
        variable = self.function.fresh("v")
        self.line(f"{variable} = {expression}")
        return variable

    def child(self) -> WriteEmitter:
        """An emitter for a branch or loop body of the same function."""
        return WriteEmitter(self.function)

    def branch(self) -> WriteEmitter:
        """An emitter for one of several branches, each of which continues the parts collected so far."""
        branch = WriteEmitter(self.function)
        branch._parts = list(self._parts)
        return branch

    def fixed_format(self) -> str | None:
        """The format characters if there are only fixed-width parts and no statements, else None."""
        if self.lines or any(not format_character for format_character, _ in self._parts):
            return None
        return "".join(format_character for format_character, _ in self._parts)

    def fixed_arguments(self) -> list[str]:
        """The expressions of the fixed-width parts."""
        return [expression for format_character, expression in self._parts if format_character]

    def expression(self) -> str:
        """The bytes of all parts as one expression."""
        terms: list[str] = []
        for is_fixed, run in itertools.groupby(self._parts, key=lambda part: bool(part[0])):
            parts = list(run)
            if is_fixed:
                pack = self.function.bind_struct("".join(part[0] for part in parts), "pack")
                terms.append(f"{pack}({', '.join(part[1] for part in parts)})")
            else:
                terms += [part[1] for part in parts]
        if not terms:
            return "b''"
        # Concatenation copies what came before once per term; beyond a few terms a join is cheaper.
        return " + ".join(terms) if len(terms) <= 6 else f"b''.join(({', '.join(terms)}))"


class ReadEmitter:
    """Collects the statements that read one value; ``data`` and ``pos`` are the parameters of the function."""

    def __init__(self, function: GeneratedFunction) -> None:
        self.function = function
        self.lines: list[str] = []
        self._run: list[tuple[str, str]] = []

    def fixed(self, format_character: str) -> str:
        """Reads a field of fixed width; the returned variable is set after the next `flush`."""
        variable = self.function.fresh("v")
        self._run.append((format_character, variable))
        return variable

    def flush(self) -> None:
        """Emits the pending run of fixed-width fields, so that ``pos`` stands behind them."""
        if not self._run:
            return
        characters = "".join(format_character for format_character, _ in self._run)
        if characters in _SINGLE_BYTES:
            # Indexing is cheaper than unpacking; beyond the end both raise.
            self.lines.append(f"{self._run[0][1]} = data[pos]{_SINGLE_BYTES[characters]}; pos += 1")
            self._run.clear()
            return
        targets = ", ".join(variable for _, variable in self._run) + ("," if len(self._run) == 1 else "")
        unpack = self.function.bind_struct(characters, "unpack_from")
        self._run.clear()
        self.lines.append(f"{targets} = {unpack}(data, pos)" if targets else "")
        self.lines.append(f"pos += {struct.calcsize('>' + characters)}")

    def line(self, text: str) -> None:
        """Adds a statement behind everything read so far."""
        self.flush()
        self.lines.append(text)

    def block(self, header: str, body: ReadEmitter) -> None:
        """Adds a compound statement whose body was collected by a child."""
        body.flush()
        self.line(header)
        self.lines += indented(body.lines)

    def child(self) -> ReadEmitter:
        """An emitter for a branch or loop body of the same function."""
        return ReadEmitter(self.function)

    def pending_format(self) -> str | None:
        """The format characters if only fixed-width fields were read so far, else None."""
        if self.lines:
            return None
        return "".join(format_character for format_character, _ in self._run)

    def pending_variables(self) -> list[str]:
        """The variables of the pending run."""
        return [variable for _, variable in self._run]
