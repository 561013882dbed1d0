"""A driver is killed in the requested epoch, or runs to its end without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.demonstration.driver_process import DriverFailedError, DriverProcess

MODULE = "tests.examples_demonstration.empty_driver"


def started(tmp_path: Path, lines: list[str], *arguments: str) -> DriverProcess:
    return DriverProcess(MODULE, arguments, lines.append, job_dir=tmp_path / "job", log=tmp_path / "logs" / "log")


def test_a_driver_is_killed_before_the_checkpoint_of_the_requested_epoch(tmp_path: Path) -> None:
    lines: list[str] = []
    driver = started(tmp_path, lines, "5")
    assert driver.kill_in_epoch_after(1) == 2
    assert lines == ["epoch 0", "epoch 1"]
    with pytest.raises(DriverFailedError, match="status -9"):
        driver.wait()


def test_a_driver_with_a_waiting_supervisor_does_not_wait(tmp_path: Path) -> None:
    lines: list[str] = []
    started(tmp_path, lines, "3").wait()
    assert lines == ["epoch 0", "epoch 1", "epoch 2"]


def test_a_driver_reports_its_end_after_its_last_line_even_without_a_reader(tmp_path: Path) -> None:
    reported_lines: list[str] = []
    driver = DriverProcess(
        MODULE,
        ["2"],
        reported_lines.append,
        job_dir=tmp_path / "job",
        log=tmp_path / "log",
        on_end=lambda: reported_lines.append("end"),
    )
    driver.hang_up()
    driver.wait()
    assert reported_lines == ["epoch 0", "epoch 1", "end"]
    assert driver.ends_within(0)


def test_a_driver_that_ends_before_the_kill_has_failed(tmp_path: Path) -> None:
    driver = started(tmp_path, [], "2")
    with pytest.raises(DriverFailedError, match="status 0"):
        driver.kill_in_epoch_after(1)


@pytest.mark.parametrize("way", [DriverProcess.wait, lambda driver: driver.kill_in_epoch_after(0)])
def test_the_failure_of_a_driver_is_reported_with_its_last_output(tmp_path: Path, way: object) -> None:
    driver = started(tmp_path, [], "five")
    assert callable(way)
    with pytest.raises(DriverFailedError, match=r"status 1(.|\n)*invalid literal for int"):
        way(driver)
    driver.kill()
