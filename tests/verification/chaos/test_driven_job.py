"""What chaos observes of the driver of a job, with a driver that does almost nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from attrs import frozen

from examples.demonstration.comparison import DifferenceError
from verification.chaos import driven_job, hang_diagnostics, progress
from verification.chaos.driven_job import DrivenJob
from verification.chaos.strikes import Strike, Target, World

STILL_DRIVER = """
import faulthandler, signal, sys

faulthandler.register(signal.SIGUSR1)
sys.stdin.read()
print("spark app-of-the-test", flush=True)
print("something else", flush=True)


def stand_still():
    # Who hears of the epoch may ask at once where it stands.
    print("epoch 0", flush=True)
    signal.pause()


stand_still()
"""


@frozen
class Place:
    """A directory in which nothing happens."""

    environment: Mapping[str, str]
    arguments: Sequence[str] = ()

    def path(self, name: str) -> str:
        raise NotImplementedError

    def strike(self, strike: Strike) -> None:
        raise NotImplementedError

    def diagnostics(self) -> Mapping[str, str]:
        return {"a server": "all is well"}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DrivenJob]:
    (tmp_path / "still_driver.py").write_text(STILL_DRIVER)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setattr(driven_job, "DRIVER", "still_driver")
    job = DrivenJob((), Place({"PYTHONPATH": path}), tmp_path, tmp_path / "driver-1.log")
    yield job
    job.kill()


def test_a_hanging_driver_is_killed_and_its_stack_is_reported(
    job: DrivenJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = job.next_epoch()
    assert epoch is not None
    assert epoch.epoch_id == 0
    assert job.spark_ran_s is not None
    assert job.spark_ran_s <= epoch.heard_s
    monkeypatch.setattr(progress, "STILL_S", 0.0)
    monkeypatch.setattr(hang_diagnostics, "ANSWER_S", 0.0)
    with pytest.raises(DifferenceError, match="makes no progress: idle") as raised:
        job.next_epoch()
    reported = str(raised.value)
    assert "python" in reported
    assert "something else" in reported
    assert "--- a server\nall is well" in reported
    # The driver was asked for a stack dump. Wait until the dump is written, however long it takes.
    while "in stand_still" not in (tmp_path / "driver-1.log").read_text():
        os.sched_yield()


def test_a_killed_driver_reports_no_more_epochs_and_has_failed(job: DrivenJob) -> None:
    assert job.next_epoch() is not None
    strike = Strike(0, Target.DRIVER, World.DISK, after_epochs=0, delay_ms=0, choice=0)
    assert job.strike(strike) is Target.DRIVER
    assert job.next_epoch() is None
    assert not job.has_succeeded()
    assert f"status {-signal.SIGKILL}" in job.failure
