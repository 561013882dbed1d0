"""Our jobs continue Spark queries from their checkpoints, by a plan and a savepoint."""

from __future__ import annotations

import datetime
import importlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import pytest
from json_source import add_file
from spark_job_fixture import memory_sink, pickled_by_value, rows_of

from statebackend import (
    EventTimeSessionWindows,
    KeyedProcessFunction,
    OnTimerContext,
    ProcessContext,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)
from statebackend.savepoint.errors import ForeignFormatError, PlanError, SavepointError, UnsupportedForeignStateError
from statebackend.savepoint.rewrite.plan import Plan
from statebackend.savepoint.savepoint import Savepoint
from statebackend.streaming.errors import JobRestoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_STATES = "org.apache.spark.sql.execution.streaming.state"
ROCKSDB = f"{_STATES}.RocksDBStateStoreProvider"
HDFS = f"{_STATES}.HDFSBackedStateStoreProvider"
COUNTED = "k string, start bigint, `end` bigint, n bigint"

Row = tuple[str, int]


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    with pickled_by_value(sys.modules[__name__]):
        yield


class Query:
    """A query whose source grows by one file per batch, and its checkpoint directory."""

    def __init__(self, spark: SparkSession, directory: Path, provider: str = ROCKSDB) -> None:
        self.spark = spark
        self.directory = directory
        self.provider = provider
        self.checkpoint = directory / "checkpoint"
        self.rows: list[tuple[Any, ...]] = []

    def add(self, *batches: Sequence[Row]) -> None:
        source = self.directory / "source"
        source.mkdir(exist_ok=True)
        for number, rows in enumerate(batches, start=len(list(source.iterdir()))):
            add_file(source, number, ({"k": k, "t": t} for k, t in rows))

    def stream(self) -> DataFrame:
        frame = self.spark.readStream.schema("k string, t bigint").option("maxFilesPerTrigger", 1)
        timed = frame.json(str(self.directory / "source")).selectExpr("k", "t", "timestamp_millis(t) AS ts")
        return timed.withWatermark("ts", "5 seconds")

    def run(self, frame: DataFrame, mode: Literal["append", "update"] = "append") -> None:
        """Run the query over the existing files."""
        from statebackend.spark.session import configured

        def take(rows: DataFrame, batch_id: int) -> None:
            self.rows.extend(map(tuple, rows.collect()))

        with configured(self.spark, {"spark.sql.streaming.stateStore.providerClass": self.provider}):
            writer = frame.writeStream.outputMode(mode).foreachBatch(take).trigger(availableNow=True)
            writer.option("checkpointLocation", str(self.checkpoint)).start().awaitTermination()

    def environment(self) -> Any:
        from statebackend.spark import SparkStreamEnvironment

        return SparkStreamEnvironment(
            self.spark,
            job_dir=self.directory / "job",
            local_state_directory=self.directory / "local",
            parallelism=2,
            max_parallelism=16,
        )


HALVES: list[list[list[Row]]] = [
    [[("a", 3_000), ("a", 9_999), ("b", 12_000)], [("a", 25_000), ("b", 26_000)]],
    # Records before 21 s are late, on Spark and here.
    [[("a", 19_999), ("a", 21_001), ("b", 29_999)], [("b", 34_999), ("c", 61_000)], [("a", 100_000)]],
]


