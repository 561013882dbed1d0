"""Entries on their way from rows to rows: decoded as far as somebody asks, encoded as far as somebody changed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from savepoints.reading.stored_entries import StateEntry
from savepoints.writing.entry_decoding import decoded, stored_keys
from savepoints.writing.entry_encoding import encoded, encoded_keys
from savepoints.writing.entry_schema import EntrySchema
from savepoints.writing.key_placement import KeyPlacement

__all__ = ["EntryBatch"]


class EntryBatch:
    """Entries of one state; ``rows`` are what they were read from, ``changed`` the columns that are other ones now.

    Entries that were never rows have all their columns in ``changed``.
    """

    def __init__(
        self,
        schema: EntrySchema,
        rows: pa.RecordBatch | None,
        changed: Mapping[str, Sequence[Any]],
        read: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.schema = schema
        self._rows = rows
        self._changed = dict(changed)
        self._read = dict(read or {})

    def __len__(self) -> int:
        return self._rows.num_rows if self._rows is not None else len(next(iter(self._changed.values())))

    def column(self, name: str) -> Sequence[Any]:
        """A column of the entries: ``key``, ``namespace``, ``user_key``, ``value`` or ``last_access_ms``."""
        if name in self._changed:
            return self._changed[name]
        if name not in self._read:
            self._read[name] = decoded(self.schema, self._stored, name)
        return self._read[name]

    def entries(self) -> list[StateEntry]:
        """The entries, which were read, as those of `Savepoint.read`."""
        schema, groups = self.schema, self._stored.column("key_group").to_pylist()
        nothing = [None] * len(groups)
        spaces = self.column("namespace") if schema.has_namespaces else nothing
        user_keys = self.column("user_key") if schema.is_map else nothing
        times = self.column("last_access_ms") if schema.is_timed else nothing
        return list(map(StateEntry, groups, self.column("key"), spaces, user_keys, self.column("value"), times))

    def changed(self, name: str, values: Sequence[Any]) -> EntryBatch:
        """The same entries with another column."""
        return EntryBatch(self.schema, self._rows, {**self._changed, name: values}, self._read)

    def kept(self, is_kept: Sequence[bool]) -> EntryBatch:
        """Of entries that were read those at whose place there is True."""
        if all(is_kept):
            return self
        rows = self._stored.filter(pa.array(is_kept, pa.bool_()))
        changed, read = (
            {name: [value for value, keep in zip(values, is_kept, strict=True) if keep] for name, values in one.items()}
            for one in (self._changed, self._read)
        )
        return EntryBatch(self.schema, rows, changed, read)

    def written(self, target: EntrySchema, placement: KeyPlacement | None) -> pa.RecordBatch:
        """The rows under another schema, or the same; with a placement, in the key groups that it says.

        Raises `EntryError` for a value that does not fit, `KeyHashError` for such a key.
        """
        needed = self._columns_to_encode(target)
        written = (
            encoded(target, {name: self.column(name) for name in needed}, partial(self.column, "key")) if needed else {}
        )
        rest = target.row_columns[1:]
        arrays = {name: written[name] if name in written else self._stored.column(name) for name in rest}
        if placement is not None:
            groups = placement.of_stored(self._keys_for(target, placement, arrays))
        else:
            groups = self._stored.column("key_group")
        columns = [groups, *arrays.values()]
        return pa.RecordBatch.from_arrays(columns, names=["key_group", *arrays])

    def _columns_to_encode(self, target: EntrySchema) -> tuple[str, ...]:
        every = (*target.entry_columns, *(("last_access_ms",) if target.is_timed else ()))
        if self._rows is None:
            return every
        if target.is_queue:
            # A timer is one value; whatever changes in it, all of it is written.
            is_other = not target.has_values_of(self.schema)
            return every if is_other or self._changed else ()
        fixed: tuple[str, ...] = ("key", "namespace", "user_key")
        needed = [name for name in fixed if name in every and name in self._changed]
        if not target.has_keys_of(self.schema) and "key" not in needed:
            needed.append("key")
        if not target.has_user_keys_of(self.schema) and "user_key" not in needed:
            needed.append("user_key")
        is_other = not target.has_values_of(self.schema)
        if is_other or "value" in self._changed or "last_access_ms" in self._changed:
            needed += [name for name in ("value", "last_access_ms") if name in every]
        return tuple(needed)

    def _keys_for(self, target: EntrySchema, placement: KeyPlacement, arrays: Mapping[str, pa.Array]) -> pa.Array:
        if not target.is_queue:
            return arrays["key"]
        if "key" in self._changed or self._rows is None:
            return encoded_keys(target, self.column("key"))
        return stored_keys(self.schema, self._stored)

    @property
    def _stored(self) -> pa.RecordBatch:
        assert self._rows is not None
        return self._rows
