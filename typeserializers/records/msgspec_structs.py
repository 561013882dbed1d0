"""``msgspec.Struct`` classes as records: field by field, by msgspec's own account of them.

A record is made by the constructor of the class, with its fields by name; like msgspec's own constructor that checks no
types, and runs ``__post_init__``. The name of a field in messages (``rename``, ``field(name=...)``) counts as a former
name of it, unless another field has that name. How a struct looks in messages says nothing about how it is stored:
tags, ``array_like``, ``omit_defaults`` and ``forbid_unknown_fields`` may come and go.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from typeserializers.kernel.record_families import ABSENT, DeclaredField, RecordFamily

__all__ = ["MsgspecFamily"]


class MsgspecFamily(RecordFamily):
    """Subclasses of ``msgspec.Struct``. msgspec is only looked for, never imported."""

    description = "msgspec structs"

    def recognizes(self, candidate: type) -> bool:
        msgspec = _msgspec()
        return msgspec is not None and issubclass(candidate, msgspec.Struct)

    def refusal(self, record_class: Any) -> str | None:
        if record_class is _msgspec().Struct:
            return "any struct could be meant by Struct: name the class, or a union of those that may occur"
        return None

    def fields(self, record_class: Any) -> Sequence[DeclaredField]:
        msgspec = _msgspec()
        declared = msgspec.structs.fields(record_class)
        names = {one.name for one in declared}
        return [
            DeclaredField(
                one.name,
                one.type,
                ABSENT if one.default is msgspec.NODEFAULT else one.default,
                None if one.default_factory is msgspec.NODEFAULT else one.default_factory,
                one.name,
                True,
                former_names=() if one.encode_name in names else (one.encode_name,),
            )
            for one in declared
        ]

    def is_frozen(self, record_class: Any) -> bool:
        return bool(record_class.__struct_config__.frozen)

    def maker(self, record_class: Any) -> Callable[..., Any]:
        return _StructMaker(record_class)


class _StructMaker(functools.partial[Any]):
    """The class itself, which says so if it arrives in another process without its fields."""

    def __reduce__(self) -> tuple[Any, ...]:
        struct: Any = self.func
        return _arrived, (struct, struct.__struct_fields__)


def _arrived(struct: Any, fields: tuple[str, ...]) -> _StructMaker:
    if struct.__struct_fields__ != fields:
        # What sends classes by value sets their attributes afterwards; msgspec lays a class out when it is made.
        raise TypeError(
            f"the struct {struct.__qualname__} arrived in this process without its fields, since structs of a main "
            f"script or a notebook cannot be sent to workers: define it in a module that the workers import"
        )
    return _StructMaker(struct)


def _msgspec() -> Any:
    return sys.modules.get("msgspec")