@pytest.mark.parametrize(("window", "provider"), [("tumbling", HDFS), ("session", ROCKSDB)])
@pytest.mark.extended
def test_counts_by_window_continue_in_our_windows(
    spark: SparkSession, tmp_path: Path, window: str, provider: str
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark.foreign_state import SparkCheckpoint

    query = Query(spark, tmp_path, provider)

    def counted() -> DataFrame:
        by = F.window("ts", "10 seconds") if window == "tumbling" else F.session_window("ts", "10 seconds")
        counts = query.stream().groupBy(by.alias("w"), "k").count()
        return counts.selectExpr("k", "unix_millis(w.start)", "unix_millis(w.end)", "count")

    query.add(*HALVES[0])
    query.run(counted())
    half = shutil.copytree(query.checkpoint, tmp_path / "half")
    of_half = list(query.rows)
    query.add(*HALVES[1])
    query.run(counted())

    env = query.environment()
    windows: Any = TumblingEventTimeWindows.of("10 seconds")
    if window == "session":
        windows = EventTimeSessionWindows.with_gap("10 seconds")
    sink = memory_sink()
    env.from_dataframe(query.stream()).key_by("k").window(windows).count(uid="counts", schema=COUNTED).sink_to(sink)
    checkpoint = SparkCheckpoint(spark, half)
    assert checkpoint.watermark_ms == 21_000
    checkpoint.write(tmp_path / "savepoint", checkpoint.add_windows(Plan(), env, "counts"), max_parallelism=16)
    env.execute("counts", trigger={"availableNow": True}, from_savepoint=tmp_path / "savepoint").await_termination()

    assert of_half
    assert sorted(of_half + rows_of(sink)) == sorted(query.rows)
    assert ("b", 20_000, 30_000, 2) in rows_of(sink) or window == "session"


class Unique(KeyedProcessFunction[str, Any, Any]):
    """Emits the first record of each key."""

    seen = ValueStateDescriptor("seen", bool, default=False)

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int]]:
        if not self.seen.value():
            self.seen.update(True)
            yield value.k, value.t


class UniqueForAWhile(Unique):
    """Emits the first record of each key, and forgets the key five seconds of event time after it."""

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int]]:
        for row in super().process_element(value, context):
            context.timer_service.register_event_time_timer(value.t + 4_999)
            yield row

    def on_timer(self, timestamp_ms: int, context: OnTimerContext[str]) -> None:
        self.seen.clear()


