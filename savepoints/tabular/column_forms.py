"""The forms that values take in Arrow: each makes an array of many values at once, column by column.

A form of a record makes one array for each field out of all records and puts them together; it never makes a dict of a
record. None is null in every form.

A form *loses nothing or refuses*: a value that does not fit its type raises `ColumnValueError`, which names the value,
and is never rounded, cut off or made null. Where a type of values has no bound that Arrow has a type for, the form says
in `note` what stands in its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, Protocol

import pyarrow as pa
from attrs import field, frozen

from savepoints.errors import ColumnValueError
from savepoints.reading.plain_values import plain_value
from snapshots.value_text import shown

__all__ = [
    "ColumnForm",
    "ListForm",
    "MapForm",
    "ScalarForm",
    "StructForm",
    "has_utf8",
    "json_form",
    "json_text",
    "part_at",
    "sorted_elements",
]

Convert = Callable[[Any], Any]


class ColumnForm(Protocol):
    """What values of one type are in Arrow."""

    @property
    def data_type(self) -> pa.DataType:
        """The type of the arrays."""

    def array(self, values: Sequence[Any]) -> pa.Array:
        """One array of these values; raises `ColumnValueError` for one that does not fit."""

    def notes(self, path: str) -> Iterator[tuple[str, str]]:
        """Where something stands in the place of what was stored, and what it is; paths begin with ``path``."""


@frozen
class ScalarForm:
    """Values that Arrow takes as they are, or as ``convert`` makes them; it may raise for what does not fit."""

    data_type: pa.DataType
    convert: Convert | None = None
    note: str | None = None
    way_out: str = ""
    """What to do where a value does not fit, for the error."""

    def array(self, values: Sequence[Any]) -> pa.Array:
        """See `ColumnForm`."""
        try:
            return self._array(values)
        except (pa.ArrowException, OverflowError, ValueError, TypeError, UnicodeError) as error:
            raise self._misfit(values, error) from error

    def notes(self, path: str) -> Iterator[tuple[str, str]]:
        """See `ColumnForm`."""
        if self.note is not None:
            yield path, self.note

    def _array(self, values: Sequence[Any]) -> pa.Array:
        convert = self.convert
        taken = values if convert is None else [None if value is None else convert(value) for value in values]
        made = pa.array(taken, self.data_type)
        if isinstance(made, pa.ChunkedArray):
            raise OverflowError("the values of one batch are more than 2 GiB; ask for smaller batches")
        return made

    def _misfit(self, values: Sequence[Any], error: Exception) -> ColumnValueError:
        culprit, reason = next(filter(None, map(self._misfit_of, values)), ("a value", error))
        way_out = f"; {self.way_out}" if self.way_out else ""
        return ColumnValueError(f"{culprit} does not fit a column of type {self.data_type}: {reason}{way_out}")

    def _misfit_of(self, value: Any) -> tuple[str, Exception] | None:
        try:
            self._array([value])
        except (pa.ArrowException, OverflowError, ValueError, TypeError, UnicodeError) as error:
            return shown(value), error
        return None


@frozen
class StructForm:
    """Records by their fields: ``parts`` are names, what gets the field of a record, and the form of the field."""

    parts: tuple[tuple[str, Convert, ColumnForm], ...]
    data_type: pa.DataType = field(init=False)

    @data_type.default
    def _type(self) -> pa.DataType:
        return pa.struct([pa.field(name, form.data_type) for name, _, form in self.parts])

    def array(self, values: Sequence[Any]) -> pa.Array:
        """See `ColumnForm`."""
        mask = _mask(values)
        if mask is None:
            children = [form.array(list(map(get, values))) for _, get, form in self.parts]
        else:
            children = [
                form.array([None if value is None else get(value) for value in values]) for _, get, form in self.parts
            ]
        return pa.StructArray.from_arrays(children, fields=list(self.data_type), mask=mask)

    def notes(self, path: str) -> Iterator[tuple[str, str]]:
        """See `ColumnForm`."""
        for name, _, form in self.parts:
            yield from form.notes(f"{path}.{name}")


@frozen
class ListForm:
    """Lists, sets, arrays and what else has elements, in their order; those of a set are sorted where they can be."""

    element: ColumnForm
    of_value: Callable[[Any], Sequence[Any]] | None = None
    data_type: pa.DataType = field(init=False)

    @data_type.default
    def _type(self) -> pa.DataType:
        return pa.list_(pa.field("element", self.element.data_type))

    def array(self, values: Sequence[Any]) -> pa.Array:
        """See `ColumnForm`."""
        mask = _mask(values)
        lists: Sequence[Sequence[Any]] = [() if value is None else value for value in values]
        if self.of_value is not None:
            lists = list(map(self.of_value, lists))
        elements = self.element.array(list(chain.from_iterable(lists)))
        return pa.ListArray.from_arrays(_offsets(lists), elements, type=self.data_type, mask=mask)

    def notes(self, path: str) -> Iterator[tuple[str, str]]:
        """See `ColumnForm`."""
        yield from self.element.notes(f"{path}[]")


@frozen
class MapForm:
    """Maps, in their order."""

    key: ColumnForm
    value: ColumnForm
    data_type: pa.DataType = field(init=False)

    @data_type.default
    def _type(self) -> pa.DataType:
        return pa.map_(self.key.data_type, pa.field("value", self.value.data_type))

    def array(self, values: Sequence[Any]) -> pa.Array:
        """See `ColumnForm`."""
        mask = _mask(values)
        maps = [{} if value is None else value for value in values]
        keys = self.key.array(list(chain.from_iterable(maps)))
        if keys.null_count:
            raise ColumnValueError("a map with the key None does not fit a column of maps")
        items = self.value.array(list(chain.from_iterable(one.values() for one in maps)))
        return pa.MapArray.from_arrays(_offsets(maps), keys, items, type=self.data_type, mask=mask)

    def notes(self, path: str) -> Iterator[tuple[str, str]]:
        """See `ColumnForm`."""
        yield from self.key.notes(f"{path}{{key}}")
        yield from self.value.notes(f"{path}{{value}}")


def json_text(value: Any) -> str:
    """Any value as one line of JSON, as `plain_value` tells it."""
    plain = plain_value(value)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
    # Half of a surrogate pair has no form in UTF-8, and an escape in JSON.
    return text if has_utf8(text) else json.dumps(plain, allow_nan=False)


def json_form(reason: str) -> ScalarForm:
    """Text in JSON, for values of which nothing else is known; ``reason`` says why."""
    return ScalarForm(pa.string(), json_text, f"text in JSON: {reason}")


def has_utf8(text: str) -> bool:
    """Whether a text can be written in UTF-8: halves of surrogate pairs, which Java's texts may have, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def sorted_elements(values: Iterable[Any]) -> Sequence[Any]:
    """Those of a set: its own order is another one in every process."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def part_at(index: int) -> Convert:
    """What gets the field of a tuple."""
    return itemgetter(index)


def _mask(values: Sequence[Any]) -> pa.Array | None:
    return pa.array([value is None for value in values], pa.bool_()) if None in values else None


def _offsets(values: Sequence[Any]) -> pa.Array:
    return pa.array(accumulate(map(len, values), initial=0), pa.int32())
