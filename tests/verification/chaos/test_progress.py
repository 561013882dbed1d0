"""When a job counts as hanging: measured by its processor time, not by the clock."""

from __future__ import annotations

from verification.chaos.progress import MOST_WORK_S, STILL_S, Progress


def test_a_job_waiting_for_the_processor_of_a_busy_machine_is_not_hanging() -> None:
    progress = Progress(0.0)
    # A tenth of a core, for an hour.
    assert all(progress.stall_reason(now_s, now_s / 10) is None for now_s in range(3600))


def test_a_busy_job_without_progress_is_hanging() -> None:
    progress = Progress(0.0)
    assert progress.stall_reason(100.0, MOST_WORK_S - 1) is None
    progress.sign(100.0, MOST_WORK_S - 1)
    assert progress.stall_reason(200.0, MOST_WORK_S + 1) is None
    stall_reason = progress.stall_reason(300.0, 2 * MOST_WORK_S)
    assert stall_reason is not None
    assert "busy" in stall_reason


def test_an_idle_job_is_hanging_after_minutes() -> None:
    progress = Progress(0.0, 7.0)
    assert progress.stall_reason(STILL_S - 1, 8.0) is None
    stall_reason = progress.stall_reason(STILL_S + 1, 8.0)
    assert stall_reason is not None
    assert "idle" in stall_reason


def test_progress_restarts_the_timeout() -> None:
    progress = Progress(0.0)
    progress.sign(STILL_S - 1, 0.0)
    assert progress.stall_reason(STILL_S + 1, 0.0) is None
