"""The watermarks of a run from one epoch to the next, for runtimes whose epochs begin with a watermark.

What the tasks of an epoch report moves the watermarks when its checkpoint is stored, which has them; the next epoch
begins with them. Until it does, the state of a failed epoch is nobody's: it is replayed by another run, from the
checkpoint before. A job without event time has no watermarks, and nothing of them in its checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from checkpointing.metadata.checkpoint_sections import ChannelTimestamp, TimersDue, WatermarkState
from streamjobs.runtime.event_time import EventTime
from streamjobs.time.job_watermarks import JobWatermarks
from streamjobs.time.timestamps import MIN_TIMESTAMP

__all__ = ["EpochWatermarks"]


class EpochWatermarks:
    """See the module; ``restored`` is what the checkpoint says that the run goes on from."""

    def __init__(self, event_time: EventTime | None, restored: WatermarkState | None) -> None:
        self._event_time = event_time
        self._watermarks: JobWatermarks | None = None if event_time is None else event_time.watermarks()
        self._uids = () if event_time is None else tuple(node.uid for node in event_time.graph.operators)
        self._before: dict[str, int] = {}
        if self._watermarks is not None and restored is not None:
            self._watermarks.restore(restored)

    def of(self, uid: str) -> int:
        """What an operator is at in this epoch, in milliseconds; the smallest time if it has no watermark."""
        return MIN_TIMESTAMP if self._watermarks is None else self._watermarks.watermark_of(uid)

    def before_of(self, uid: str) -> int:
        """What it was at in the epoch before, if that was one of this run; otherwise the smallest time."""
        return self._before.get(uid, MIN_TIMESTAMP)

    def known(self) -> Mapping[str, int]:
        """What the operators are at, by uid, in milliseconds; those without a watermark are left out."""
        return {uid: time_ms for uid in self._uids if (time_ms := self.of(uid)) > MIN_TIMESTAMP}

    def end_epoch(self, largest: Iterable[ChannelTimestamp], processing_time_ms: int) -> WatermarkState | None:
        """Takes what the tasks of the epoch have seen; returns what its checkpoint is to say.

        Raises `StreamJobError` for too many channels, and has changed nothing then.
        """
        if self._watermarks is None:
            return None
        before = {uid: self._watermarks.watermark_of(uid) for uid in self._uids}
        self._watermarks.end_epoch(largest, processing_time_ms)
        self._before = before
        return self._watermarks.snapshot()

    def end(self) -> None:
        """Moves time to its end, for an epoch without records."""
        if self._watermarks is not None and self._event_time is not None:
            for source in self._event_time.nodes:
                self._watermarks.end_source(source)

    def are_due(self, timers: Iterable[TimersDue]) -> bool:
        """Whether any of these timers of event time is due at the watermark of its operator."""
        return any(one.event_time_ms is not None and one.event_time_ms <= self.of(one.operator_uid) for one in timers)
