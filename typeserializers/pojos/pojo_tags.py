"""What stands before the fields of a POJO: whether it is null, of exactly this class, or of which subclass.

Each field has a null flag of its own; what is refused there is here, too.
"""

from __future__ import annotations

from typing import Final

from snapshots.data_views import DataOutputView
from snapshots.errors import MalformedDataError

NULL: Final = 0x01
EXACT_CLASS: Final = 0x02
UNREGISTERED_SUBCLASS: Final = 0x04
REGISTERED_SUBCLASS: Final = 0x08

MAX_REGISTERED_SUBCLASSES: Final = 256


def unregistered_prefix(name: str) -> bytes:
    """What is written before an object of a subclass that has no tag."""
    out = DataOutputView()
    out.write_unsigned_byte(UNREGISTERED_SUBCLASS)
    out.write_utf(name)
    return out.to_bytes()


def refuse_none(name: str) -> None:
    """Raises `TypeError` for None in a field that is to be written and has no place for it."""
    raise TypeError(f".{name} is None, but the field is not optional")


def refuse_null(name: str) -> None:
    """Raises `MalformedDataError` for the null flag of a field that has no place for None."""
    raise MalformedDataError(f".{name} is null, but is not optional")
