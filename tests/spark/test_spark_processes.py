"""Drivers and executors as separate processes: SIGKILL, and executors that share only the disk."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq
import pytest
from json_source import add_file

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.store.checkpoint_directories import DirectoryPointers
from statebackend.checkpoint.store.savepoint_directory import read_savepoint
from statebackend.state.operator_state_handles import StatePart, decode_operator_state, read_slices

pytestmark = [pytest.mark.spark, pytest.mark.extended]

PROGRAM = Path(__file__).parent / "programs" / "count_words.py"
REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, PROGRAM.parent, REPOSITORY / "tests" / "spark_daemon"))),
    "SPARK_LOCAL_IP": "127.0.0.1",
}
WORDS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]
FILES = 6
ROWS_PER_FILE = 40
GIVE_UP_S = 1800
"""Limits the wait for a driver that hangs. A busy machine does not reach it."""


def make_source(work: Path, files: int, later: int = 0) -> list[tuple[str, int, int]]:
    """Write the files, and those that arrive later. Return the sorted output that is expected of all."""
    for directory in ("source", "later"):
        (work / directory).mkdir()
    times: Counter[str] = Counter()
    expected = []
    for number in range(files + later):
        rows = [
            (WORDS[(number * 13 + row * row) % len(WORDS)], number * ROWS_PER_FILE + row)
            for row in range(ROWS_PER_FILE)
        ]
        directory = work / ("source" if number < files else "later")
        add_file(directory, number, ({"word": word, "number": value} for word, value in rows))
        for word, value in rows:
            times[word] += 1
            expected.append((word, value, times[word]))
    return sorted(expected)


class Hold:
    """Pauses the jobs of a driver after a number of epochs, until it is released."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._reading, self._writing = os.pipe()

    @contextlib.contextmanager
    def handed_over(self) -> Iterator[tuple[int, str]]:
        """Start drivers in this block with the descriptor, and with settings of `count_words`."""
        try:
            yield self._reading, f"{self._reading} {self._epochs}"
        finally:
            os.close(self._reading)

    def release(self) -> None:
        """Release the jobs. Later calls do nothing."""
        writing, self._writing = self._writing, -1
        if writing >= 0:
            os.close(writing)


def start(work: Path, log: IO[bytes], *options: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a driver. Its additional environment starts with the number of an inherited pipe."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(work), *options],
        env={**ENVIRONMENT, **environment},
        stdout=log,
        stderr=log,
        pass_fds=[int(value.split()[0]) for value in environment.values()],
    )


def signal_at_epoch(
    number: signal.Signals,
    epoch: int,
    backends: str,
    work: Path,
    log: IO[bytes],
    *,
    goes_on: bool,
    has_noticed: Callable[[], bool] = lambda: True,
) -> int:
    """Start a driver, signal it when each of its jobs has completed that many epochs, and return its exit status.

    The jobs pause there until ``has_noticed`` returns true for the driver. With ``goes_on``, they pause one epoch
    later, so that a signal hits them at any step before.
    """
    hold = Hold(epoch + goes_on)
    reading, writing = os.pipe()
    missing = set(backends.split(","))
    with open(reading, encoding="ascii") as events, contextlib.ExitStack() as stack:
        stack.callback(hold.release)
        with hold.handed_over() as (_, held):
            try:
                driver = start(work, log, backends, CHECKPOINT_EVENTS=str(writing), CHECKPOINT_HELD=held)
            finally:
                os.close(writing)
        # The loop also ends when the driver ends, because then no process holds the pipe.
        for line in events:
            backend, _, completed = line.partition(" ")
            if int(completed) >= epoch:
                missing.discard(backend)
            if not missing:
                break
        with contextlib.suppress(ProcessLookupError):
            driver.send_signal(number)
        while not has_noticed() and driver.poll() is None:
            os.sched_yield()
        hold.release()
        return driver.wait(timeout=GIVE_UP_S)


def written(work: Path, *directories: str) -> list[tuple[str, int, int]]:
    files = [file for directory in directories for file in work.glob(f"{directory}/epoch=*/*.parquet")]
    return sorted(
        (row["word"], row["number"], row["times"]) for file in files for row in pq.ParquetFile(file).read().to_pylist()
    )


def completed_epochs(job: Path) -> int:
    """The highest number of epochs that completed a checkpoint, whether or not it still exists."""
    names = [path.parent.name for path in (job / "checkpoints").glob("chk-*/_metadata")]
    return max((int(name.removeprefix("chk-")) + 1 for name in names), default=0)


def operator_state(metadata: CheckpointMetadata, file_system: CheckpointFileSystem) -> list[dict[str, list[Any]]]:
    """The decoded rows of each operator state, by subtask."""
    [operator] = metadata.operators
    found = []
    for subtask in operator.subtasks:
        states = decode_operator_state(subtask.operator).states
        rows = {state.name: [row for part in state.parts for row in decoded(part, file_system)] for state in states}
        found.append(rows)
    return found


def decoded(part: StatePart, file_system: CheckpointFileSystem) -> Iterator[Any]:
    serializers = {role: part.snapshot("state", role).restore_serializer() for role in part.envelopes}
    for key, value in read_slices(file_system, part.slices):
        if key is None:
            yield serializers["element"].from_bytes(value)
        else:
            yield serializers["key"].from_bytes(key), serializers["value"].from_bytes(value)


