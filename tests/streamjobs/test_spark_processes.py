"""Drivers and executors as processes of their own: SIGKILL, and executors that share nothing but the disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import IO

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).parent / "programs" / "count_words.py"
REPOSITORY = Path(__file__).resolve().parents[2]
WORDS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]
FILES = 8
ROWS_PER_FILE = 40


def make_source(work: Path) -> list[tuple[str, int, int]]:
    """Writes the files; returns what the job must emit for them, sorted."""
    source = work / "source"
    source.mkdir(parents=True)
    times: Counter[str] = Counter()
    expected = []
    for number in range(FILES):
        rows = [
            (WORDS[(number * 13 + row * row) % len(WORDS)], number * ROWS_PER_FILE + row)
            for row in range(ROWS_PER_FILE)
        ]
        path = source / f"{number:05d}.json"
        path.write_text("".join(json.dumps({"word": word, "number": value}) + "\n" for word, value in rows))
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
        for word, value in rows:
            times[word] += 1
            expected.append((word, value, times[word]))
    return sorted(expected)


def start(master: str, backend: str, work: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(PROGRAM.parent)]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), master, backend, str(work)], env=environment, stdout=log, stderr=log
    )


def written(work: Path) -> list[tuple[str, int, int]]:
    files = sorted((work / "out").glob("epoch=*/*.parquet"))
    return sorted(
        (row["word"], row["number"], row["times"]) for file in files for row in pq.ParquetFile(file).read().to_pylist()
    )


def completed_epochs(work: Path) -> int:
    """The number of epochs of which there is, or was, a checkpoint."""
    names = [path.parent.name for path in (work / "job" / "checkpoints").glob("chk-*/_metadata")]
    return max((int(name.removeprefix("chk-")) + 1 for name in names), default=0)


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_drivers_killed_again_and_again_lose_and_double_nothing(tmp_path: Path, backend: str) -> None:
    expected = make_source(tmp_path)
    log_path = tmp_path / "log"
    kills = 0
    with log_path.open("wb") as log:
        for kill_at_epoch in (2, 4):
            driver = start("local[2]", backend, tmp_path, log)
            with contextlib.suppress(ProcessLookupError):
                # The sign to kill at is a checkpoint on the disk, whenever that may be.
                while completed_epochs(tmp_path) < kill_at_epoch and driver.poll() is None:
                    time.sleep(0.01)
                driver.send_signal(signal.SIGKILL)
            kills += driver.wait() == -signal.SIGKILL
        driver = start("local[2]", backend, tmp_path, log)
        assert driver.wait(timeout=180) == 0, log_path.read_text(errors="replace")[-4000:]
    assert kills
    # Spark notes the files of a batch before the batch itself, so after a kill in between two files become one epoch.
    assert 4 < completed_epochs(tmp_path) <= FILES
    assert written(tmp_path) == expected


def test_executors_in_processes_of_their_own_share_state_through_checkpoints(tmp_path: Path) -> None:
    expected = make_source(tmp_path)
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        driver = start("local-cluster[2,1,1024]", "rocksdb", tmp_path, log)
        assert driver.wait(timeout=240) == 0, log_path.read_text(errors="replace")[-4000:]
    assert written(tmp_path) == expected
