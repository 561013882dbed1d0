"""State that a real Spark session reads: columns, rows, filters, SQL, and errors."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from inspected_job import SALES
from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, LongType, StringType, TimestampType

from statebackend.spark.state_tables.source import register_state_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "state-tables.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """A separate session, so that registration settings stay in it."""
    session = spark.newSession()
    register_state_tables(session)
    return session


def table(session: SparkSession, path: Path, **options: Any) -> DataFrame:
    return session.read.format("statebackend").options(**options).load(str(path))


@pytest.mark.extended_after(1)
def test_state_of_every_kind_is_a_table_with_types(session: SparkSession, stored: Path) -> None:
    entries = {row.state: row.entries for row in table(session, stored, kind="metadata").collect()}
    totals = table(session, stored, state="totals")
    assert totals.schema["value"].dataType.simpleString() == "struct<sales:bigint,turnover:double,note:string>"
    amounts = table(session, stored, state="amounts")
    assert amounts.schema["value"].dataType == ArrayType(LongType())
    by_amount = table(session, stored, state="by amount")
    assert [field.dataType for field in by_amount.schema][1:] == [StringType(), LongType(), StringType()]
    timers = table(session, stored, kind="timers")
    assert timers.schema["timestamp"].dataType == TimestampType()
    assert [entries["totals"], entries["amounts"], entries["by amount"], len(SALES)] == [
        totals.count(),
        amounts.count(),
        by_amount.count(),
        timers.count(),
    ]


@pytest.mark.extended
def test_a_query_that_names_keys_reads_and_finds_them(session: SparkSession, stored: Path) -> None:
    by_amount = table(session, stored, state="by amount")
    found = by_amount.where("key IN ('shop 3', 'no shop') AND user_key > 30")
    assert sorted((row.key, row.user_key) for row in found.collect()) == [
        ("shop 3", 49),
        ("shop 3", 69),
        ("shop 3", 89),
    ]
    assert by_amount.where("key = 'no shop'").count() == 0
    assert by_amount.where("key_group < 0").collect() == []


@pytest.mark.extended
def test_a_state_joins_another_and_a_schema_can_omit_columns(session: SparkSession, savepoint: Path) -> None:
    table(session, savepoint, state="totals").createOrReplaceTempView("totals")
    table(session, savepoint, state="largest").createOrReplaceTempView("largest")
    rows = session.sql(
        "SELECT key, totals.value.sales, largest.value AS most FROM totals JOIN largest USING (key) ORDER BY key"
    ).collect()
    assert [(row["sales"], row["most"]) for row in rows if row["key"] == "shop 3"] == [(5, 89)]
    reader = session.read.format("statebackend").option("state", "totals")
    assert reader.schema("key_group int").load(str(savepoint)).count() == len(rows) == 20
    with pytest.raises(PySparkException, match="'key' is of type string, which cannot be read as bigint"):
        reader.schema("key bigint").load(str(savepoint)).collect()


def test_the_error_of_spark_names_the_cause(session: SparkSession, savepoint: Path) -> None:
    with pytest.raises(PySparkException, match="there is no option 'kinds' of a table of state; did you mean 'kind'"):
        table(session, savepoint, kinds="metadata")
    with pytest.raises(PySparkException, match="does not exist"):
        table(session, savepoint / "of another", kind="metadata")
    with pytest.raises(PySparkException, match="no keyed state 'total'; it has totals"):
        table(session, savepoint, state="total")


@pytest.mark.extended
def test_the_examples_of_the_page_run(session: SparkSession, savepoint: Path) -> None:
    names: dict[str, Any] = {"spark": session, "path": str(savepoint)}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(example, names)
    text = re.sub(r"[ |]+", " ", printed.getvalue())
    for line in ("shop 10 250.0", "per shop by amount map 100", "processing 100", "shop 3 294.0"):
        assert line in text, text


@pytest.mark.extended
def test_a_savepoint_of_flink_is_a_table(session: SparkSession) -> None:
    golden = Path(__file__).resolve().parents[2] / "golden" / "flink_savepoints" / "1.13.6-rocksdb-canonical"
    expected = json.loads((golden / "expected.json").read_text())
    keyed = expected["keyedOperators"]["golden-keyed"]
    pojos = table(session, golden / "savepoint", operator="golden-keyed", state="pojo")
    wanted = {entry["key"]: entry["value"]["fields"]["longField"] for entry in keyed["states"]["pojo"]["entries"]}
    assert {row.key: row.value.longField for row in pojos.collect()} == wanted
    # Flink assigned these keys to key groups with another hash.
    assert [row.value.boxedInt for row in pojos.where("key = 'key-098'").collect()] == [98]
    timers = table(session, golden / "savepoint", operator="golden-keyed", kind="timers")
    assert timers.count() == sum(map(len, keyed["timers"].values()))
    broadcast = table(session, golden / "savepoint", operator="golden-op", state="op-broadcast", kind="broadcast")
    [copy, _] = expected["operatorState"]["golden-op"]["states"]["op-broadcast"]["perSubtask"]
    assert sorted(map(list, broadcast.collect())) == sorted(copy["entries"])
