"""Restarts of jobs on Spark: what a directory remembers, replays, falling back, and what has changed in between."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_workplace import CountWords, DiesOnce, Workplace, memory_sink, rows_of, travelling_by_value

from checkpoint import CheckpointFileSystem, JobDirectory
from checkpoint.completed_checkpoint_store import CompletedCheckpointStore
from streamjobs import EpochError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def _by_value() -> Iterator[None]:
    with travelling_by_value(sys.modules[__name__]):
        yield


@pytest.fixture
def workplace(spark: SparkSession, tmp_path: Path, _by_value: None) -> Workplace:
    place = Workplace(spark, tmp_path)
    place.add_batch([("a", 1), ("b", 2), ("a", 3)])
    place.add_batch([("c", 5), ("a", 7)])
    return place


class Fails(CountWords):
    """Fails at every row."""

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        raise ArithmeticError("as it must")
        yield


def properties(workplace: Workplace, job: str = "job") -> dict[str, str]:
    newest = CompletedCheckpointStore.peek(CheckpointFileSystem.from_uri(workplace.directory / job))
    assert newest is not None
    return dict(newest.properties)


@pytest.mark.parametrize("restore_source_progress", [True, False])
def test_a_job_that_fails_in_its_first_epoch_keeps_the_state_of_its_savepoint(
    workplace: Workplace, restore_source_progress: bool
) -> None:
    savepoint = workplace.directory / "savepoint"
    workplace.run(memory_sink()).savepoint(savepoint)
    workplace.add_batch([("a", 100)])
    execute = {"from_savepoint": savepoint, "restore_source_progress": restore_source_progress}
    with pytest.raises(EpochError, match="as it must"):
        workplace.run(memory_sink(), Fails(), job="new", execute=execute)
    origin = JobDirectory.origin_of(str(workplace.directory / "new"))
    assert origin is not None
    assert (origin.savepoint_uri, origin.with_source_progress) == (str(savepoint), restore_source_progress)
    epoch_id = 2 if restore_source_progress else 0
    offsets = workplace.directory / "new" / "spark" / "offsets" / str(epoch_id)
    planned = offsets.read_bytes()
    sink = memory_sink()
    workplace.run(sink, job="new")
    # The first start is named nowhere, and goes on where it was: also with the batch that Spark had planned.
    assert offsets.read_bytes() == planned
    assert sorted(sink.rows_by_epoch) == ([2] if restore_source_progress else [0, 1, 2])
    assert ("a", 4, 111) in rows_of(sink) if restore_source_progress else ("a", 7, 122) in rows_of(sink)
    assert properties(workplace, "new")["restored_from_savepoint"] == origin.savepoint_identity


def test_a_replayed_epoch_has_the_time_that_it_had(workplace: Workplace) -> None:
    with pytest.raises((EpochError, KeyboardInterrupt)):
        workplace.run(DiesOnce(memory_sink(), "stage", 1))
    first = int(properties(workplace)["processing_time_ms"])
    offsets = (workplace.directory / "job" / "spark" / "offsets" / "1").read_text()
    planned = json.loads(offsets.split("\n")[1])["batchTimestampMs"]
    workplace.run(memory_sink())
    assert first < int(properties(workplace)["processing_time_ms"]) == planned
