"""Spark jobs with several sources: each continues at its position when others are added or removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chain_runner import pickled_by_value
from json_source import add_file
from spark_job_fixture import crashing_once, memory_sink

from statebackend import (
    EpochError,
    JobDefinitionError,
    JobRestoreError,
    KeyedProcessFunction,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from statebackend.checkpoint.store.savepoint_directory import read_savepoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Count(KeyedProcessFunction[str, Any, Any]):
    """Emits the record and the record count of its source."""

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        yield value["source"], value["number"], self.count.value()


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    with pickled_by_value(__name__):
        yield


class Place:
    """Sources with one file per record, ``rate`` with two records per run, and jobs over any of them."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory

    def grow(self, **sources: int) -> None:
        """Let each source have this many records in total."""
        for name, records in sources.items():
            directory = self.directory / name
            directory.mkdir(exist_ok=True)
            for number in range(len(list(directory.iterdir())), records):
                add_file(directory, number, [{"source": name, "number": number, "at": 1000 * number}])

    columns = "source string, number int, at bigint"

    def stream(self, name: str) -> DataFrame:
        if name == "rate":
            rate = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2)
            rows = rate.option("startTimestamp", 0).option("advanceMillisPerBatch", 1).load()
            return rows.selectExpr("'rate' AS source", "CAST(value AS INT) AS number", "value AS at")
        files = self.spark.readStream.schema(self.columns).option("maxFilesPerTrigger", 1)
        return files.json(str(self.directory / name))

    def execute(self, sources: Sequence[str | tuple[str, str | None]], sink: Any, job: str, **execute: Any) -> Any:
        """Start a job over sources: names, which are also the uids, or names with uids."""
        from statebackend.spark import SparkStreamEnvironment

        environment = SparkStreamEnvironment(
            self.spark,
            job_dir=self.directory / job,
            local_state_directory=self.directory / "local",
            backend="heap",
            parallelism=1,
            max_parallelism=4,
        )
        strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
        streams = [
            environment.from_dataframe(self.stream(name), uid=uid).assign_timestamps_and_watermarks(strategy)
            for name, uid in ((one, one) if isinstance(one, str) else one for one in sources)
        ]
        united = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
        counted = united.key_by("source").process(Count(), uid="count", schema="source string, number int, count int")
        counted.sink_to(sink)
        return environment.execute("count", trigger={"availableNow": True}, **execute)

    def run(
        self, sources: Sequence[str | tuple[str, str | None]], job: str = "job", sink: Any = None, **execute: Any
    ) -> dict[str, list[tuple[int, int]]]:
        """Run a job to the end of its sources. Return the numbers and counts of each source."""
        sink = memory_sink() if sink is None else sink
        self.job = self.execute(sources, sink, job, **execute)
        self.job.await_termination()
        read: dict[str, list[tuple[int, int]]] = {}
        for source, number, count in sorted(map(tuple, sink.rows)):
            read.setdefault(source, []).append((number, count))
        return read


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def first(records: int) -> list[tuple[int, int]]:
    """The output of a source that is read from its start, without former counts."""
    return [(number, number + 1) for number in range(records)]


@pytest.mark.extended
def test_sources_are_added_removed_and_reordered_in_a_job_directory(place: Place) -> None:
    place.grow(a=2, b=3)
    assert place.run(["a", "b"]) == {"a": first(2), "b": first(3)}
    place.grow(a=3, c=2)
    assert place.run(["a", "b"]) == {"a": [(2, 3)]}
    watermarks = place.job.watermarks()
    place.grow(b=4)
    assert place.run(["c", "b", "a"]) == {"c": first(2), "b": [(3, 4)]}
    # The watermarks moved with the sources, and the new source does not set them back.
    assert place.job.watermarks()["count"] >= watermarks["count"] > 0
    place.grow(a=4, b=5, c=3)
    with pytest.raises(JobRestoreError, match=r"has read the source 'a' .*allow_dropped_sources=\['a'\]"):
        place.run(["b", "c"])
    assert place.run(["b", "c"], allow_dropped_sources=["a"]) == {"b": [(4, 5)], "c": [(2, 3)]}
    # A source that was dropped and added again is read from its start, but its state was kept.
    assert place.run(["a", "b", "c"], allow_dropped_sources=["z"]) == {"a": [(0, 4), (1, 5), (2, 6), (3, 7)]}
    assert {path.name for path in (place.directory / "job" / "set-aside").iterdir()} == {
        "spark-1",
        "spark-2",
        "spark-3",
    }


@pytest.mark.extended
def test_a_lone_source_without_a_uid_is_claimed_by_its_default_uid(place: Place) -> None:
    place.grow(a=2, b=1)
    assert place.run([("a", None)]) == {"a": first(2)}
    watermarks = place.job.watermarks()
    place.grow(a=3)
    with pytest.raises(JobRestoreError, match=r"has read the source 'source' .*uid='source'"):
        place.run(["a", "b"])
    assert place.run([("a", "source"), "b"]) == {"a": [(2, 3)], "b": first(1)}
    assert place.job.watermarks()["count"] >= watermarks["count"] > 0


