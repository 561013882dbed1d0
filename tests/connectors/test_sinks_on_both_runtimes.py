"""A sink of the protocol on both runtimes: tasks stage Arrow batches, and the driver commits each epoch once."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_job_fixture import CountWords, WordCount, pickled_by_value

from statebackend import JobDefinitionError
from statebackend.connectors import Sink, SinkEpoch, SinkLineage
from statebackend.local import LocalStreamEnvironment

ROWS = [("a", 1), ("b", 2), ("c", 3)]


class Lines(Sink):
    """Writes an epoch as one file of JSON lines."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def identity(self) -> str:
        return f"Lines('{self._directory}')"

    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: pa.RecordBatchReader) -> bytes:
        return json.dumps([subtask_index, rows.schema.names, rows.read_all().to_pylist()]).encode()

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        (self._directory / f"{epoch.epoch_id:03d}").write_text("\n".join(map(bytes.decode, committables)))

    def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:
        (self._directory / "recovered").write_text(f"{lineage.sink_uid} {last_epoch_id}")

    def close(self) -> None:
        # The job only logs this error.
        (self._directory / "closed").write_text("yes")
        raise OSError("lost")


def committed(directory: Path) -> dict[int, list[Any]]:
    return {
        int(path.name): [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(directory.glob("[0-9]*"))
    }


def run_locally(sink: Sink, change: Any = None) -> None:
    environment = LocalStreamEnvironment(epoch_size=2)
    stream = environment.from_elements(ROWS, "word string, number int").key_by("word")
    counted = stream.process(CountWords(), uid="words", schema="word string, times bigint, total bigint")
    (counted if change is None else counted.map(change)).sink_to(sink, uid="lines")
    environment.execute("job")


def test_a_local_job_stages_batches_of_the_declared_schema(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_locally(Lines(tmp_path))
    names = ["word", "times", "total"]
    rows = [dict(zip(names, row, strict=True)) for row in (("a", 1, 1), ("b", 1, 2), ("c", 1, 3))]
    assert committed(tmp_path) == {0: [[0, names, rows[:2]]], 1: [[0, names, rows[2:]]]}
    assert (tmp_path / "recovered").read_text() == "lines None"
    assert (tmp_path / "closed").exists()
    assert "sink 'lines': close() raised OSError: lost" in caplog.text


def test_a_local_job_without_a_schema_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(JobDefinitionError, match=r"sink_to\(Lines.*needs the schema of its rows: pass schema="):
        run_locally(Lines(tmp_path), change=tuple)


@pytest.mark.spark
def test_a_spark_job_stages_in_its_tasks(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "lines"
    out.mkdir()
    word_count = WordCount(spark, tmp_path)
    word_count.add_batch(ROWS)
    word_count.add_batch([("d", 4)])
    with pickled_by_value(sys.modules[__name__]):
        word_count.run(Lines(out))
    assert (out / "closed").exists()
    found = committed(out)
    rows = [tuple(row.values()) for lines in found.values() for line in lines for row in line[2]]
    assert sorted(rows) == word_count.expected()
    assert sorted(found) == [0, 1]
    assert all([line[0] for line in lines] == sorted(line[0] for line in lines) for lines in found.values())
