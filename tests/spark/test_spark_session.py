"""Every partition runs its task in every batch, and tasks have an identity."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from attrs import astuple
from pyspark.sql.types import StructType

from statebackend.spark.plans.map_in_arrow import map_in_arrow
from statebackend.spark.session import (
    UnsupportedSparkSessionError,
    UnsupportedSparkVersionError,
    check_classic_session,
    check_spark_version,
    configured,
    disable_adaptive,
    end_with_program,
    ensure_python_interpreter,
    task_identity,
)
from statebackend.streaming.errors import StreamJobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ADAPTIVE = "spark.sql.adaptive.enabled"
EXCLUDED = "spark.sql.optimizer.excludedRules"


def test_the_python_of_the_workers_is_this_one_unless_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/chosen/python")
    ensure_python_interpreter()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == "/chosen/python"


class Context:
    def __init__(self, master: str) -> None:
        self.master = master


class Session:
    def __init__(self, context: Context) -> None:
        self.sparkContext = context

    def stop(self) -> None: ...


def test_a_session_with_its_own_workers_is_stopped_once_when_the_program_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered: list[Any] = []
    monkeypatch.setattr("atexit.register", registered.append)
    cluster: Any = Session(Context("local-cluster[2,1,1024]"))
    others: list[Any] = [Session(Context(master)) for master in ("local[2]", "spark://host:7077")]
    for session in (cluster, cluster, *others):
        end_with_program(session)
    assert registered == [cluster.stop]


@pytest.mark.spark
@pytest.mark.parametrize(("chosen", "expected"), [("python3", sys.executable), ("/chosen/python", "/chosen/python")])
def test_an_existing_session_uses_this_python_unless_configured(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, chosen: str, expected: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", chosen)
    ensure_python_interpreter(spark)
    assert spark.sparkContext.pythonExec == expected


def test_a_spark_connect_session_is_rejected_with_advice() -> None:
    # The real class needs a server. It is recognised by its module, so a class with that module is enough.
    connected = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(UnsupportedSparkSessionError, match=r"Spark Connect.*spark-submit"):
        check_classic_session(connected)
    with pytest.raises(UnsupportedSparkSessionError, match=r"not builtins\.str"):
        check_classic_session("local")


@pytest.mark.parametrize("version", ["4.1.0", "4.3.0.dev1", "10.0"])
def test_a_spark_that_routes_by_id_is_accepted(version: str) -> None:
    check_spark_version(version)


@pytest.mark.parametrize("version", ["3.5.4", "4.0.1", "unknown"])
def test_an_older_spark_is_rejected_with_the_version_to_install(version: str) -> None:
    with pytest.raises(UnsupportedSparkVersionError, match=rf"Spark {version} is too old.*pyspark>=4\.1"):
        check_spark_version(version)


def test_a_task_identity_exists_in_tasks_only() -> None:
    with pytest.raises(StreamJobError, match="outside of a Spark task"):
        task_identity()


@pytest.mark.spark
def test_settings_apply_within_the_block_and_are_reverted_after_an_error(spark: SparkSession) -> None:
    check_spark_version(spark)
    before = spark.conf.get(ADAPTIVE)
    with configured(spark, {EXCLUDED: "some.Rule"}):
        with suppress(ZeroDivisionError), disable_adaptive(spark):
            assert spark.conf.get(ADAPTIVE) == "false"
            assert spark.conf.get(EXCLUDED).startswith("some.Rule,")
            raise ZeroDivisionError
        assert spark.conf.get(EXCLUDED) == "some.Rule"
    assert spark.conf.get(ADAPTIVE) == before
    assert spark.conf.get(EXCLUDED, None) is None


def partition_of_each_task(frame: DataFrame) -> list[int]:
    """The partitions that ran a task over `frame`, which is routed to four partitions by id."""

    def report(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"partition": [task_identity().partition_id]})

    routed = frame.repartitionById(4, frame.id.cast("int"))
    reported = map_in_arrow(routed, report, StructType.fromDDL("partition bigint"))
    return sorted(row.partition for row in reported.collect())


def is_broadcast_join_of_nothing(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return frame.join(F.broadcast(frame.where("id > 100")), "id")


INPUTS: dict[str, Callable[[Any], Any]] = {
    "rows in one partition": lambda frame: frame.where("id = 2"),
    "no rows": lambda frame: frame.where("id < 0"),
    "known to be empty": lambda frame: frame.where("false"),
    "limit 0": lambda frame: frame.limit(0),
    "empty aggregation": lambda frame: frame.where("id < 0").groupBy("id").count(),
    "empty join": lambda frame: frame.where("id < 0").join(frame.where("id > 100"), "id"),
    "empty broadcast join": is_broadcast_join_of_nothing,
    "empty union": lambda frame: frame.where("id < 0").distinct().union(frame.where("id > 100").distinct()),
}


@pytest.mark.extended
@pytest.mark.spark
def test_every_partition_runs_in_a_micro_batch_for_any_rows(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(10).coalesce(1).write.parquet(str(tmp_path / "in"))
    ran: dict[str, list[int]] = {}
    dropped: list[int] = []
    identities: list[tuple[Any, ...]] = []

    def report_identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        identity = task_identity()
        yield pa.RecordBatch.from_pydict({"identity": [repr((*astuple(identity), identity.attempt_id))]})

    def each(frame: DataFrame, batch: int) -> None:
        dropped.extend(partition_of_each_task(INPUTS["limit 0"](frame)))
        with disable_adaptive(frame.sparkSession):
            for name, make in INPUTS.items():
                ran[name] = partition_of_each_task(make(frame))
            reported = map_in_arrow(frame.repartition(2), report_identity, StructType.fromDDL("identity string"))
            identities.extend(eval(row.identity) for row in reported.collect())

    query = (
        spark.readStream.schema("id bigint")
        .parquet(str(tmp_path / "in"))
        .writeStream.foreachBatch(each)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.awaitTermination()

    assert ran == {name: [0, 1, 2, 3] for name in INPUTS}
    assert dropped == [], "Spark keeps empty partitions by itself now: disable_adaptive is no longer needed"
    assert [identity[0] for identity in identities] == [0, 1]
    assert {identity[4:7] for identity in identities} == {(0, str(query.id), str(query.runId))}
    assert len({identity[7] for identity in identities}) == 2


@pytest.mark.spark
def test_outside_of_a_query_a_task_has_no_batch(spark: SparkSession) -> None:
    (identity,) = spark.sparkContext.parallelize([0], 1).map(lambda _: task_identity()).collect()
    assert (identity.partition_id, identity.attempt_number) == (0, 0)
    assert (identity.batch_id, identity.query_id, identity.run_id) == (None, None, None)
