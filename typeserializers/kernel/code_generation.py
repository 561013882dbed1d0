"""Emitters: turn a tree of serializers into a pair of plain functions.

As in attrs and dataclasses, source code is generated and compiled once. A serializer implements two hooks, `emit_write`
and `emit_read`, which write to the emitters of this file.

Writing collects *parts*: values of fixed width, and expressions of type ``bytes``. Adjacent fixed parts share one
``struct.Struct``, and all parts are concatenated at the end. Reading collects a run of fixed-width fields and flushes
it as one ``unpack_from`` before any field of variable width. Statements that a hook needs (a branch, a loop) go to the
emitter's lines. Parts refer only to variables, so they may be evaluated at the end.

Invariants: every name is unique within a function. An expression passed to `emit_write` may be evaluated only once,
unless `once` made it a variable. The position variable is exact after `flush`.
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

GENERATED_FILES = "<statebackend generated"
"""The beginning of the file names of generated code."""

_SINGLE_BYTES = {"B": "", "?": " != 0"}
"""Formats of one unsigned byte, and the expression of their value."""


class GeneratedFunction:
    """The namespace of a function under construction, shared by its emitters."""

    def __init__(self, name: str, parameters: str) -> None:
        self.name = name
        self.parameters = parameters
        self._numbers = itertools.count(1)
        self._namespace: dict[str, Any] = {}
        self._bound: dict[tuple[str, int], str] = {}

    def fresh(self, hint: str) -> str:
        """Returns an unused variable name."""
        return f"{hint}_{next(self._numbers)}"

    def bind(self, hint: str, value: Any) -> str:
        """Returns a name for an external object; the same object with the same hint gets the same name."""
        known = self._bound.get((hint, id(value)))
        if known is not None:
            return known
        name = self.fresh("g_" + hint)
        self._namespace[name] = value
        self._bound[hint, id(value)] = name
        return name

    def bind_struct(self, format_characters: str, method: str) -> str:
        """Returns a name for a method of the big-endian ``struct.Struct`` of that format."""
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
"""Python's messages for source that is nested too deep; twenty blocks are the first limit."""


def is_nested_too_deep(error: Exception) -> bool:
    """Whether a type is nested too deep for one function; any other error in generated code is a bug."""
    if isinstance(error, SyntaxError):
        return error.msg.startswith(_TOO_DEEP)
    return isinstance(error, RecursionError)


MAX_COMPILED_SOURCES = 4096
"""The number of generated functions whose code a process caches; then the cache is cleared."""

_compiled: dict[str, CodeType] = {}


def _code_of(name: str, source: str) -> CodeType:
    """Compiles a source once, and registers it for tracebacks: a worker creates the same functions in every epoch."""
    code = _compiled.get(source)
    if code is None:
        if len(_compiled) >= MAX_COMPILED_SOURCES:
            for former in list(_compiled.values()):
                linecache.cache.pop(former.co_filename, None)
            _compiled.clear()
        file_name = f"{GENERATED_FILES} {name} {next(_serial_number)}>"
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
    """Indents the lines by one level; ``pass`` if there are none."""
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
        """Returns a variable with the expression, for hooks that use it more than once."""
        if expression.isidentifier():
            return expression
        variable = self.function.fresh("v")
        self.line(f"{variable} = {expression}")
        return variable

    def child(self) -> WriteEmitter:
        """An emitter for a branch or loop body of the same function."""
        return WriteEmitter(self.function)

    def branch(self) -> WriteEmitter:
        """Returns an emitter for one of several branches; each continues the parts collected so far."""
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
        """Returns the bytes of all parts as one expression."""
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
        # Concatenation copies all earlier parts once per term; beyond a few terms a join is cheaper.
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
        """Emits the pending run of fixed-width fields, so that ``pos`` is after them."""
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
        """Adds a statement after everything read so far."""
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
