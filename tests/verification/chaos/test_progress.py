"""When a job is waited for no longer: measured by what it does, whatever the clock says."""

from __future__ import annotations

from verification.chaos.progress import MOST_WORK_S, STILL_S, Progress


def test_who_waits_for_the_processor_of_a_busy_machine_is_waited_for() -> None:
    progress = Progress(0.0)
    # A tenth of a core, for an hour.
    assert all(progress.stall_reason(now_s, now_s / 10) is None for now_s in range(3600))


def test_who_works_without_a_sign_of_progress_is_not_waited_for() -> None:
    progress = Progress(0.0)
    assert progress.stall_reason(100.0, MOST_WORK_S - 1) is None
    progress.sign(100.0, MOST_WORK_S - 1)
    assert progress.stall_reason(200.0, MOST_WORK_S + 1) is None
    stall_reason = progress.stall_reason(300.0, 2 * MOST_WORK_S)
    assert stall_reason is not None
    assert "busy" in stall_reason


def test_who_does_next_to_nothing_for_minutes_stands_still() -> None:
    progress = Progress(0.0, 7.0)
    assert progress.stall_reason(STILL_S - 1, 8.0) is None
    stall_reason = progress.stall_reason(STILL_S + 1, 8.0)
    assert stall_reason is not None
    assert "idle" in stall_reason


def test_a_sign_of_progress_begins_the_wait_anew() -> None:
    progress = Progress(0.0)
    progress.sign(STILL_S - 1, 0.0)
    assert progress.stall_reason(STILL_S + 1, 0.0) is None
