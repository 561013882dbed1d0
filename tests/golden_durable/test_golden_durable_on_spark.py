"""Jobs on Spark continue from the savepoint and the job directory of an earlier release."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import golden_durable_spark as words
import pytest

from statebackend.checkpoint import CheckpointKind, read_savepoint
from statebackend.local import LocalStreamEnvironment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent.parent / "golden" / "durable"
SAVEPOINTS = ["v1"]

# The stored state of each word before the first new number, in the schemas of versions 1 and 2 of the program.
ADA = {
    1: ["VisitV1", "port of ada", 2, "RED", ["BerthV1", "quay 2", 5], ["ada", "ada"], "note 2"],
    2: ["VisitV2", "port of ada", "RED", 2.0, ["BerthV2", 5.0], ["ada", "ada"], "nobody"],
}
BOB = {
    1: ["VisitV1", "port of bob", 8, "RED", ["BerthV1", "quay 8", 11], ["bob", "bob"], "note 8"],
    2: ["VisitV2", "port of bob", "RED", 8.0, ["BerthV2", 11.0], ["bob", "bob"], "nobody"],
}
SEEN = ["ada 1", "ada 2", "ada 7", "bob 2", "bob 8", "cyd 3", "dan 4", "eve 5", "gus 10"]


def kept(version: int) -> dict[str, Any]:
    return {
        "ada": {"last": ADA[version], "numbers": [1, 7, 2], "halves": {"1": 0.5, "2": None, "7": 3.5}},
        "bob": {"last": BOB[version], "numbers": [2, 8], "halves": {"2": None, "8": 4.0}},
        "lou": {"last": None, "numbers": [], "halves": {}},
    }


@pytest.fixture
def directory(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A directory with the former source and one more file."""
    from statebackend.spark.session import configured

    for index, rows in enumerate([*words.BATCHES, words.MORE]):
        words.add_file(tmp_path / "source", index, rows)
    with configured(spark, words.mounted(tmp_path / "source")), words.pickled_by_value():
        yield tmp_path


def found_by(spark: SparkSession, directory: Path, version: int, **execute: Any) -> dict[str, Any]:
    """The output of the job by word: exactly the new file, once."""
    from statebackend.spark.frame_sinks import MemorySink

    sink = MemorySink()
    words.start(spark, directory, sink, version, **execute).await_termination()
    assert len(sink.rows) == len(words.MORE)
    return {row.word: json.loads(row.found) for row in sink.rows}


@pytest.mark.extended_after(1)
@pytest.mark.spark
@pytest.mark.parametrize(("written_as", "version"), [("v1", 1), ("v1", 2)])
def test_a_job_on_spark_starts_from_a_savepoint_and_continues_at_its_source_position(
    spark: SparkSession, directory: Path, written_as: str, version: int
) -> None:
    savepoint = shutil.copytree(GOLDEN / written_as / "spark-savepoint", directory / "savepoint")
    assert found_by(spark, directory, version, from_savepoint=savepoint) == kept(version)


@pytest.mark.spark
@pytest.mark.parametrize("written_as", ["v1"])
def test_a_job_directory_on_spark_continues(spark: SparkSession, directory: Path, written_as: str) -> None:
    shutil.copytree(GOLDEN / written_as / "spark-job", directory / "job")
    assert found_by(spark, directory, 1) == kept(1)


@pytest.mark.spark
def test_an_epoch_completed_before_the_driver_died_is_committed_and_not_processed_again(
    spark: SparkSession, directory: Path
) -> None:
    job_dir = Path(shutil.copytree(GOLDEN / "v1" / "spark-job", directory / "job"))
    for name in ("2", ".2.crc"):
        (job_dir / "spark" / "commits" / name).unlink()
    assert found_by(spark, directory, 1) == kept(1)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("parallelism", [1, 5])
@pytest.mark.parametrize("written_as", SAVEPOINTS)
def test_a_savepoint_from_spark_is_restored_without_it(
    tmp_path: Path, written_as: str, parallelism: int, backend: str
) -> None:
    savepoint = shutil.copytree(GOLDEN / written_as / "spark-savepoint", tmp_path / "savepoint")
    function = words.Keep(1)
    environment = LocalStreamEnvironment(backend=backend, parallelism=parallelism, max_parallelism=16)
    found: list[Any] = []
    elements = environment.from_elements([{"word": word, "number": number} for word, number in words.MORE])
    elements.key_by("word").process(function, uid="words", name="words", schema=words.OUT_SCHEMA).sink_to(found)
    environment.execute("golden words", from_savepoint=savepoint)
    assert {word: json.loads(text) for word, text in found} == kept(1)
    seen = [one for subtask in function.collected.operator_state.values() for one in subtask["seen"]]
    assert sorted(seen) == SEEN


@pytest.mark.parametrize("written_as", SAVEPOINTS)
def test_the_metadata_of_a_savepoint_from_spark_is_as_expected(written_as: str) -> None:
    _, one = read_savepoint(GOLDEN / written_as / "spark-savepoint")
    assert (one.kind, one.checkpoint_id, one.job_name) == (CheckpointKind.SAVEPOINT, 2, "golden words")
    assert one.source_positions is not None
    assert one.source_positions.sources is not None
    assert [source.name for source in one.source_positions.sources] == [f"FileSource[{words.SOURCE}]"]
    assert json.loads(one.source_offsets.decode().splitlines()[-1]) == {"logOffset": 2}
