"""From type hints to serializers, by rules.

`InferenceRules` holds rules and is passed to the code that infers. `DEFAULT_RULES` has the rules of this library. It is
one object per process; a program may add rules (`register_inference`) only while its modules are imported, because
every process must infer the same. Custom rules extend it:

    rules = InferenceRules(DEFAULT_RULES)
    rules.register(infer_money)
    serializer = AttrsSerializer(Account, rules=rules)

A rule takes a hint and returns a serializer, or None if it does not handle the hint; the newest rule is asked first.
Rules for nested types call back through the `Inference` that they receive, which keeps the path for error messages. A
hint without a rule is an error that names the path in the type and a replacement.
"""

from __future__ import annotations

import collections
import collections.abc
import re
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

from snapshots.envelope import MAX_NESTING
from snapshots.errors import StateFormatError
from typeserializers.kernel.record_families import RecordFamily
from typeserializers.kernel.type_serializer import TypeSerializer

_BARE: Final[dict[Any, str]] = {
    list: "list[int]",
    dict: "dict[str, int]",
    set: "set[str]",
    frozenset: "frozenset[str]",
    tuple: "tuple[int, str]",
}

_CONCRETE: Final[dict[Any, str]] = {
    collections.abc.Sequence: "list[...]",
    collections.abc.MutableSequence: "list[...]",
    collections.abc.Iterable: "list[...]",
    collections.abc.Collection: "list[...]",
    collections.deque: "list[...]",
    collections.abc.Mapping: "dict[..., ...]",
    collections.abc.MutableMapping: "dict[..., ...]",
    collections.defaultdict: "dict[..., ...]",
    collections.OrderedDict: "dict[..., ...]",
    collections.Counter: "dict[..., int]",
    collections.abc.Set: "set[...] or frozenset[...]",
    collections.abc.MutableSet: "set[...]",
    bytearray: "bytes",
    memoryview: "bytes",
}


_MODULES: Final = re.compile(r"""(?P<text>'[^']*'|"[^"]*")|[\w.<>]*<locals>\.|\b(?:[a-z_]\w*\.)+""")
"""The modules and functions in the text of a type hint, and texts, which contain none."""


def described(hint: Any) -> str:
    """Returns the hint as it is written in a program that imports its classes."""
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return hint.__qualname__.rpartition("<locals>.")[2]
    if isinstance(hint, typing.TypeVar):
        return hint.__name__
    # Texts of literals stay as they are.
    return _MODULES.sub(lambda found: found["text"] or "", str(hint))


