"""A sequence whose values are in Arrow columns and become objects when the first one is read.

The local runtime passes the records, keys and key groups of a batch as sequences, so whether they are in columns
matters only to code that asks for it. Other code iterates over them, as over a list.

Invariants:

* The objects are those that the batch would have had from the start, because both come from the reader of the schema.
  They are created once, for one owner.
* Columns never change, also if a function changes an object that it received, such as a list in a row. So columns are
  passed on only before a function has seen the objects; after it, its results are lists.
* A copy has the same columns and objects of its own. It costs nothing until they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from statebackend.streaming.rows.row_reader import column_values, keys_of_columns

__all__ = ["Columnar"]


class Columnar(Sequence[Any]):
    """The rows of ``columns`` as a sequence; ``read`` creates the objects of all rows."""

    __slots__ = ("_objects", "_read", "columns")

    def __init__(self, columns: pa.RecordBatch, read: Callable[[pa.RecordBatch], list[Any]]) -> None:
        self.columns = columns
        self._read = read
        self._objects: list[Any] | None = None

    @classmethod
    def of_keys(cls, columns: Sequence[pa.Array]) -> Columnar:
        """The keys of key columns, which have no nulls."""
        names = [str(index) for index in range(len(columns))]
        return cls(pa.RecordBatch.from_arrays(columns, names=names), lambda batch: keys_of_columns(batch.columns))

    @classmethod
    def of_column(cls, column: pa.Array) -> Columnar:
        """The values of one column."""
        return cls(pa.RecordBatch.from_arrays([column], names=["0"]), lambda batch: column_values(batch.column(0)))

    @property
    def objects(self) -> list[Any]:
        """All objects."""
        if self._objects is None:
            self._objects = self._read(self.columns)
        return self._objects

    def filtered(self, mask: pa.Array) -> Columnar:
        """The selected rows."""
        return Columnar(self.columns.filter(mask), self._read)

    def copied(self) -> Columnar:
        """A sequence with objects of its own."""
        return Columnar(self.columns, self._read)

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def __getitem__(self, place: Any) -> Any:
        return self.objects[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.objects)

    def __deepcopy__(self, memo: dict[int, Any]) -> Columnar:
        return self.copied()
