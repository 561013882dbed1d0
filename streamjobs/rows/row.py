"""A row: a tuple with named fields, as Spark's ``Row`` is, without Spark.

Fields are attributes and items by name, ``asDict()`` makes a dict, and a row equals any tuple of the same values. A
class is generated for each tuple of names, over this base or over ``pyspark.sql.Row``, so that a program for one
runtime finds what it expects in the other.
"""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, ClassVar

__all__ = ["RecordRow", "is_row_class", "row_class"]


class RecordRow(tuple[Any, ...]):
    """The base of rows where there is no Spark."""

    __slots__ = ()
    __fields__: ClassVar[list[str]] = []

    def asDict(self, recursive: bool = False) -> dict[str, Any]:  # noqa: N802
        """The values by name; ``recursive`` turns rows in lists and dicts into dicts too."""
        values = map(_as_dict, self) if recursive else iter(self)
        return dict(zip(self.__fields__, values, strict=True))

    def __contains__(self, name: object) -> bool:
        return name in self.__fields__

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the row has no field {name!r}, only {', '.join(self.__fields__)}")

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self.__fields__, self, strict=True))})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return tuple.__new__(type(self), [copy.deepcopy(value, memo) for value in self])

    def __reduce__(self) -> Any:
        return _row_of, (tuple(self.__fields__), tuple(self))


def _row_of(names: tuple[str, ...], values: Iterable[Any]) -> RecordRow:
    made: RecordRow = tuple.__new__(row_class(names), values)
    return made


def _as_dict(value: Any) -> Any:
    if isinstance(value, RecordRow):
        return value.asDict(recursive=True)
    if isinstance(value, list):
        return [_as_dict(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_dict(item) for key, item in value.items()}
    return value


def is_row_class(kind: type) -> bool:
    """Whether instances are rows, of this module or of Spark."""
    return issubclass(kind, tuple) and hasattr(kind, "asDict")


def _tuple_with_accessors(length: int) -> type[Any]:
    return namedtuple("_Accessors", [f"a{position}" for position in range(length)])


@lru_cache(maxsize=1024)
def row_class(names: tuple[str, ...], base: type[tuple[Any, ...]] = RecordRow) -> type[Any]:
    """The class of rows with these columns; make rows with `tuple.__new__(cls, values)`."""
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        positions.setdefault(name, position)

    def get_item(self: Any, item: Any) -> Any:
        if isinstance(item, str):
            try:
                item = positions[item]
            except KeyError:
                raise KeyError(f"{item!r} is not a column; the row has {', '.join(names)}") from None
        return tuple.__getitem__(self, item)

    # A namedtuple's accessors are compiled, read the tuple directly, and work in any subclass of tuple. Its class is
    # held until they are taken out: a garbage collection would empty what vars() gives of a class that nobody holds.
    accessors = _tuple_with_accessors(len(names))
    members: dict[str, Any] = {"__slots__": (), "__fields__": list(names), "__getitem__": get_item}
    for name, position in positions.items():
        # As in Spark's Row, what every tuple has (count, index) is not hidden by a column; row["count"] works.
        if not hasattr(base, name) and not name.startswith("__"):
            members[name] = vars(accessors)[f"a{position}"]
    return type("Row", (base,), members)
