"""Records of a stream as state: content, and schema evolution."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from snapshots.compatibility import CompatibilityKind
from snapshots.type_serializer_snapshot import resolve_compatibility
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.rows.record_serializer import StoredRecords, stored_records
from statebackend.streaming.rows.row_reader import RowReader
from statebackend.streaming.rows.row_writer import RowWriter
from statebackend.testing.upgrades import migration_between

UTC = datetime.timezone.utc


def form_of(ddl: str) -> StoredRecords:
    return stored_records(parsed_schema(ddl, "test").arrow, "test")


def rows_of(ddl: str, *values: Any) -> list[Any]:
    """Rows as an operator gets them."""
    schema = parsed_schema(ddl, "test").arrow
    [batch] = RowWriter(schema).batches(list(values))
    return RowReader(schema).rows(batch)


def bytes_of(form: StoredRecords, row: Any) -> bytes:
    return form.serializer.to_bytes(form.to_stored(row))


def read(form: StoredRecords, data: bytes) -> Any:
    return form.to_row(form.serializer.from_bytes(data))


@pytest.mark.parametrize(
    ("ddl", "values"),
    [
        ("a int, b string", (1, "x")),
        ("a tinyint, b smallint, c bigint, d float, e double, f boolean", (1, 2, 3, 0.5, 0.25, True)),
        ("a binary, b date, c decimal(10,2)", (b"\0", datetime.date(2013, 1, 1), decimal.Decimal("1.50"))),
        ("a timestamp", (datetime.datetime(2013, 1, 1, 5, tzinfo=UTC),)),
        ("a timestamp_ntz", (datetime.datetime(2013, 1, 1, 5),)),
        ("a array<int>, b map<string,array<int>>", ([1, None], {"x": [2], "y": None})),
        ("a struct<b: int, c: struct<d: string>>", ((1, ("x",)),)),
        ("a array<struct<b: int>>, m map<int,struct<b: int>>", ([(1,), None], {1: (2,)})),
        ("count int, `a b` int, class int, self int, index int, column_61 int, `a` int", (1, 2, 3, 4, 5, 6, 7)),
        ("a void", (None,)),
    ],
)
def test_a_row_round_trips(ddl: str, values: tuple[Any, ...]) -> None:
    form = form_of(ddl)
    for given in (values, (None,) * len(values)):
        [row] = rows_of(ddl, given)
        found = read(form, bytes_of(form, row))
        assert found == row
        assert repr(found) == repr(row)
        assert type(found) is type(row)


@pytest.mark.parametrize(
    ("old", "values", "new", "expected"),
    [
        ("a int, b string", (1, "x"), "b string, a int", ("x", 1)),
        ("a int, b string", (1, "x"), "a int, b string, c double", (1, "x", None)),
        ("a int", (1,), "a bigint", (1,)),
        ("a float, b struct<c: int>", (0.5, (1,)), "b struct<d: string, c: bigint>, a double", ((None, 1), 0.5)),
        ("a array<struct<b: int>>", ([(1,), None],), "a array<struct<b: int, c: int>>", ([(1, None), None],)),
    ],
)
def test_records_evolve_by_column_name(old: str, values: Any, new: str, expected: Any) -> None:
    before, after = form_of(old), form_of(new)
    [row] = rows_of(old, values)
    migration = migration_between(before.serializer, after.serializer)
    assert after.to_row(migration.to_value(bytes_of(before, row))) == expected


def test_a_removed_column_is_dropped() -> None:
    before, after = form_of("a int, b string"), form_of("a int")
    [row] = rows_of("a int, b string", (1, "x"))
    assert after.to_row(migration_between(before.serializer, after.serializer).to_value(bytes_of(before, row))) == (1,)


def test_a_column_of_another_type_is_rejected() -> None:
    snapshot = form_of("a string").serializer.snapshot_configuration()
    compatibility = resolve_compatibility(snapshot, form_of("a int").serializer)
    assert compatibility.kind is CompatibilityKind.INCOMPATIBLE
    assert ".a" in str(compatibility)


def test_an_unstorable_type_is_rejected_with_its_column() -> None:
    schema = pa.schema([pa.field("a", pa.struct([pa.field("t", pa.duration("ns"))]))])
    with pytest.raises(JobDefinitionError, match=r"here: a\.t is a duration\[ns\], which no state can hold"):
        stored_records(schema, "here")