def check_operator_state(found: list[dict[str, list[Any]]], numbers: range, epochs: range) -> None:
    """Check that one subtask handled each number once, that each has one count, and that all have the same names."""
    assert sorted(number for subtask in found for number in subtask["handled"]) == list(numbers)
    assert [len(subtask["counts"]) for subtask in found] == [1] * len(found)
    assert [subtask["counts"][0][0] for subtask in found] == list(range(len(found)))
    for subtask in found:
        assert subtask["names"] == [(epoch, f"epoch {epoch}") for epoch in epochs]


def check_job_at_its_end(job: Path) -> int:
    """Check that operator state matches the input. Return the number of epochs."""
    epochs = completed_epochs(job)
    # Spark logs the files of a batch before the batch itself. After a kill between the two, two files become one epoch.
    assert FILES // 2 < epochs <= FILES
    file_system = CheckpointFileSystem.from_uri(job)
    metadata = DirectoryPointers(file_system).find().newest()
    assert metadata is not None
    found = operator_state(metadata, file_system)
    check_operator_state(found, range(FILES * ROWS_PER_FILE), range(epochs))
    assert [subtask["counts"][0][1] for subtask in found] == [len(subtask["handled"]) for subtask in found]
    return epochs


def says(log: Path, words: str) -> bool:
    return words in log.read_text(errors="replace")


def check_ctrl_c_output(printed: str) -> None:
    # The lines before ours come from Spark.
    ours = printed[re.search("stopp(ing|ed): ", printed).start() :].splitlines()
    [outcome] = [line for line in ours if line.startswith("stopped: epoch ")]
    assert re.match(r"stopped: epoch \d is complete, and the same program continues from there", outcome)
    assert ours[-1] == "KeyboardInterrupt"
    assert len(ours) < 15, printed


def check_rescaled_job(work: Path, epochs: int) -> None:
    """Check the savepoint of the first job, and the savepoint of its rescaled successor."""
    file_system, metadata = read_savepoint(work / "savepoint")
    check_operator_state(operator_state(metadata, file_system), range(FILES * ROWS_PER_FILE), range(epochs))
    file_system, metadata = read_savepoint(work / "rescaled-savepoint")
    found = operator_state(metadata, file_system)
    # Two files may have become one epoch.
    last = metadata.checkpoint_id + 1
    assert epochs < last <= epochs + 2
    check_operator_state(found, range((FILES + 2) * ROWS_PER_FILE), range(last))
    # The handled numbers were distributed evenly. The counts stayed with the subtask of the same index.
    before = [sum(number < FILES * ROWS_PER_FILE for number in subtask["handled"]) for subtask in found]
    assert max(before) - min(before) <= 1
    assert sum(subtask["counts"][0][1] for subtask in found) == (FILES + 2) * ROWS_PER_FILE


def test_killed_and_interrupted_drivers_lose_and_duplicate_nothing_and_their_state_moves_by_a_savepoint(
    tmp_path: Path,
) -> None:
    expected = make_source(tmp_path, FILES, later=2)
    log_path, printed_path = tmp_path / "log", tmp_path / "printed"
    with log_path.open("wb") as log, printed_path.open("wb") as printed:
        # Starting Spark takes longer than the job, so one driver runs both jobs where that is possible.
        ended = signal_at_epoch(signal.SIGKILL, 2, "rocksdb,heap", tmp_path, log, goes_on=True)
        assert ended == -signal.SIGKILL
        is_stopping = functools.partial(says, printed_path, "stopping: epoch")
        assert signal_at_epoch(signal.SIGINT, 3, "heap", tmp_path, printed, goes_on=False, has_noticed=is_stopping) != 0
        check_ctrl_c_output(printed_path.read_text(errors="replace"))
        driver = start(tmp_path, log, "rocksdb,heap", "savepoint", "heap")
        assert driver.wait(timeout=GIVE_UP_S) == 0, log_path.read_text(errors="replace")[-4000:]
    assert written(tmp_path, "out-rocksdb", "out-rescaled") == expected
    assert written(tmp_path, "out-heap") == [row for row in expected if row[1] < FILES * ROWS_PER_FILE]
    check_job_at_its_end(tmp_path / "job-heap")
    check_rescaled_job(tmp_path, check_job_at_its_end(tmp_path / "job-rocksdb"))


def test_subtasks_stay_at_their_state_and_are_placed_again_when_an_executor_is_killed(tmp_path: Path) -> None:
    expected = make_source(tmp_path, 4, later=4)
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        program = [sys.executable, str(PROGRAM.with_name("lose_an_executor.py")), str(tmp_path)]
        driver = subprocess.Popen(program, env=ENVIRONMENT, stdout=log, stderr=log)
        assert driver.wait(timeout=GIVE_UP_S) == 0, log_path.read_text(errors="replace")[-4000:]
    assert written(tmp_path, "out") == expected
    opens = [tuple(map(int, line.split())) for line in (tmp_path / "opens").read_text().splitlines()]
    assert [local + restored for local, restored in opens] == [0] + [6] * 7
    # The states are new in the first epoch. Later those of the killed executor are restored, and half of them move.
    assert sum(local for local, _ in opens[2:4]) == 6 * 2
    assert sum(local for local, _ in opens[6:]) == 6 * 2
