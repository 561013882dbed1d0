"""The demonstration on some months of the year, and its errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from examples.demonstration.comparison import DifferenceError
from examples.demonstration.driver_process import DriverFailedError
from examples.flights import demo

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.spark
@pytest.mark.extended
def test_the_demonstration_prints_its_story_without_noise_and_cleans_up(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--parts", "6"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    printed = ended.stdout
    assert [line[0] for line in printed.splitlines() if re.match(r"\d\. ", line)] == list("1234567")
    killed_in = re.search(r"SIGKILL .* writing epoch (\d+)", printed)
    assert killed_in is not None
    # The next driver continues right after the epochs that the killed driver completed.
    assert re.search(rf"continuing after epoch {int(killed_in[1]) - 1}\n   epochs {killed_in[1]}\b", printed)
    for issue in (
        "renamed .airport: was last_airport",
        "added   .cancelled: default 0",
        "added   .worst.carrier: default None",
        "widened .minutes_late: int32 is widened to int64",
        "widened .worst.minutes: int32 is widened to int64",
        "lost    .last_carrier",
        "added   .on_time: default 0",
    ):
        assert printed.count(issue) == 2, issue
    assert ".worst.minutes: incompatible [field-type-changed]" in printed
    for line in (
        "$ statebackend inspect final-version-2-rocksdb",
        "aircraft  value  key str, value Aircraft",
        "$ statebackend show final-version-2-rocksdb aircraft aircraft --key",
        "added: aircraft.states.aircraft.types.value.records.AircraftState.fields.airport",
        "removed: aircraft.states.aircraft.types.value.records.AircraftState.fields.last_airport",
    ):
        assert line in printed
    assert "Done: nothing was lost" in printed
    assert re.findall(r"WARN|ERROR|Exception|Traceback|\r", printed) == []
    assert list(tmp_path.glob("flights-demo-*")) == []


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files of the demonstration, set for its process only."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return tmp_path


@pytest.mark.parametrize("failure", [DifferenceError("N1 is missing"), DriverFailedError("the driver process ended")])
def test_a_difference_ends_the_demonstration_with_a_message_and_keeps_its_files(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: Exception
) -> None:
    def fail(story: Any) -> None:
        story.incoming.mkdir()
        raise failure

    monkeypatch.setattr(demo, "run_steps", fail)
    assert demo.main([]) == 1
    assert f"THE DEMONSTRATION FAILED: {failure}" in capsys.readouterr().err
    (kept,) = temporary.glob("flights-demo-*")
    assert (kept / "incoming").is_dir()


@pytest.mark.parametrize(("arguments", "count"), [([], 0), (["--keep"], 1)])
def test_the_directory_is_removed_at_the_end_unless_it_is_to_be_kept(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], count: int
) -> None:
    monkeypatch.setattr(demo, "run_steps", lambda story: None)
    assert demo.main(arguments) == 0
    assert len(list(temporary.glob("flights-demo-*"))) == count
