"""The watermarks of a run from one epoch to the next, for runtimes whose epochs begin with a watermark.

What the tasks of an epoch report makes the watermarks of the next one, which the checkpoint of the epoch has. They are
a value: a runtime takes those of the next epoch when the checkpoint is stored, and one that could not be stored has
moved nothing. A job without event time has no watermarks, and nothing of them in its checkpoints.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve

from checkpointing.metadata.checkpoint_sections import ChannelTimestamp, TimersDue, WatermarkState
from streamjobs.runtime.event_time import EventTime
from streamjobs.time.job_watermarks import JobWatermarks
from streamjobs.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["EpochWatermarks"]


class EpochWatermarks:
    """Those of one epoch; see the module."""

    def __init__(
        self, event_time: EventTime | None, restored: WatermarkState | None, now_ms: int | None = None
    ) -> None:
        """Those of the first epoch of a run, which goes on from a checkpoint that says ``restored``.

        With ``now_ms`` sources that are silent from the beginning become idle by the clock; without, idleness counts
        from the first epoch.
        """
        self._event_time = event_time
        self._watermarks: JobWatermarks | None = None if event_time is None else event_time.watermarks()
        self._uids = () if event_time is None else tuple(node.uid for node in event_time.graph.operators)
        self._followers = () if event_time is None else event_time.followers
        self.names = () if event_time is None else event_time.names
        """Of the sources with event time, and the uids of all operators."""
        self._is_at_the_end = False
        self._before: Mapping[str, int] = {}
        if self._watermarks is not None and event_time is not None and restored is not None:
            restored = event_time.of_checkpoint(restored)
            self._watermarks.restore(restored)
            self._before = {
                node.node: node.epoch_watermark_ms
                for node in restored.nodes
                # A job that is started again has not ended.
                if node.epoch_watermark_ms is not None and node.epoch_watermark_ms != MAX_TIMESTAMP
            }
        if self._watermarks is not None and now_ms is not None:
            self._watermarks.await_from(now_ms)

    def of(self, uid: str) -> int:
        """What an operator is at in this epoch, in milliseconds; the smallest time if it has no watermark."""
        if self._is_at_the_end:
            return MAX_TIMESTAMP
        return MIN_TIMESTAMP if self._watermarks is None else self._watermarks.watermark_of(uid)

    def before_of(self, uid: str) -> int:
        """What it was at in the epoch before; the smallest time if there was none, or its checkpoint does not say."""
        return self._before.get(uid, MIN_TIMESTAMP)

    def known(self) -> Mapping[str, int]:
        """What sources have sent and operators are at, in milliseconds; those without a watermark are left out."""
        return {name: time_ms for name in self.names if (time_ms := self.of(name)) > MIN_TIMESTAMP}

    def after(self, largest: Iterable[ChannelTimestamp], processing_time_ms: int) -> EpochWatermarks:
        """Those of the next epoch, when the tasks of this one have seen these timestamps.

        Raises `StreamJobError` for too many channels.
        """
        if self._watermarks is None:
            return self
        watermarks = self._watermarks.copied()
        watermarks.end_epoch(largest, processing_time_ms)
        return self._followed_by(watermarks)

    def at_the_end(self) -> EpochWatermarks:
        """Those of an epoch at the end of time, in place of these; operators without event time are there too."""
        ended = copy.copy(self)
        ended._is_at_the_end = True
        if self._watermarks is None or self._event_time is None:
            return ended
        ended._watermarks = self._watermarks.copied()
        for source in self._event_time.nodes:
            ended._watermarks.end_source(source)
        return ended

    def state(self) -> WatermarkState | None:
        """What the checkpoint of the epoch before is to say, for the next epoch to go on from."""
        if self._watermarks is None:
            return None
        state = self._watermarks.snapshot()
        nodes = (evolve(node, epoch_watermark_ms=self._before.get(node.node)) for node in state.nodes)
        return evolve(state, nodes=tuple(nodes))

    def are_due(self, timers: Iterable[TimersDue]) -> bool:
        """Whether any of these timers of event time fires at the watermark of its operator.

        One that was due already when it was registered waits, as the others do, until the watermark moves.
        """
        return any(
            one.event_time_ms is not None
            and one.event_time_ms <= (now_ms := self.of(one.operator_uid))
            and now_ms > self.before_of(one.operator_uid)
            for one in timers
        )

    def next_epoch_ms(self, timers: Sequence[TimersDue]) -> int | None:
        """The processing time from which an epoch without records has something to do; None if none ever has."""
        if self.are_due(timers) or any(self.of(uid) > self.before_of(uid) for uid in self._followers):
            return MIN_TIMESTAMP
        times = [one.processing_time_ms for one in timers]
        return min(
            (time_ms for time_ms in (*times, self._idleness_due_ms(timers)) if time_ms is not None), default=None
        )

    def _idleness_due_ms(self, timers: Sequence[TimersDue]) -> int | None:
        """The first processing time at which one of these timers is due since sources are idle that are silent now.

        None if none would be: that a source is idle needs no epoch as long as nothing comes of it.
        """
        if self._watermarks is None or all(one.event_time_ms is None for one in timers):
            return None
        times = self._watermarks.idleness_times_ms()
        # The later it is, the more are idle, and watermarks never go back.
        first = bisect_left(times, True, key=lambda time_ms: self.after((), time_ms).are_due(timers))
        return times[first] if first < len(times) else None

    def _followed_by(self, watermarks: JobWatermarks) -> EpochWatermarks:
        following = copy.copy(self)
        following._watermarks = watermarks
        following._before = {uid: time_ms for uid in self._uids if (time_ms := self.of(uid)) > MIN_TIMESTAMP}
        return following