@pytest.mark.parametrize("moment", ["stage", "commit"])
@pytest.mark.extended
def test_a_failed_epoch_is_replayed_by_a_job_with_other_sources(place: Place, moment: str) -> None:
    place.grow(a=2, b=2, c=1)
    crashing = crashing_once(memory_sink(), moment, 1)
    with pytest.raises((EpochError, KeyboardInterrupt), match="the driver dies"):
        place.run(["a", "b"], sink=crashing)
    planned = (place.directory / "job" / "spark" / "offsets" / "1").read_text().split("\n")
    place.grow(a=3)
    replayed = [(1, 2)] if moment == "stage" else []
    expected = {"a": [*replayed, (2, 3)], "b": replayed, "c": first(1)}
    assert place.run(["b", "c", "a"]) == {source: read for source, read in expected.items() if read}
    offsets = (place.directory / "job" / "spark" / "offsets" / "1").read_text().split("\n")
    assert offsets == [*planned[:2], planned[3], "-", planned[2]]


def test_a_savepoint_continues_in_each_source_by_its_uid(place: Place) -> None:
    place.grow(a=2, b=1)
    assert place.run(["a", "rate", ("b", "files")]) == {"a": first(2), "rate": first(2), "b": first(1)}
    path = place.directory / "savepoint"
    place.job.savepoint(path)
    _, metadata = read_savepoint(path)
    assert metadata.source_positions is not None
    assert [(one.uid, one.log) for one in metadata.source_positions.sources or ()] == [
        ("a", "0"),
        ("rate", "1"),
        ("files", "2"),
    ]
    place.grow(a=3, b=2, c=1)
    read = place.run(["c", ("b", "files"), "a", "rate"], "moved", from_savepoint=path)
    assert read == {"a": [(2, 3)], "b": [(1, 2)], "c": first(1), "rate": [(2, 3), (3, 4)]}
    # A savepoint of the moved job stores its positions in the new order.
    place.job.savepoint(place.directory / "again")
    read = place.run(
        ["a", ("b", "files"), "c"], "back", from_savepoint=place.directory / "again", allow_dropped_sources=["rate"]
    )
    assert read == {}
    another = {"from_savepoint": path, "allow_dropped_sources": ["rate"]}
    with pytest.raises(
        JobRestoreError, match=r"'files' of the job reads .*/c\], .* has read .*/b\]: .*\{'files': False\}"
    ):
        place.run([("c", "files"), "a"], "other", **another)
    with pytest.raises(JobDefinitionError, match="'b': False; it takes True or False for a source of the job"):
        place.run([("c", "files"), "a"], "other", restore_source_progress={"b": False}, **another)
    read = place.run([("c", "files"), "a"], "other", restore_source_progress={"files": False}, **another)
    assert read == {"a": [(2, 3)], "c": first(1)}
    assert place.run(["a"], "all again", from_savepoint=path, restore_source_progress=False) == {
        "a": [(0, 3), (1, 4), (2, 5)]
    }


@pytest.mark.extended
def test_a_roll_back_crosses_a_change_of_sources(place: Place) -> None:
    place.grow(a=2, b=2)
    place.run(["a", "b"])
    place.grow(c=1, a=3)
    assert place.run(["c", "a", "b"]) == {"a": [(2, 3)], "c": first(1)}
    # The first epoch read one record of each of the two sources.
    read = place.run(["b", "c", "a"], roll_back_to=0)
    assert read == {"a": [(1, 2), (2, 3)], "b": [(1, 2)], "c": first(1)}
    assert place.job.roll_back_report is not None
    assert place.job.roll_back_report.abandoned == (1, 2)


@pytest.mark.extended
def test_a_source_with_incompatible_columns_is_rejected_before_the_start(place: Place) -> None:
    place.grow(a=2)
    assert place.run(["a"]) == {"a": first(2)}
    place.job.savepoint(place.directory / "savepoint")
    place.columns = "source string, number string, at bigint"
    place.grow(a=3)
    for job, execute in (("job", {}), ("new", {"from_savepoint": place.directory / "savepoint"})):
        with pytest.raises(
            JobRestoreError, match=r"'a' of the job, .*: number was integer and is string.*_progress=False"
        ) as rejected:
            place.run(["a"], job, **execute)
        assert "\n" not in str(rejected.value)
    assert not (place.directory / "new" / "spark").exists()
    place.columns = "at bigint, gate string, source string, number int"
    assert place.run(["a"]) == {"a": [(2, 3)]}
    assert place.run(["a"], "new", from_savepoint=place.directory / "savepoint") == {"a": [(2, 3)]}
    # A column that no record has had may be removed again.
    place.columns = "source string, number bigint, at bigint"
    place.grow(a=4)
    assert place.run(["a"]) == {"a": [(3, 4)]}


def test_one_frame_in_two_sources_is_read_once(place: Place) -> None:
    from statebackend.spark.sources.source_identity import read_sources

    frame, other = place.stream("rate"), place.stream("rate")
    both = [frame.where("number > 5"), frame.where("number < 5"), other.union(frame)]

    class Graph:
        source_uids = ("large", "small", "both")
        sources = tuple(type("Source", (), {"source": one}) for one in both)

    graph: Any = Graph()
    found = read_sources(graph, both[0].union(both[1]).union(both[2]))
    assert [(one.uid, one.log) for one in found] == [("large", "0"), ("small", "0"), ("both", "1"), ("both", "0")]
    assert {one.name for one in found} == {found[0].name}
