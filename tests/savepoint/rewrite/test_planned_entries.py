"""Entries of a plan are converted to rows in batches of limited size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pyarrow as pa
import pytest

from statebackend import ListStateDescriptor, ValueStateDescriptor
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import EntryError
from statebackend.savepoint.rewrite.key_placement import KeyPlacement
from statebackend.savepoint.rewrite.planned_entries import PlannedEntries
from statebackend.state.key_columns import serializer_of_key
from statebackend.state.state_kind import StateDescriptor

MIB = 1 << 20
LARGE = "x" * MIB


@attrs.frozen
class Page:
    address: str
    text: str


def batches(descriptor: StateDescriptor, entries: Any) -> Iterator[pa.RecordBatch]:
    schema = EntrySchema.of_descriptor(descriptor, serializer_of_key(["int"]))
    return PlannedEntries(entries, 0).rows(schema, KeyPlacement(["int"], 8))


@pytest.mark.parametrize(
    ("descriptor", "value"),
    [
        (ValueStateDescriptor("one", str), LARGE),
        (ValueStateDescriptor("one", Page), Page("a", LARGE)),
        (ListStateDescriptor("one", str), [LARGE]),
    ],
)
def test_large_entries_are_read_a_few_at_a_time_from_any_container(descriptor: StateDescriptor, value: object) -> None:
    taken = 0

    def entries() -> Iterator[tuple[int, object]]:
        nonlocal taken
        for number in range(40):
            taken += 1
            yield number, value

    given = 0
    for rows in batches(descriptor, entries()):
        given += rows.num_rows
        assert taken - given <= 4
        assert rows.nbytes <= 5 * MIB
    assert given == 40


def test_a_table_of_large_values_is_written_a_few_rows_at_a_time() -> None:
    values = pa.array([LARGE] * 40)
    encoded = values.dictionary_encode()
    for column in (values, encoded):
        table = pa.table({"key": pa.array(range(40), pa.int32()), "value": column})
        sizes = [rows.nbytes for rows in batches(ValueStateDescriptor("one", str), table.to_batches())]
        assert (len(sizes) >= 10, max(sizes) <= 5 * MIB) == (True, True)


def test_after_small_entries_only_a_few_large_ones_are_read_at_once() -> None:
    rows = [batch.num_rows for batch in batches(ValueStateDescriptor("one", int), ((key, key) for key in range(5000)))]
    assert (sum(rows), max(rows)) == (5000, 1024)


@pytest.mark.parametrize("entries", [[None], [None, (1, 1)], [(1, 1), None]])
def test_an_invalid_entry_is_rejected_in_every_position(entries: list[object]) -> None:
    with pytest.raises(EntryError, match="None is not an entry"):
        list(batches(ValueStateDescriptor("one", int), entries))