def _expiries(checkpoint: Any) -> Iterator[tuple[str, int]]:
    return ((key, ms - 1) for key, ms in checkpoint.entries(lambda row: row.expiresAtMicros // 1000))


@pytest.mark.parametrize("within_watermark", [False, True])
@pytest.mark.extended
def test_duplicates_that_spark_has_seen_are_dropped_by_our_job(
    spark: SparkSession, tmp_path: Path, within_watermark: bool
) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    query = Query(spark, tmp_path, HDFS if within_watermark else ROCKSDB)

    def unique() -> DataFrame:
        rows = query.stream()
        return (rows.dropDuplicatesWithinWatermark(["k"]) if within_watermark else rows.dropDuplicates(["k"])).select(
            "k", "t"
        )

    query.add([("a", 1_000), ("b", 2_000), ("a", 3_000)], [("c", 9_000)])
    query.run(unique())
    half = shutil.copytree(query.checkpoint, tmp_path / "half")
    of_half = list(query.rows)
    query.add([("a", 9_001), ("c", 9_002), ("d", 10_000)], [("d", 11_000), ("c", 19_000)])
    # "c" expires at the watermark of this batch. Spark removes it after the batch's records.
    query.add([("e", 20_000)], [("c", 30_000)])
    query.run(unique())

    env = query.environment()
    function = UniqueForAWhile() if within_watermark else Unique()
    sink = memory_sink()
    env.from_dataframe(query.stream()).key_by("k").process(function, uid="unique", schema="k string, t bigint").sink_to(
        sink
    )
    checkpoint = SparkCheckpoint(spark, half)
    plan = Plan().add_operator("unique", checkpoint.key_columns())
    plan.add_state("unique", Unique.seen, checkpoint.entries("true"))
    if within_watermark:
        plan.add_timers("unique", _expiries(checkpoint), time="event")
    checkpoint.write(tmp_path / "savepoint", plan, max_parallelism=16)
    env.execute("unique", trigger={"availableNow": True}, from_savepoint=tmp_path / "savepoint").await_termination()

    assert of_half
    assert sorted(of_half + rows_of(sink)) == sorted(query.rows)
    assert (("c", 30_000) in query.rows) is within_watermark


class Total(KeyedProcessFunction[str, Any, Any]):
    """Counts all records, under one key."""

    count = ValueStateDescriptor("count", int, default=0)

    def process_element(self, record: Any, context: ProcessContext[str]) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        yield {"k": context.current_key, "t": self.count.value()}


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("provider", [HDFS, ROCKSDB])
def test_a_count_of_all_records_continues_under_a_constant_key(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    from pyspark.sql.functions import lit

    from statebackend.spark.foreign_state import SparkCheckpoint

    query = Query(spark, tmp_path, provider)

    def counted() -> DataFrame:
        return query.stream().groupBy().count()

    query.add([("a", 1_000), ("b", 2_000)], [("a", 3_000)])
    query.run(counted(), "update")
    half = shutil.copytree(query.checkpoint, tmp_path / "half")
    query.add([("c", 9_000)], [("a", 9_001), ("d", 10_000)])
    query.run(counted(), "update")

    env, sink = query.environment(), memory_sink()
    keyed = env.from_dataframe(query.stream()).key_by(lit("all"))
    keyed.process(Total(), uid="total", schema="k string, t bigint").sink_to(sink)
    checkpoint = SparkCheckpoint(spark, half)
    for without_key in (checkpoint.key_columns, lambda: checkpoint.entries("value.count")):
        with pytest.raises(PlanError, match=r"operator 0 \(stateStoreSave\) has no key columns.*key=\"'all'\""):
            without_key()
    assert list(checkpoint.entries(lambda row: row["count"], key="named_struct('a', 1, 'b', 'x')")) == [((1, "x"), 3)]
    assert checkpoint.key_columns(key="named_struct('a', 1, 'b', 'x')") == ("int", "string")
    plan = Plan().add_operator("total", checkpoint.key_columns(key="'all'"))
    plan.add_state("total", Total.count, checkpoint.entries("value.count", key="'all'"))
    checkpoint.write(tmp_path / "savepoint", plan, max_parallelism=16)
    env.execute("total", trigger={"availableNow": True}, from_savepoint=tmp_path / "savepoint").await_termination()

    assert query.rows[-1] == (6,)
    assert sorted(rows_of(sink)) == [("all", 4), ("all", 5), ("all", 6)]


@pytest.mark.extended
def test_windows_of_all_records_continue_under_a_constant_key(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark.foreign_state import SparkCheckpoint

    query = Query(spark, tmp_path)

    def counted() -> DataFrame:
        counts = query.stream().groupBy(F.window("ts", "10 seconds").alias("w")).count()
        return counts.selectExpr("unix_millis(w.start)", "unix_millis(w.end)", "count")

    query.add(*HALVES[0])
    query.run(counted())
    half = shutil.copytree(query.checkpoint, tmp_path / "half")
    of_half = list(query.rows)
    query.add(*HALVES[1])
    query.run(counted())

    env, sink = query.environment(), memory_sink()
    keyed = env.from_dataframe(query.stream()).key_by(F.lit("all"))
    keyed.window(TumblingEventTimeWindows.of("10 seconds")).count(uid="counts", schema=COUNTED).sink_to(sink)
    checkpoint = SparkCheckpoint(spark, half)
    with pytest.raises(PlanError, match="has no key columns"):
        checkpoint.add_windows(Plan(), env, "counts")
    plan = checkpoint.add_windows(Plan(), env, "counts", key="'all'")
    checkpoint.write(tmp_path / "savepoint", plan, max_parallelism=16)
    env.execute("counts", trigger={"availableNow": True}, from_savepoint=tmp_path / "savepoint").await_termination()

    assert of_half
    assert sorted(of_half + [row[1:] for row in rows_of(sink)]) == sorted(query.rows)


@pytest.mark.extended
def test_both_sides_of_a_join_are_tables(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark.foreign_state import SparkCheckpoint

    query = Query(spark, tmp_path, HDFS)
    query.add([("a", 1_000), ("b", 2_000)])
    left, right = query.stream(), query.stream().selectExpr("k AS k2", "ts AS ts2")
    query.run(left.join(right, F.expr("k = k2 AND ts2 BETWEEN ts AND ts + INTERVAL 1 MINUTE")))
    checkpoint = SparkCheckpoint(spark, query.checkpoint)
    assert checkpoint.operator().states == ("left", "right")
    assert sorted(row.value.k for row in checkpoint.rows(checkpoint.table("left"))) == ["a", "b"]
    assert sorted(row.value.k2 for row in checkpoint.rows(checkpoint.table("right"))) == ["a", "b"]
    with pytest.raises(PlanError, match=r"operator 0 \(symmetricHashJoin\) has no state None; it has 'left', 'right'"):
        checkpoint.table()


@pytest.fixture(scope="module")
def checkpoint_of_one_key(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a query with one record, for tests that copy it."""
    query = Query(spark, tmp_path_factory.mktemp("one_key"), HDFS)
    query.add([("a", 1_000)])
    query.run(query.stream().drop("ts").dropDuplicates(["k"]))
    return query.checkpoint


def _remove_offsets(directory: Path) -> None:
    (directory / "offsets" / "0").unlink()


def _cut_commit(directory: Path) -> None:
    (directory / "commits" / "0").write_text('v1\n{"nextBatch')


def _remove_commits(directory: Path) -> None:
    for path in (directory / "commits").iterdir():
        path.unlink()


def _remove_state(directory: Path) -> None:
    shutil.rmtree(directory / "state")


def _remove_operator_metadata(directory: Path) -> None:
    for metadata in list((directory / "state" / "0").rglob("_metadata")):
        shutil.rmtree(metadata)


def _remove_partition(directory: Path) -> None:
    shutil.rmtree(max((directory / "state" / "0").glob("[0-9]*")))


def _remove_everything(directory: Path) -> None:
    shutil.rmtree(directory)


def _flip_state(directory: Path) -> None:
    for path in (directory / "state").rglob("*.delta"):
        path.write_bytes(b"\x7f" * len(path.read_bytes()))
    for path in (directory / "state").rglob("*.crc"):
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            _remove_everything,
            "metadata is missing: .* is not a checkpoint directory of Spark. Pass the checkpointLocation",
        ),
        (_remove_offsets, "offsets/0 is missing"),
        (_cut_commit, "commits/0 is damaged: line 2 has no 'nextBatchWatermarkMs'"),
        (_remove_commits, "has no committed batch in commits: let the query complete a batch"),
        (_remove_state, "has no directory state: the query has no stateful operator"),
        (_remove_operator_metadata, "state/0 has neither metadata of its operator nor a schema of its state"),
        (_remove_partition, r"state/0/\d+ is missing: operator 0 \(dedupe\) has \d+ partitions. Restore the directory"),
        (_flip_state, r"state/0/\d+/1\.delta is damaged: byte 0 of its content: it is not compressed by"),
    ],
)
def test_a_damaged_checkpoint_is_an_error_that_names_the_file(
    spark: SparkSession, checkpoint_of_one_key: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    damaged = shutil.copytree(checkpoint_of_one_key, tmp_path / "damaged")
    damage(damaged)

    def move() -> None:
        checkpoint = SparkCheckpoint(spark, damaged)
        plan = Plan().add_operator("unique", "string")
        plan.add_state("unique", Unique.seen, checkpoint.entries(lambda row: True))
        checkpoint.write(tmp_path / "savepoint", plan)

    with pytest.raises(ForeignFormatError, match=message):
        move()
    assert not (tmp_path / "savepoint").exists() or not list((tmp_path / "savepoint").iterdir())


PLAN = """
from statebackend import ValueStateDescriptor
from statebackend.savepoint.rewrite import Plan

max_parallelism = 16

def plan(checkpoint):
    plan = Plan().add_operator("unique", checkpoint.key_columns())
    return plan.add_state("unique", ValueStateDescriptor("seen", bool, default=False), checkpoint.entries("true"))
"""

KILLED_BEFORE_METADATA = """
import os, signal

def killing(give_name):
    def kill_or_give(source, target, **options):
        if os.path.basename(target) == "_metadata":
            os.kill(os.getpid(), signal.SIGKILL)
        return give_name(source, target, **options)

    return kill_or_give

os.link, os.replace = killing(os.link), killing(os.replace)
"""


@pytest.mark.extended
def test_a_repeated_import_clears_what_a_killed_one_has_written(
    spark: SparkSession, checkpoint_of_one_key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statebackend.cli.main import main

    # monkeypatch removes this module after the test.
    monkeypatch.setitem(sys.modules, "statebackend_plan", ModuleType("statebackend_plan"))
    plan, killing, target = tmp_path / "plan.py", tmp_path / "killing.py", tmp_path / "savepoint"
    plan.write_text(PLAN)
    killing.write_text(KILLED_BEFORE_METADATA + PLAN)
    command = ["import", str(checkpoint_of_one_key), str(target), "--plan"]
    ended = subprocess.run([sys.executable, "-m", "statebackend", *command, str(killing)], capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    left = {path.name for path in target.rglob("*") if path.is_file()}
    assert "_in_progress" in left
    assert "_metadata" not in left
    assert len(left) > 2
    query = Query(spark, tmp_path)
    query.add([("a", 1_000)])
    env = query.environment()
    env.from_dataframe(query.stream()).key_by("k").process(Unique(), uid="unique", schema="k string, t bigint").sink_to(
        memory_sink()
    )
    with pytest.raises(SavepointError, match="savepoint"):
        env.execute("unique", trigger={"availableNow": True}, from_savepoint=target)
    assert not (tmp_path / "job").exists()

    assert main([*command, str(plan)]) == 0
    assert main(["import", str(checkpoint_of_one_key), str(tmp_path / "whole"), "--plan", str(plan)]) == 0
    assert [(one.key, one.value) for one in Savepoint.open(target).read("unique", "seen")] == [("a", True)]
    count = [sum(path.is_file() for path in one.rglob("*")) for one in (target, tmp_path / "whole")]
    assert count[0] == count[1]


def test_the_error_of_an_unreadable_state_names_directory_and_cause(
    spark: SparkSession, checkpoint_of_one_key: Path, tmp_path: Path
) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    checkpoint = SparkCheckpoint(spark, shutil.copytree(checkpoint_of_one_key, tmp_path / "damaged"))
    failing = spark.range(1).selectExpr("CAST(raise_error(concat('bad block ', id)) AS string) AS value")
    with pytest.raises(ForeignFormatError, match=r"cannot read its state at batch 0: .*bad block 0.*\. Restore"):
        list(checkpoint.rows(failing))
    [schema] = (tmp_path / "damaged" / "state" / "0").rglob("schema")
    schema.write_bytes(b"")
    with pytest.raises(ForeignFormatError, match=r"cannot read .*/damaged/state/0 \(dedupe\) at batch 0: \S"):
        checkpoint.table()


def test_an_operator_without_metadata_is_not_lost(
    spark: SparkSession, checkpoint_of_one_key: Path, tmp_path: Path
) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    damaged = shutil.copytree(checkpoint_of_one_key, tmp_path / "damaged")
    # Hadoop's checksum stays.
    (damaged / "state" / "0" / "_metadata" / "metadata").unlink()
    assert list(SparkCheckpoint(spark, damaged).entries(lambda row: True)) == [("a", True)]


@pytest.mark.extended
def test_the_state_of_a_limit_is_in_one_partition(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    query = Query(spark, tmp_path)
    query.add([("a", 1_000), ("b", 2_000)])
    query.run(query.stream().limit(5))
    checkpoint = SparkCheckpoint(spark, query.checkpoint)
    assert checkpoint.operator().partitions > 1
    assert [row.value.value for row in checkpoint.rows(checkpoint.table())] == [2]


@pytest.mark.extended
def test_a_key_column_named_window_is_part_of_the_key(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    query = Query(spark, tmp_path)
    query.add([("a", 1_000)])
    query.run(query.stream().drop("ts").withColumnRenamed("k", "window").dropDuplicates(["window"]))
    checkpoint = SparkCheckpoint(spark, query.checkpoint)
    assert checkpoint.key_columns() == ("string",)
    assert list(checkpoint.entries(lambda row: True)) == [("a", True)]


@pytest.mark.extended
def test_an_expression_yields_the_entries_of_a_function(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark.foreign_state import SparkCheckpoint

    query = Query(spark, tmp_path)
    query.add([("a", 1_000), ("a", 2_000), ("b", 3_000)])
    query.run(query.stream().groupBy("k", "ts").agg(F.sum("t").alias("total")).select("k", "total"))
    checkpoint = SparkCheckpoint(spark, query.checkpoint)

    def written(name: str, entries: Any) -> Any:
        plan = Plan().add_operator("sums", checkpoint.key_columns())
        checkpoint.write(tmp_path / name, plan.add_state("sums", ValueStateDescriptor("total", int), entries))
        return sorted((one.key, one.value) for one in Savepoint.open(tmp_path / name).read("sums", "total"))

    by_function = written("by_function", checkpoint.entries(lambda row: row.sum))
    utc = datetime.timezone.utc
    assert by_function == [
        ((k, datetime.datetime.fromtimestamp(second, utc)), second * 1000)
        for k, second in (("a", 1), ("a", 2), ("b", 3))
    ]
    assert written("by_expression", checkpoint.entries("value.sum")) == by_function
    capfd.readouterr()
    with pytest.raises(PlanError, match=r"Spark does not accept the expression 'value\.sums': .*sums"):
        checkpoint.entries("value.sums")
    with pytest.raises(PlanError, match=r"Spark does not accept the expression 'key\.x': .*x"):
        checkpoint.entries("value.sum", key="key.x")
    assert "AnalysisException" not in capfd.readouterr().err


def test_an_import_names_unsupported_parts(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    query = Query(spark, tmp_path)
    query.add([("a", 1_000)])
    query.run(query.stream().drop("ts").dropDuplicates(["k"]))
    checkpoint = SparkCheckpoint(spark, query.checkpoint)
    plan = Plan().add_operator("unique", "string")
    plan.add_state("unique", Unique.seen, checkpoint.entries(lambda row: True))
    with pytest.raises(PlanError, match=r"has read 1 sources, and the job reads 2 \(one, two\)"):
        checkpoint.write(tmp_path / "savepoint", plan, sources=["one", "two"])
    assert not (tmp_path / "savepoint").exists()
    env = query.environment()
    env.from_dataframe(query.stream()).key_by("k").process(Unique(), uid="unique", schema="k string, t bigint").sink_to(
        memory_sink()
    )
    with pytest.raises(PlanError, match="are not both aggregations by event-time windows"):
        checkpoint.add_windows(Plan(), env, "unique")
    with pytest.raises(UnsupportedForeignStateError, match="operator 0 is dedupe, and from_spark_checkpoint starts"):
        env.execute("unique", from_spark_checkpoint=query.checkpoint)
    assert not (tmp_path / "job").exists()
    written = checkpoint.write(tmp_path / "savepoint", plan, max_parallelism=16)
    assert written.rows == {"unique": {"seen": 1}}
    assert [(one.key, one.value) for one in Savepoint.open(tmp_path / "savepoint").read("unique", "seen")] == [
        ("a", True)
    ]
    env.execute("unique", trigger={"availableNow": True}, from_savepoint=tmp_path / "savepoint").await_termination()
    with pytest.raises(JobRestoreError, match=r"was not started from .*/checkpoint\. Start without"):
        env.execute("unique", from_spark_checkpoint=query.checkpoint)


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "move-a-spark-job.md").read_text()


@pytest.mark.extended
def test_the_tutorial_moves_its_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from statebackend.cli.main import main

    page = re.sub(r"/(?=(?:data|checkpoints|jobs|savepoints)/\w)", f"{tmp_path}/", PAGE)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    programs = {found[1]: one for one in blocks if (found := re.match(r"# (\w+\.py)\n", one))}
    assert set(programs) == {"orders.py", "job.py", "plan.py"}
    for name, program in programs.items():
        (tmp_path / name).write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("orders", "job", "statebackend_plan"):
        # monkeypatch removes these modules after the test.
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        del sys.modules[name]
    [look] = [one for one in blocks if "createOrReplaceTempView" in one]
    [start] = [one for one in blocks if one.startswith("build(spark)")]
    show, move = re.findall(r"\$ statebackend (.*)", page)

    counts, build = importlib.import_module("orders").counts, importlib.import_module("job").build
    rows: list[tuple[Any, ...]] = []

    def run_on_spark(checkpoint: Path) -> None:
        def take(frame: DataFrame, batch_id: int) -> None:
            rows.extend(map(tuple, frame.collect()))

        writer = counts(spark).writeStream.outputMode("append").foreachBatch(take).trigger(availableNow=True)
        writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()

    orders = tmp_path / "data" / "orders"
    add_file(orders, 0, [{"shop": shop, "at": f"2026-01-01T{at}:00"} for shop, at in [("a", "10:05"), ("b", "10:50")]])
    run_on_spark(tmp_path / "checkpoints" / "orders")
    shutil.copytree(tmp_path / "checkpoints" / "orders", tmp_path / "whole")
    of_half = list(rows)
    add_file(orders, 1, [{"shop": shop, "at": f"2026-01-01T{at}:00"} for shop, at in [("a", "10:55"), ("b", "13:00")]])
    add_file(orders, 2, [{"shop": "c", "at": "2026-01-01T15:30:00"}])
    run_on_spark(tmp_path / "whole")

    assert main(shlex.split(show)) == 0
    assert "count" in capsys.readouterr().out
    exec(compile(look, "look", "exec"), {"spark": spark})
    assert main(shlex.split(move)) == 0
    exec(compile(start, "start", "exec"), {"spark": spark, "build": build})
    ours = [
        tuple(row)
        for row in spark.read.parquet(str(tmp_path / "data" / "counts")).select("shop", "start", "stop", "n").collect()
    ]
    assert sorted(of_half + ours) == sorted(rows)
    assert sorted(row[3] for row in rows) == [1, 1, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("commits/0", "v3\n{}", "commits/0 has the version 'v3'; v1 and v2 can be read"),
        ("commits/0", "", "commits/0 has the version ''"),
        ("offsets/0", "v999999999\n{}", "offsets/0 has the version 'v999999999'"),
        ("offsets/0", "v1\n{}", "offsets/0 is damaged: line 2 has no 'batchWatermarkMs'"),
        ("offsets/0", 'v1\n{"batchWatermarkMs":"x"}', "its 'batchWatermarkMs' is not a number of milliseconds"),
        ("offsets/0", 'v1\n{"batchWatermarkMs":-5}', "its 'batchWatermarkMs' is not a number of milliseconds"),
        ("commits/0", 'v1\n{"nextBatchWatermarkMs":1' + "0" * 30 + "}", "its 'nextBatchWatermarkMs' is not a number"),
        ("commits/0", "v1\n" + "[" * 100_000, "commits/0 is damaged: line 2"),
        ("metadata", "[]", "metadata is damaged: line 1 has no 'id'"),
    ],
)
def test_hostile_logs_are_an_error_that_names_the_file(tmp_path: Path, name: str, content: str, message: str) -> None:
    from statebackend.spark.foreign_state import SparkCheckpoint

    files = {
        "metadata": '{"id":"q"}',
        "offsets/0": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n0',
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
        name: content,
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    no_session: Any = None
    with pytest.raises(ForeignFormatError, match=re.escape(message)):
        SparkCheckpoint(no_session, tmp_path)


def test_the_commands_reject_operations_that_a_spark_checkpoint_does_not_support(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from statebackend.cli.main import main
    from statebackend.cli.streams import MISUSED, NOT_READABLE

    for name in ("offsets", "commits"):
        (tmp_path / "query" / name).mkdir(parents=True)
        (tmp_path / "query" / name / "0").write_text("v1")
    (tmp_path / "query" / "metadata").write_text("{}")
    assert main(["inspect", str(tmp_path / "query")]) == NOT_READABLE
    assert "is the checkpoint directory of a query of Spark" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "query"), str(tmp_path / "new"), "--job", "job:build"]) == MISUSED
    assert "is a checkpoint of Spark: pass --plan" in capsys.readouterr().err.replace("\n", " ")
    # Options without effect are errors.
    for option in (["--allow-loss"], ["--scratch", str(tmp_path)], ["--moved", "/old=/new"]):
        assert main(["import", str(tmp_path / "query"), str(tmp_path / "new"), "--plan", "plan.py", *option]) == MISUSED
        assert "--moved, --allow-loss or --scratch" in " ".join(capsys.readouterr().err.split())
    for option in (["--where", "value.n>3"], ["--checkpoint", "7"], ["--zookeeper", "zoo:2181"], ["--moved", "/a=/b"]):
        assert main(["show", str(tmp_path / "query"), "0", "default", *option]) == MISUSED
        assert "only --limit and --json apply" in " ".join(capsys.readouterr().err.split())
