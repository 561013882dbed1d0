"""The event-time demonstration, on the first months of the year."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.spark
@pytest.mark.extended
def test_the_demonstration_prints_its_story_without_noise_and_cleans_up(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "examples.weather", "--parts", "2"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    printed = ended.stdout
    assert [line[0] for line in printed.splitlines() if re.match(r"\d\. ", line)] == list("1234")
    killed_in = re.search(r"SIGKILL .* writing epoch (\d+)", printed)
    assert killed_in is not None
    # The next driver continues right after the epochs that the killed driver completed.
    assert re.search(rf"continuing after epoch {int(killed_in[1]) - 1}\n   epochs {killed_in[1]}\b", printed)
    assert "added   .longest_delay: default 0" in printed
    assert re.search(r"entries of delays: event-time timers \(window-timers\)\s[1-9]", " ".join(printed.split()))
    assert "_timer_state" not in printed
    # The compared tables are not empty, and the server was busy at times.
    rows = [int(count.replace(",", "")) for count in re.findall(r"^   [a-z].* \| +([\d,]+)$", printed, re.M)]
    assert len(rows) == 4
    assert all(rows)
    assert re.search(r"said [1-9]\d* times that it is busy", printed)
    assert re.findall(r"WARN|ERROR|Exception|Traceback|\r", printed) == []
    assert list(tmp_path.glob("weather-demo-*")) == []