def advice_for(hint: Any, family_of: Callable[[Any], object]) -> str:
    """Returns a sentence with a replacement for the hint, after a space; empty if there is none.

    ``family_of`` returns the family of a record class.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    outer = origin or hint
    try:
        bare, concrete = _BARE.get(outer), _CONCRETE.get(outer)
    except TypeError:
        return ""
    if outer is tuple and Ellipsis in arguments:
        element = described(arguments[0])
        return f" A tuple of any length has no layout here: write list[{element}], or name each of its elements."
    if bare is not None and not arguments:
        return f" It does not say of what: write for example {bare}."
    if concrete is not None:
        return f" Values come back as one type: write {concrete}."
    if isinstance(hint, typing.TypeVar):
        return " It is an unbound type variable: pass field_serializers, or bind it in a subclass."
    if origin is not None and arguments and family_of(origin) is not None:
        return (
            f" A generic class is stored under its own name, whatever its parameters: write a subclass of "
            f"{described(hint)}, and use that."
        )
    if typing.is_typeddict(hint):
        return " A TypedDict is a dict that forgets its type: write an attrs class, a dataclass or a NamedTuple."
    if hint is Any or hint is object:
        return " It could be anything: write the types that it may have, as in int | str, or choose a PickleSerializer."
    return ""


class UnknownTypeError(StateFormatError, TypeError):
    """No serializer can be inferred for a type hint."""


def checked_former_names(names: Any, where: str) -> tuple[str, ...]:
    """Return declared former names. Raises `UnknownTypeError` for a text, because its letters would count as names."""
    if isinstance(names, str):
        raise UnknownTypeError(f"{where}: former names are a tuple of names; write ({names!r},)")
    return tuple(names)


Rule = Callable[[Any, "Inference"], "TypeSerializer[Any] | None"]


class InferenceRules:
    """Rules and record families, followed by those of ``base``."""

    def __init__(self, base: InferenceRules | None = None) -> None:
        self.base = base
        self._rules: list[Rule] = []
        self._families: list[RecordFamily] = []

    def register(self, rule: Rule) -> Rule:
        """Adds a rule, asked before all rules registered earlier; usable as a decorator."""
        self._rules.append(rule)
        return rule

    def register_family(self, family: RecordFamily) -> RecordFamily:
        """Adds a family of records, asked before all families registered earlier."""
        self._families.append(family)
        return family

    @property
    def families(self) -> Iterator[RecordFamily]:
        """Yields the record families, in the order in which they are asked."""
        yield from reversed(self._families)
        if self.base is not None:
            yield from self.base.families

    def family_of(self, candidate: Any) -> RecordFamily | None:
        """Returns the family of a class; None if it is not a record class."""
        if not isinstance(candidate, type):
            return None
        return next((family for family in self.families if family.recognizes(candidate)), None)

    def __iter__(self) -> Iterator[Rule]:
        yield from reversed(self._rules)
        if self.base is not None:
            yield from self.base


class _DefaultRules(InferenceRules):
    """A singleton: unpickling returns the object of the process."""

    def __reduce__(self) -> str:
        return "DEFAULT_RULES"


DEFAULT_RULES: Final[InferenceRules] = _DefaultRules()
"""The rules of this library, and those that modules of the program add at import."""


def register_inference(rule: Rule) -> Rule:
    """Adds a rule to `DEFAULT_RULES`, for modules that every process imports; usable as a decorator."""
    return DEFAULT_RULES.register(rule)


def register_record_family(family: RecordFamily) -> RecordFamily:
    """Adds a family of records to `DEFAULT_RULES`, for modules that every process imports."""
    return DEFAULT_RULES.register_family(family)


class Inference:
    """One descent through a type hint."""

    def __init__(
        self,
        path: str = "",
        enclosing: tuple[type, ...] = (),
        depth: int = 0,
        rules: InferenceRules = DEFAULT_RULES,
    ) -> None:
        self.rules = rules
        self.path = path
        self.enclosing = enclosing
        self.depth = depth

    def below(self, segment: str, enclosing: type | None = None) -> Inference:
        """Returns the inference of a part; ``segment`` is appended to the path."""
        if self.depth >= MAX_NESTING:
            raise UnknownTypeError(
                f"{self.path:.200}: the type is nested deeper than {MAX_NESTING} levels and could not be read again; "
                f"make it flatter, or use a record that contains itself"
            )
        inside = self.enclosing + ((enclosing,) if enclosing is not None else ())
        return Inference(self.path + segment, inside, self.depth + 1, self.rules)

    def serializer_for(self, hint: Any) -> TypeSerializer[Any]:
        """The serializer of a hint; raises `UnknownTypeError`."""
        chosen = _annotated_serializer(hint)
        if chosen is not None:
            return chosen
        if typing.get_origin(hint) is Annotated:
            hint = typing.get_args(hint)[0]
        for rule in self.rules:
            serializer = rule(hint, self)
            if serializer is not None:
                return serializer
        advice = advice_for(hint, self.rules.family_of)
        raise UnknownTypeError(
            f"{self.path or 'the type'}: no serializer is known for {described(hint)}.{advice} "
            f"Write Annotated[{described(hint)}, YourSerializer()], pass the serializer explicitly, "
            f"or register a rule with register_inference"
        )


def serializer_for(hint: Any, rules: InferenceRules = DEFAULT_RULES) -> TypeSerializer[Any]:
    """The serializer of a type hint by rules, such as ``int``, ``list[str]``, ``float | None`` or an attrs class.

    ``int`` means 64 bits and ``float`` binary64; ``Annotated[int, IntSerializer()]`` chooses another representation.
    Raises `UnknownTypeError` with the path inside the hint if no rule handles it.
    """
    return Inference(rules=rules).serializer_for(hint)


def _annotated_serializer(hint: Any) -> TypeSerializer[Any] | None:
    if typing.get_origin(hint) is not Annotated:
        return None
    for extra in typing.get_args(hint)[1:]:
        if isinstance(extra, TypeSerializer):
            return extra
    return None
