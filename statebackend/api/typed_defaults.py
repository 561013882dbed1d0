"""What a type checker is told of the default of a value state: that it is of the state's type.

A checker that is given ``int`` and ``"x"`` for one type variable settles for ``object``, which both are. Type variables
that ``object`` is no value of leave it no way out, so ``ValueStateDescriptor("count", int, default="x")`` is an error.
For a type that is none of these, pass its serializer: ``serializer_for(Hint)``.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import attr

    class _Dataclass(Protocol):
        __dataclass_fields__: ClassVar[dict[str, Any]]

    _Record: TypeAlias = attr.AttrsInstance | _Dataclass | enum.Enum
    _Collection: TypeAlias = list[Any] | dict[Any, Any] | set[Any] | frozenset[Any] | tuple[Any, ...]

Scalar = TypeVar(
    "Scalar",
    bool,
    int,
    float,
    str,
    bytes,
    decimal.Decimal,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
)
"""A type of single values."""

Composite = TypeVar("Composite", bound="_Record | _Collection")
"""A record class, an enum, or a collection with the types of its elements."""
