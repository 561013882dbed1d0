"""Schemas in DDL, and rows, without Spark."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pyarrow as pa
import pytest

from statebackend import JobDefinitionError
from statebackend.streaming.rows.declared_schema import OF_PROCESS, parsed_schema
from statebackend.streaming.rows.record_schema import output_schema
from statebackend.streaming.rows.row_reader import row_class
from statebackend.streaming.rows.row_writer import RowWriter


def test_names_types_and_fields_are_read() -> None:
    schema = parsed_schema(
        "a LONG NOT NULL, `b.c` string COMMENT 'x', s struct<x: array<int>, `y z`: dec(5,1)>", "here"
    )
    assert schema.type_names == {"a": "bigint", "b.c": "string", "s": "struct<x:array<int>,y z:decimal(5,1)>"}
    assert schema.arrow.types[:2] == [pa.int64(), pa.string()]
    assert not schema.arrow.field("a").nullable
    assert RowWriter(schema.arrow).schema.field("a").nullable, "the row of an acknowledgement is null in every column"
    assert [schema.type_of(name) for name in ("a", "b.c", "s.x", "s.y z")] == [
        "bigint",
        "string",
        "array<int>",
        "decimal(5,1)",
    ]
    assert [schema.type_of(name) for name in ("s.q", "c", "a.b")] == [None, None, None]


@pytest.mark.parametrize(
    ("ddl", "reported"),
    [
        ("", "it is empty"),
        ("a", "'a' is not a type that is known here"),
        ("a foo", "'foo' is not a type"),
        ("a varchar(3)", "'varchar' is not a type"),
        ("a int b", "'b' is not expected there"),
        ("a int,", "the name of a column is missing at the end"),
        ("a array<int", "'>' is missing"),
        ("a int, A string", "two columns are called 'a'"),
        ("a decimal(39,1)", r"decimal\(39,1\) is not a type"),
        ("a decimal(3,4)", r"decimal\(3,4\) is not a type"),
        ("a decimal(x)", "'x' is not a number"),
        ("a int not", "'null' is missing"),
        ("a int; b int", "'; b int' is not expected there"),
        ("'a' int", "'a' is not a name of a column|is not a name of a column"),
    ],
)
def test_an_invalid_schema_is_rejected_with_the_reason(ddl: str, reported: str) -> None:
    with pytest.raises(JobDefinitionError, match=rf"^here: the schema .* cannot be read: .*({reported})"):
        parsed_schema(ddl, "here")


def test_an_output_needs_a_known_kind_of_schema() -> None:
    with pytest.raises(
        JobDefinitionError, match=r"^here: pass schema=RecordClass or schema='name type, ...' after its uid"
    ):
        output_schema(None, "here", OF_PROCESS)
    with pytest.raises(JobDefinitionError, match=r"^here: schema must be DDL, a record class or a StructType, not int"):
        output_schema(7, "here", OF_PROCESS)


def test_an_output_has_distinct_column_names() -> None:
    from pyspark.sql.types import IntegerType, StructField, StructType

    of_one_name = StructType([StructField(name, IntegerType()) for name in "abA"])
    for declared, why in ((StructType(), "it is empty"), (of_one_name, "two columns are called 'a'")):
        with pytest.raises(JobDefinitionError, match=rf"^here: the schema 'struct<.*>' cannot be read: {why}"):
            output_schema(declared, "here", OF_PROCESS)


def test_a_row_is_a_tuple_with_names() -> None:
    inner: Any = tuple.__new__(row_class(("x",)), (1,))
    row: Any = tuple.__new__(row_class(("a", "count", "inner")), ("b", 2, [inner]))
    assert row == ("b", 2, [(1,)])
    assert (row.a, row["a"], row[0], row["count"], row.inner[0].x) == ("b", "b", "b", 2, 1)
    assert callable(row.count), "what every tuple has is not hidden"
    assert row.asDict() == {"a": "b", "count": 2, "inner": [inner]}
    assert row.asDict(recursive=True) == {"a": "b", "count": 2, "inner": [{"x": 1}]}
    assert repr(row) == "Row(a='b', count=2, inner=[Row(x=1)])"
    assert "a" in row
    assert "b" not in row
    for other in (pickle.loads(pickle.dumps(row)), copy.deepcopy(row)):
        assert (other, other.a, repr(other)) == (row, "b", repr(row))
    with pytest.raises(AttributeError, match="the row has no field 'z', only a, count, inner"):
        _ = row.z
    with pytest.raises(KeyError, match="'z' is not a column; the row has a, count, inner"):
        _ = row["z"]
