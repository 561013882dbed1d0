"""The schema of a union, and conversion of its rows."""

from __future__ import annotations

import pytest

from statebackend import JobDefinitionError
from statebackend.streaming.rows.declared_schema import DeclaredSchema, parsed_schema
from statebackend.streaming.rows.row_reader import row_class
from statebackend.streaming.rows.union import rows_as, united_guess, united_schema


def schema(ddl: str) -> DeclaredSchema:
    return parsed_schema(ddl, "here")


@pytest.mark.parametrize(
    ("types", "united"),
    [
        (["int", "bigint"], "bigint"),
        (["tinyint", "smallint", "int"], "int"),
        (["float", "double"], "double"),
        (["bigint", "double"], "double"),
        (["void", "string"], "string"),
        (["struct<a: int>", "struct<a: int>"], "struct<a:int>"),
    ],
)
def test_the_wider_type_results_in_any_order_of_streams(types: list[str], united: str) -> None:
    for order in (types, types[::-1]):
        assert united_schema([schema(f"k string, v {one}") for one in order]).type_names == {"k": "string", "v": united}


@pytest.mark.parametrize("types", [("int", "bigint"), ("bigint", "int"), ("void", "string"), ("int", "int")])
def test_a_column_has_the_name_of_the_first_stream_with_any_type(types: tuple[str, str]) -> None:
    first, second = (schema(f"{name} {one}") for name, one in zip(("Value", "value"), types, strict=True))
    assert united_schema([first, second]).names == ("Value",)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ("v bigint, w int", "not every stream has the column 'k'"),
        ("v bigint", "not every stream has the column 'k'"),
        ("k string, v bigint, w int", "not every stream has the column 'w'"),
        ("k string, v string", "the column 'v' is int and string; give it one type"),
        ("k string, v float", "the column 'v' is int and float; give it one type"),
    ],
)
def test_incompatible_columns_are_reported_with_those_of_every_stream(second: str, reason: str) -> None:
    with pytest.raises(JobDefinitionError) as reported:
        united_schema([schema("k string, v int"), schema(second)])
    assert str(reported.value) == f"union() of streams with different columns: k string, v int; {second}: {reason}"


def test_rows_are_converted_by_name_and_numbers_are_widened() -> None:
    first, second = schema("k string, v double"), schema("V int, k string")
    united = united_schema([first, second])
    assert united.names == ("k", "v")
    rows = rows_as(second, united)([row_class(("V", "k"))((7, "a")), row_class(("V", "k"))((None, "b"))])
    assert [row.asDict() for row in rows] == [{"k": "a", "v": 7.0}, {"k": "b", "v": None}]
    assert type(rows[0]) is row_class(("k", "v"))
    assert type(rows[0].v) is float


def test_the_common_type_of_other_records_is_used() -> None:
    guess = united_guess([schema("k string, v int, w int"), schema("v bigint, w string, k string")])
    assert guess.type_names == {"k": "string", "v": "bigint"}
