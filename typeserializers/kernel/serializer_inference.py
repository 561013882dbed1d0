"""From type hints to serializers: a registry of rules, asked newest first.

A rule looks at a hint and returns a serializer, or None when the hint is not its business. Rules for nested types call
back through the `Inference` they are given, which keeps the path for error messages. Nothing is ever guessed: a hint
that no rule knows is an error that names the path in the type and what to write instead.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Annotated, Any

from snapshots.envelope import MAX_NESTING
from snapshots.errors import StateFormatError
from typeserializers.kernel.hint_advice import advice_for, described
from typeserializers.kernel.type_serializer import TypeSerializer


class UnknownTypeError(StateFormatError, TypeError):
    """No serializer can be inferred for a type hint."""


Rule = Callable[[Any, "Inference"], "TypeSerializer[Any] | None"]

_rules: list[Rule] = []


def register_inference(rule: Rule) -> Rule:
    """Adds a rule, asked before all rules registered earlier; usable as a decorator."""
    _rules.append(rule)
    return rule


class Inference:
    """One descent through a type hint."""

    def __init__(self, path: str = "", enclosing: tuple[type, ...] = (), depth: int = 0) -> None:
        self.path = path
        self.enclosing = enclosing
        self.depth = depth

    def below(self, segment: str, enclosing: type | None = None) -> Inference:
        """The inference of a part, whose path is this one's and ``segment``."""
        if self.depth >= MAX_NESTING:
            raise UnknownTypeError(
                f"{self.path:.200}: the type is nested deeper than {MAX_NESTING} levels and could not be read again; "
                f"make it flatter, or use a record that contains itself"
            )
        inside = self.enclosing + ((enclosing,) if enclosing is not None else ())
        return Inference(self.path + segment, inside, self.depth + 1)

    def serializer_for(self, hint: Any) -> TypeSerializer[Any]:
        """The serializer of a hint; raises `UnknownTypeError`."""
        chosen = _annotated_serializer(hint)
        if chosen is not None:
            return chosen
        if typing.get_origin(hint) is Annotated:
            hint = typing.get_args(hint)[0]
        for rule in reversed(_rules):
            serializer = rule(hint, self)
            if serializer is not None:
                return serializer
        raise UnknownTypeError(
            f"{self.path or 'the type'}: no serializer is known for {described(hint)}.{advice_for(hint)} "
            f"Write Annotated[{described(hint)}, YourSerializer()], pass the serializer explicitly, "
            f"or register a rule with register_inference"
        )


def serializer_for(hint: Any) -> TypeSerializer[Any]:
    """The serializer of a type hint, such as ``int``, ``list[str]``, ``float | None`` or an attrs class.

    ``int`` means 64 bits and ``float`` binary64; ``Annotated[int, IntSerializer()]`` chooses another representation.
    Raises `UnknownTypeError`, naming the path inside the hint, for anything that is not known.
    """
    return Inference().serializer_for(hint)


def _annotated_serializer(hint: Any) -> TypeSerializer[Any] | None:
    if typing.get_origin(hint) is not Annotated:
        return None
    for extra in typing.get_args(hint)[1:]:
        if isinstance(extra, TypeSerializer):
            return extra
    return None
