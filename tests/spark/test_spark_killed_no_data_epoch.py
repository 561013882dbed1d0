"""A driver is killed in a no-data epoch: the replay has the same time, and output becomes visible once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_spark_processes import ENVIRONMENT, GIVE_UP_S

from statebackend.checkpoint.store.job_files import NO_DATA_EPOCH_FILE_NAME

pytestmark = [pytest.mark.spark, pytest.mark.extended]

PROGRAM = Path(__file__).parent / "programs" / "fire_timers.py"


def run(work: Path, *moment: str) -> int:
    """Run a driver to its end, and return its exit status."""
    with (work / "log").open("ab") as log:
        command = [sys.executable, str(PROGRAM), str(work), *moment]
        ended = subprocess.run(command, env=ENVIRONMENT, stdout=log, stderr=log, check=False, timeout=GIVE_UP_S)
        return ended.returncode


def attempts(work: Path) -> list[object]:
    return [json.loads(line) for line in (work / "staged").read_text().splitlines()]


def visible(work: Path) -> list[list[object]]:
    files = (work / "out").glob("epoch=*/*.parquet")
    return sorted(list(row.values()) for file in files for row in pq.ParquetFile(file).read().to_pylist())


def test_a_no_data_epoch_with_a_killed_driver_is_replayed_at_its_time_and_visible_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0.json").write_text('{"k": "a"}\n{"k": "b"}\n')
    opened = tmp_path / "job" / NO_DATA_EPOCH_FILE_NAME

    assert run(tmp_path, "stage") == -signal.SIGKILL, (tmp_path / "log").read_text()
    [(epoch_id, rows)] = attempts(tmp_path)  # type: ignore[misc]
    assert (epoch_id, [row[0] for row in rows]) == (1, ["a", "b"])  # type: ignore[has-type]
    assert visible(tmp_path) == []
    assert json.loads(opened.read_text())["processing_time_ms"] == rows[0][2]  # type: ignore[has-type]

    # The driver is killed in the same epoch again, but now its checkpoint is durable.
    assert run(tmp_path, "commit") == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert attempts(tmp_path) == [[1, rows], [1, rows]]  # type: ignore[has-type]
    assert visible(tmp_path) == []

    assert run(tmp_path) == 0, (tmp_path / "log").read_text()
    assert attempts(tmp_path) == [[1, rows], [1, rows]], "what is durable is not processed again"  # type: ignore[has-type]
    assert visible(tmp_path) == rows  # type: ignore[has-type]
    assert not opened.exists()
