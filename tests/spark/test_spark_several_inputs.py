"""Operators with two, three and broadcast inputs on Spark: one shuffle, ordered inputs, kills, rescaling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import several_inputs
from json_source import add_file
from several_inputs import LEFT, RIGHT, RULES, EpochInputs, InRow, Merge, as_left, as_right, as_rule, build, modelled
from spark_job_fixture import crashing_once, memory_sink, pickled_by_value, rows_of

from statebackend import JobDefinitionError
from statebackend.streaming.stream_graph import BroadcastInput, KeyedInput, SourceNode, StreamEdge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SOURCES = (("left", LEFT, as_left), ("right", RIGHT, as_right), ("rules", RULES, as_rule))

EPOCHS = [
    EpochInputs(
        left=[InRow("abcde"[n % 5], 100 - n, n) for n in range(9)],
        right=[InRow("abcdx"[n % 5], n, 2 * n) for n in range(7)],
        rules=[InRow("rst"[n % 3], n, 3 * n) for n in range(6)],
    ),
    # This epoch has no keyed records, but the rules must reach every subtask.
    EpochInputs(rules=[InRow("rs"[n % 2], n, 5 - 2 * n) for n in range(5)]),
    EpochInputs(left=[InRow(key, 1, 5) for key in "abcdefgh"], right=[InRow("h", 1, 1)]),
    EpochInputs(right=[InRow("a", n, n) for n in range(4)], rules=[InRow("u", 1, 1)]),
    EpochInputs(left=[InRow(key, 2, 5) for key in "hgfedcba"], rules=[InRow("t", 1, -1)]),
]


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    with pickled_by_value(several_inputs):
        yield


class Job:
    """Three sources that grow by one file per epoch, and the job over them."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.sinks: list[Any] = [memory_sink() for _ in range(4)]
        self.written = 0
        for name, *_ in SOURCES:
            (directory / name).mkdir()

    def add(self, epochs: Sequence[EpochInputs]) -> None:
        """Add one file per epoch to each source."""
        for epoch in epochs:
            for (name, _, as_record), rows in zip(SOURCES, epoch, strict=True):
                add_file(self.directory / name, self.written, map(as_record, rows))
            self.written += 1

    def run(self, job: str, parallelism: int, **execute: Any) -> Any:
        """Run until every file is processed."""
        from statebackend.spark import SparkStreamEnvironment

        env = SparkStreamEnvironment(
            self.spark,
            job_dir=self.directory / job,
            local_state_directory=self.directory / "local",
            parallelism=parallelism,
            max_parallelism=16,
            backend="rocksdb",
        )
        reader = self.spark.readStream.option("maxFilesPerTrigger", 1)
        streams = [
            env.from_dataframe(reader.schema(schema).json(str(self.directory / name)), uid=name)
            for name, schema, _ in SOURCES
        ]
        build(*streams, self.sinks)
        running = env.execute("several inputs", trigger={"availableNow": True}, **execute)
        running.await_termination()
        return running

    def results(self) -> tuple[list[Any], ...]:
        return tuple(map(rows_of, self.sinks))


@pytest.mark.extended
def test_inputs_are_joined_by_key_and_rules_reach_every_subtask_across_a_kill_and_a_rescale(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = Job(spark, tmp_path)
    job.add(EPOCHS[:3])
    whole = job.sinks[1]
    job.sinks[1] = crashing_once(whole, "stage", 1)
    with pytest.raises(BaseException, match="the driver dies at stage of epoch 1"):
        job.run("first", 2)
    job.sinks[1] = whole
    running = job.run("first", 2)
    assert job.results() == modelled(EPOCHS[:3])
    running.savepoint(tmp_path / "savepoint")
    job.add(EPOCHS[3:])
    job.run("second", 3, from_savepoint=tmp_path / "savepoint")
    assert job.results() == modelled(EPOCHS)


def test_keys_of_different_types_are_rejected_with_both_inputs_and_types(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark import SparkStreamEnvironment

    env = SparkStreamEnvironment(spark, job_dir=tmp_path / "job", parallelism=2)
    left, right = (
        env.from_dataframe(spark.readStream.schema(schema).json(str(tmp_path)), uid=schema)
        for schema in ("k bigint", "who string")
    )
    merged = left.connect(right).key_by("k", "who").process(Merge(), uid="merge", schema="k string")
    merged.sink_to(memory_sink())
    message = "'merge': the key of its first input has the type bigint, and the key of its second input has string"
    with pytest.raises(JobDefinitionError, match=message):
        env.execute("rejected", trigger={"availableNow": True})
    assert not (tmp_path / "job").exists()


@pytest.mark.extended
def test_rows_are_sorted_broadcast_first_then_by_input_and_as_configured_in_any_direction(
    spark: SparkSession,
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark.plans.event_time_column import TimeOfOperator
    from statebackend.spark.plans.operator_plan import InputUnion, prepare_input
    from statebackend.spark.tasks.arrow_rows import SUBTASK_COLUMN

    # A column name with a dot, a key expression, and a column that both inputs have, with different types.
    first = spark.createDataFrame([("a", None), ("b", 1), ("c", 3), ("d", 2)], "k string, `a.t` int")
    second = spark.createDataFrame([(n, n % 3) for n in range(7)], "k int, t int")
    edge = StreamEdge(SourceNode(None))
    given = (
        KeyedInput(edge, (F.upper("k"),), (F.col("`a.t`").desc_nulls_first(),)),
        BroadcastInput(edge, (F.col("t").desc(), "k")),
    )
    frames: list[DataFrame] = [first, second]
    inputs = [
        prepare_input(frame.where("false"), one, "both", TimeOfOperator(), 3, 16)
        for frame, one in zip(frames, given, strict=True)
    ]
    union = InputUnion(inputs, [frame.where("false") for frame in frames], (1, 0))
    rows = union.order.sorted_within_partitions(union.of(frames).repartitionById(3, union.subtask))
    columns = rows.select(*union.task_columns).collect()
    of_first = [row[2].k for subtask in range(3) for row in columns if row[SUBTASK_COLUMN] == subtask and row[0] == 0]
    assert sorted(of_first) == ["a", "b", "c", "d"]
    for subtask in range(3):
        own = [row for row in columns if row[SUBTASK_COLUMN] == subtask]
        assert [row[0] for row in own] == sorted((row[0] for row in own), reverse=True)
        keyed = [row[2]["a.t"] for row in own if row[0] == 0]
        assert keyed == sorted(keyed, key=lambda t: (t is not None, -(t or 0)))
        assert [(row[3].t, row[3].k) for row in own if row[0] == 1] == [
            (2, 2), (2, 5), (1, 1), (1, 4), (0, 0), (0, 3), (0, 6),
        ]  # fmt: skip
    # A stream connected to itself.
    twice = InputUnion([inputs[0], inputs[0]], [first, first], (0, 1))
    assert sorted(row[0] for row in twice.of([first, first]).collect()) == [0] * 4 + [1] * 4
