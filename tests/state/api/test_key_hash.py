"""The Python hash equals Spark's own, value by value."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from effort import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from statebackend.state.key_groups import (
    KeyHashError,
    key_group_hasher,
    key_groups_hasher,
    key_hasher,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UTC = datetime.timezone.utc


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda unscaled: Decimal(f"{unscaled}E-{scale}"))


COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(codec="utf-8"), max_size=40),
    "binary": st.binary(max_size=70),
    "boolean": st.booleans(),
    "tinyint": integers(8),
    "smallint": integers(16),
    "int": integers(32),
    "bigint": integers(64),
    "float": st.floats(width=32),
    "double": st.floats() | st.sampled_from([0.0, -0.0, float("nan"), -float("nan")]),
    "date": st.dates(datetime.date(1583, 1, 1)),
    "timestamp": st.datetimes(datetime.datetime(1583, 1, 1), datetime.datetime(9999, 12, 30), timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(datetime.datetime(1583, 1, 1)),
    "decimal(10,2)": decimals(10, 2),
    "decimal(18,0)": decimals(18, 0),
    "decimal(19,4)": decimals(19, 4),
    "decimal(38,10)": decimals(38, 10),
}
TYPES = list(COLUMNS)
ROWS = st.lists(st.tuples(*(st.none() | values for values in COLUMNS.values())), min_size=60, max_size=120)


@pytest.mark.spark
# Without shrinking: an example is a Spark job.
@settings(max_examples=examples(4), phases=[Phase.explicit, Phase.generate])
@given(rows=ROWS)
def test_every_column_and_the_chain_of_all_columns_hash_as_in_spark(
    spark: SparkSession, rows: list[tuple[Any, ...]]
) -> None:
    names = [f"c{i}" for i in range(len(TYPES))]
    frame = spark.createDataFrame(rows, ", ".join(f"{n} {t}" for n, t in zip(names, TYPES, strict=True)))
    assert [field.dataType.simpleString() for field in frame.schema] == TYPES
    hashed = frame.selectExpr(
        *(f"xxhash64({name})" for name in names),
        f"xxhash64({', '.join(names)})",
        f"pmod(xxhash64({', '.join(names)}), 100)",
    ).collect()

    for row, (*single, chained, group) in zip(rows, hashed, strict=True):
        for value, type_name, expected in zip(row, TYPES, single, strict=True):
            assert key_hasher([type_name])(value) == expected, (type_name, value)
        assert key_hasher(TYPES)(row) == chained
        assert key_group_hasher(TYPES, 100)(row) == group


@pytest.mark.parametrize(
    ("type_name", "value", "expected"),
    [
        ("string", "N14228", 2818031054348419725),
        ("string", None, 42),
        ("bigint", 42, -6876166290308861218),
        ("int", 42, -387659249110444264),
        ("double", -0.0, -5252525462095825812),
        ("decimal(10,2)", Decimal("-1.28"), -7035553742189352530),
        ("decimal(18,2)", Decimal("-1.28"), -7035553742189352530),
        ("decimal(19,2)", Decimal("-1.28"), -7898411661632158123),
        ("decimal(20,2)", Decimal("-1.28"), -7898411661632158123),
    ],
)
def test_hashes_do_not_change(type_name: str, value: Any, expected: int) -> None:
    assert key_hasher([type_name])(value) == expected


def test_a_null_keeps_the_seed() -> None:
    with_null, without = key_hasher(["string", "int", "bigint"]), key_hasher(["string", "bigint"])
    assert with_null(["a", None, 7]) == without(["a", 7])


def test_zeros_of_both_signs_and_all_nans_are_one_key() -> None:
    for type_name in ("float", "double"):
        hasher = key_hasher([type_name])
        assert hasher(0.0) == hasher(-0.0)
        assert hasher(float("nan")) == hasher(-float("nan"))


def test_a_float_that_rounds_to_minus_zero_is_zero() -> None:
    assert key_hasher(["float"])(-1e-60) == key_hasher(["float"])(0.0)


def test_timestamps_are_instants_in_any_zone() -> None:
    noon = datetime.datetime(2013, 7, 1, 12, tzinfo=UTC)
    berlin = noon.astimezone(datetime.timezone(datetime.timedelta(hours=2)))
    naive_local = datetime.datetime.fromtimestamp(noon.timestamp())
    hasher = key_hasher(["timestamp"])
    assert hasher(noon) == hasher(berlin) == hasher(naive_local)


@given(st.text(st.characters(codec="utf-8")), st.integers(1, 32768))
def test_a_key_group_is_the_positive_remainder_of_the_signed_hash(text: str, max_parallelism: int) -> None:
    hashed = key_hasher(["string"])(text)
    assert -(2**63) <= hashed < 2**63
    assert key_group_hasher(["string"], max_parallelism)(text) == hashed % max_parallelism


@pytest.mark.parametrize(
    ("types", "key", "message"),
    [
        (["bigint"], "x", "key column 0 is of type bigint, which cannot hold 'x'"),
        (["bigint"], 2**63, "key column 0 is of type bigint"),
        (["tinyint"], 128, "key column 0 is of type tinyint, which cannot hold 128: outside -128..127"),
        (["string"], b"x", "key column 0 is of type string"),
        (["binary"], "x", "key column 0 is of type binary, which cannot hold 'x': it is a str"),
        (["string"], ("x", 1), "key column 0 is of type string, which cannot hold ('x', 1): it is a tuple"),
        (["boolean"], "yes", "key column 0 is of type boolean"),
        (["string", "int"], ("a", 1.5), "key column 1 is of type int, which cannot hold 1.5"),
        (["string", "int"], ("a",), "is not a sequence of 2 values"),
        (["string", "int"], 7, "is not a sequence of 2 values"),
        (["decimal(4,2)"], Decimal("1.005"), "key column 0 is of type decimal(4,2)"),
        (["decimal(4,2)"], Decimal("100"), "more than 4 digits"),
        (["decimal(4,2)"], Decimal("1E+999999"), "key column 0"),
        (["decimal(4,2)"], Decimal("NaN"), "key column 0"),
        (["string"], "\ud800", "key column 0 is of type string"),
    ],
)
def test_a_key_outside_its_type_is_an_error_that_names_the_column(types: list[str], key: Any, message: str) -> None:
    with pytest.raises(KeyHashError) as caught:
        key_hasher(types)(key)
    assert message in str(caught.value)


@pytest.mark.parametrize("type_name", ["array<int>", "string collate UNICODE", "decimal(39,0)", "decimal(4,5)"])
def test_a_type_that_cannot_be_a_key_is_rejected_before_any_record(type_name: str) -> None:
    with pytest.raises(KeyHashError):
        key_hasher([type_name])


def test_a_key_without_columns_and_a_max_parallelism_below_one_are_rejected() -> None:
    with pytest.raises(KeyHashError, match="at least one column"):
        key_hasher([])
    with pytest.raises(KeyHashError, match="max_parallelism is 0"):
        key_group_hasher(["string"], 0)


@pytest.mark.parametrize(
    ("type_name", "lowest", "highest", "step"),
    [
        ("tinyint", -128, 127, 1),
        ("smallint", -(2**15), 2**15 - 1, 1),
        ("int", -(2**31), 2**31 - 1, 1),
        ("bigint", -(2**63), 2**63 - 1, 1),
        ("decimal(2,1)", Decimal("-9.9"), Decimal("9.9"), Decimal("0.1")),
        ("decimal(18,0)", Decimal(1 - 10**18), Decimal(10**18 - 1), 1),
        ("decimal(38,0)", Decimal(f"-{'9' * 38}"), Decimal("9" * 38), None),
    ],
)
def test_the_first_and_the_last_value_of_a_type_are_taken_and_those_beyond_rejected(
    type_name: str, lowest: Any, highest: Any, step: Any
) -> None:
    hasher = key_hasher([type_name])
    assert hasher(lowest) != hasher(highest)
    beyond = (Decimal(10) ** 38, -(Decimal(10) ** 38)) if step is None else (highest + step, lowest - step)
    for value in beyond:
        with pytest.raises(KeyHashError, match="key column 0 is of type"):
            hasher(value)


@pytest.mark.parametrize("type_name", ["decimal(0,0)", "decimal(39,0)", "decimal(5,6)", "decimal(5,-1)", "decimal(5)"])
def test_a_decimal_beyond_those_of_spark_is_rejected(type_name: str) -> None:
    with pytest.raises(KeyHashError, match="decimal"):
        key_hasher([type_name])


@pytest.mark.parametrize("type_name", ["decimal(1,0)", "decimal(1,1)", "decimal(38,38)", "decimal(5, 2)"])
def test_the_smallest_and_the_largest_decimals_are_taken(type_name: str) -> None:
    assert key_hasher([type_name])(Decimal(0)) is not None


def test_key_groups_are_at_least_one_and_every_key_has_one_of_them() -> None:
    with pytest.raises(KeyHashError, match="at least 1"):
        key_group_hasher(["int"], 0)
    assert {key_group_hasher(["int"], 1)(value) for value in range(50)} == {0}
    assert {key_group_hasher(["int"], 3)(value) for value in range(50)} == {0, 1, 2}


@given(
    st.lists(st.none() | st.text(st.characters(codec="utf-8"))),
    st.integers(1, 32768) | st.sampled_from([1, 128, 32768]),
)
def test_key_groups_of_many_keys_equal_those_of_single_keys(keys: list[str | None], max_parallelism: int) -> None:
    hash_key = key_group_hasher(["string"], max_parallelism)
    assert key_groups_hasher(("string",), max_parallelism)(keys) == list(map(hash_key, keys))
    pairs = [(key, number) for number, key in enumerate(keys)]
    of_pairs = key_group_hasher(["string", "bigint"], max_parallelism)
    assert key_groups_hasher(("string", "bigint"), max_parallelism)(pairs) == list(map(of_pairs, pairs))


def test_a_key_of_another_type_among_many_is_reported() -> None:
    with pytest.raises(KeyHashError, match="key column 0 is of type string, which cannot hold 3"):
        key_groups_hasher(("string",), 128)(["a", None, 3])
