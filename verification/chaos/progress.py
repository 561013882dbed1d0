"""Decides when a job makes no progress, by its processor time and not by the clock alone.

On a busy machine a healthy job may wait for long, so a fixed timeout is unreliable. A sign of progress is an epoch or
another line that the driver prints. A job makes no progress if one of these holds since the last sign:

    busy    its processes used more processor time than many starts need
    idle    they used almost no processor time for minutes; sessions and leases expire within seconds
"""

from __future__ import annotations

from typing import Final

from attrs import define

__all__ = ["MOST_WORK_S", "STILL_S", "Progress"]

MOST_WORK_S: Final = 400.0
"""Processor time; a start on two executors up to its first epoch needs less than 60 s."""

STILL_S: Final = 180.0
_IDLE_SHARE: Final = 0.02
"""As a share of one core; idle JVMs use less."""


@define
class Progress:
    """The progress of one driver and its processes; all times are seconds of monotonic clocks."""

    sign_s: float
    work_at_sign_s: float = 0.0
    _still_since_s: float = 0.0
    _work_since_still_s: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.sign(self.sign_s, self.work_at_sign_s)

    def sign(self, now_s: float, work_s: float) -> None:
        """Record a sign of progress; ``work_s`` is the processor time of the processes so far."""
        self.sign_s, self.work_at_sign_s = now_s, work_s
        self._still_since_s, self._work_since_still_s = now_s, work_s

    def stall_reason(self, now_s: float, work_s: float) -> str | None:
        """Return why the job makes no progress, or None if it may still make progress."""
        worked_s = work_s - self.work_at_sign_s
        if worked_s > MOST_WORK_S:
            return f"busy for {worked_s:.0f} s of processor time without a sign of progress"
        still_s = now_s - self._still_since_s
        if work_s - self._work_since_still_s > max(1.0, _IDLE_SHARE * still_s):
            self._still_since_s, self._work_since_still_s = now_s, work_s
        elif still_s > STILL_S:
            return f"idle, with almost no processor time in {still_s:.0f} s"
        return None
