"""When a job that completes no epoch has been waited for long enough: measured by what it does, not by the clock.

A machine that is busy lets a job wait, and a job that waits for nobody has used no processor time. So two things are
taken for no progress, each since the last sign of it (an epoch, or another line that the driver prints):

    it works in vain    its processes have used more processor time than many starts need
    it stands still     for minutes they have used next to none; sessions and leases run out in seconds
"""

from __future__ import annotations

from typing import Final

from attrs import define

__all__ = ["MOST_WORK_S", "STILL_S", "Progress"]

MOST_WORK_S: Final = 400.0
"""Processor time; a start on two executors, up to its first epoch, takes less than 60 s."""

STILL_S: Final = 180.0
_IDLE_SHARE: Final = 0.02
"""What JVMs use that have nothing to do is less, as a share of one core."""


@define
class Progress:
    """The progress of one driver and its processes; all times are seconds, of clocks that never go back."""

    sign_s: float
    work_at_sign_s: float = 0.0
    _still_since_s: float = 0.0
    _work_since_still_s: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.sign(self.sign_s, self.work_at_sign_s)

    def sign(self, now_s: float, work_s: float) -> None:
        """Takes a sign of progress; ``work_s`` is the processor time that the processes have used by now."""
        self.sign_s, self.work_at_sign_s = now_s, work_s
        self._still_since_s, self._work_since_still_s = now_s, work_s

    def compatibility(self, now_s: float, work_s: float) -> str | None:
        """Why it is not to be waited for any longer, in words; None if it is."""
        worked_s = work_s - self.work_at_sign_s
        if worked_s > MOST_WORK_S:
            return f"it has worked in vain: {worked_s:.0f} s of processor time, without a sign of progress"
        still_s = now_s - self._still_since_s
        if work_s - self._work_since_still_s > max(1.0, _IDLE_SHARE * still_s):
            self._still_since_s, self._work_since_still_s = now_s, work_s
        elif still_s > STILL_S:
            return f"it stands still: in {still_s:.0f} s it has used no processor time to speak of"
        return None
