"""Processes and files of a chaos run are removed at its end, or by the next one if it was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from verification.chaos.processes import ProcessorTime, children, process_stat, start_of, started_with
from verification.chaos.run_directory import RUN_VARIABLE, remove_leftover_runs, run_directory

RUN = """
import subprocess, sys
from verification.chaos.run_directory import run_directory

with run_directory(ValueError) as root:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print(root, child.pid, flush=True)
    sys.stdin.readline()
"""


class Failure(Exception):
    """A failure found by a run."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def begun_run(place: Path) -> tuple[subprocess.Popen[str], Path, int]:
    """A run in its own process, with a child process."""
    run = subprocess.Popen(
        [sys.executable, "-c", RUN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(place)},
        text=True,
    )
    assert run.stdout is not None
    root, child = run.stdout.readline().split()
    return run, Path(root), int(child)


def fail_in_a_run() -> None:
    with run_directory(Failure) as root:
        (root / "log").write_text("something is lost")
        raise Failure


def ended(pid: int) -> bool:
    """Whether a terminated process has ended."""
    while start_of(pid) is not None:
        os.sched_yield()
    return True


def test_a_finished_run_leaves_nothing_and_a_failed_one_keeps_its_files(place: Path) -> None:
    with run_directory(Failure) as root:
        (root / "log").write_text("all is well")
        assert os.environ[RUN_VARIABLE] == str(root)
        assert tempfile.gettempdir() == str(root)
    assert list(place.iterdir()) == []
    with pytest.raises(Failure):
        fail_in_a_run()
    assert remove_leftover_runs(place) == []
    assert [one.name for one in place.glob("*/*")] == ["log"]
    assert RUN_VARIABLE not in os.environ


def test_a_terminated_run_ends_its_processes(place: Path) -> None:
    run, root, child = begun_run(place)
    run.send_signal(signal.SIGTERM)
    run.communicate()
    assert run.returncode == 128 + signal.SIGTERM
    assert ended(child)
    assert not root.exists()


def test_remains_of_a_killed_run_are_removed_by_the_next_one(place: Path) -> None:
    run, root, child = begun_run(place)
    assert remove_leftover_runs(place) == []
    assert start_of(child) is not None
    run.kill()
    # The child also holds the pipe, so wait only for the process.
    run.wait()
    with run_directory(Failure):
        assert ended(child)
        assert not root.exists()
    run.communicate()


@contextlib.contextmanager
def sleeping(environment: dict[str, str]) -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"], env=environment) as child:
        try:
            yield child.pid
        finally:
            child.kill()


def test_a_process_is_found_by_its_environment_as_soon_as_it_is_started() -> None:
    for number in range(30):
        with sleeping({"CHAOS_TEST": str(number)}) as pid:
            assert started_with("CHAOS_TEST", str(number)) == [pid]
    with sleeping({}):
        # A process without an environment does not block the search, and neither do kernel threads.
        assert started_with("CHAOS_TEST", "") == []


def test_the_processor_time_of_a_process_includes_its_children() -> None:
    own = process_stat(os.getpid())
    assert own is not None
    assert own.name == Path("/proc/self/comm").read_text().strip()
    before = ProcessorTime(os.getpid())
    used_s = before.seconds()
    # The child works until its own clock shows 0.1 s. That clock counts as /proc does.
    work = "import os\nwhile sum(os.times()[:2]) < 0.1: pass\nprint('done', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in children(os.getpid())
        assert before.seconds() > used_s
        child.communicate(b"\n")
