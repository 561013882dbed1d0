"""Rows: values addressed by position or by name, with the kind of change they stand for."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import field, frozen


class RowKind(enum.IntEnum):
    """The kind of change a row stands for in a changelog; the number is Flink's byte."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def short_string(self) -> str:
        """``+I``, ``-U``, ``+U`` or ``-D``."""
        return ("+I", "-U", "+U", "-D")[self]


@frozen(init=False, repr=False)
class Row:
    """Field values, any of which may be None, with names if ``names`` is given, and a kind.

    ``Row(1, "a")`` is addressed by position, ``Row.named(id=1, name="a")`` by name and by position.
    Two rows are equal if their fields, names and kinds are. Raises `ValueError` if names and fields do not go together.
    """

    fields: tuple[Any, ...]
    kind: RowKind = field(default=RowKind.INSERT)
    names: tuple[str, ...] | None = field(default=None)

    def __init__(
        self, *fields: Any, kind: RowKind = RowKind.INSERT, names: tuple[str, ...] | list[str] | None = None
    ) -> None:
        if names is not None:
            names = tuple(names)
            if len(names) != len(fields) or len(set(names)) != len(names):
                raise ValueError(f"{len(fields)} fields cannot have the names {', '.join(names)}")
        self.__attrs_init__(fields, kind, names)

    @classmethod
    def named(cls, _fields: Mapping[str, Any] | None = None, /, kind: RowKind = RowKind.INSERT, **fields: Any) -> Row:
        """A row with names, from a mapping (for names that are no identifiers) or keyword arguments."""
        every = {**(_fields or {}), **fields}
        return cls(*every.values(), kind=kind, names=tuple(every))

    @property
    def arity(self) -> int:
        """The number of fields."""
        return len(self.fields)

    def as_dict(self) -> dict[str, Any]:
        """The fields by name; raises `ValueError` for a row without names."""
        if self.names is None:
            raise ValueError("the row has no names")
        return dict(zip(self.names, self.fields, strict=True))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, int):
            return self.fields[key]
        if self.names is None or key not in self.names:
            raise KeyError(key)
        return self.fields[self.names.index(key)]

    def __len__(self) -> int:
        return len(self.fields)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fields)

    def __repr__(self) -> str:
        if self.names is None:
            inner = ", ".join(map(repr, self.fields))
        else:
            inner = ", ".join(f"{name}={item!r}" for name, item in zip(self.names, self.fields, strict=True))
        return f"{self.kind.short_string}[{inner}]"
