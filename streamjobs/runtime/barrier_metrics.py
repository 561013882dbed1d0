"""How long barriers took, and what they overtook, for people.

Each subtask says it with its acknowledgement, of which checkpoints keep nothing, and a run sums it up by operator: what
is kept does not grow with the number of checkpoints. A subtask whose metrics cannot be read is left out, and fails
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import evolve, frozen

from checkpointing.coordinator.acknowledgement import Acknowledgement, ReportValue

__all__ = ["BarrierTotals", "OperatorBarriers", "SubtaskBarriers"]

_NAMES = ("is_unaligned", "start_delay_ms", "alignment_ms", "capture_ms", "in_flight_bytes")
_PREFIX = "barrier_"


@frozen(kw_only=True)
class SubtaskBarriers:
    """The barriers of one checkpoint at one subtask; times in milliseconds of the clock of checkpoints.

    ``start_delay_ms`` from the making of the barrier to the first that came out, ``alignment_ms`` from there to the
    snapshot, ``capture_ms`` from there to the last one if they overtook; ``in_flight_bytes`` were written down.
    """

    is_unaligned: bool
    start_delay_ms: int
    alignment_ms: int
    capture_ms: int
    in_flight_bytes: int

    def report(self) -> dict[str, ReportValue]:
        """What a subtask says of them among the metrics of its acknowledgement."""
        return {_PREFIX + name: int(getattr(self, name)) for name in _NAMES}

    @classmethod
    def from_report(cls, metrics: Mapping[str, ReportValue]) -> SubtaskBarriers | None:
        """What an acknowledgement says; None if it says nothing that can be read."""
        values = [metrics.get(_PREFIX + name) for name in _NAMES]
        whole = [value for value in values if isinstance(value, int) and value >= 0]
        if len(whole) != len(_NAMES):
            return None
        is_unaligned, start_delay_ms, alignment_ms, capture_ms, in_flight_bytes = whole
        return cls(
            is_unaligned=bool(is_unaligned),
            start_delay_ms=start_delay_ms,
            alignment_ms=alignment_ms,
            capture_ms=capture_ms,
            in_flight_bytes=in_flight_bytes,
        )


@frozen(kw_only=True)
class OperatorBarriers:
    """Of an operator, over all its subtasks and the complete checkpoints of a run.

    ``snapshots`` of subtasks, of which ``unaligned_snapshots`` were taken before the last barrier; times are the
    longest of any, in milliseconds, and the bytes are sums.
    """

    snapshots: int = 0
    unaligned_snapshots: int = 0
    longest_start_delay_ms: int = 0
    longest_alignment_ms: int = 0
    longest_capture_ms: int = 0
    in_flight_bytes: int = 0

    def with_subtask(self, one: SubtaskBarriers) -> OperatorBarriers:
        """These and one more snapshot."""
        return evolve(
            self,
            snapshots=self.snapshots + 1,
            unaligned_snapshots=self.unaligned_snapshots + one.is_unaligned,
            longest_start_delay_ms=max(self.longest_start_delay_ms, one.start_delay_ms),
            longest_alignment_ms=max(self.longest_alignment_ms, one.alignment_ms),
            longest_capture_ms=max(self.longest_capture_ms, one.capture_ms),
            in_flight_bytes=self.in_flight_bytes + one.in_flight_bytes,
        )


class BarrierTotals:
    """Of a run: its operators, and the subtasks in its newest complete checkpoint."""

    def __init__(self) -> None:
        self.operators: dict[str, OperatorBarriers] = {}
        """By uid."""
        self.newest: dict[tuple[str, int], SubtaskBarriers] = {}
        """By uid and index of the subtask."""

    def note(self, acknowledgements: Iterable[Acknowledgement]) -> None:
        """A checkpoint is complete with these."""
        self.newest = {}
        for acknowledgement in acknowledgements:
            one = SubtaskBarriers.from_report(acknowledgement.metrics)
            if one is not None:
                uid = acknowledgement.operator_uid
                self.newest[uid, acknowledgement.subtask_index] = one
                self.operators[uid] = self.operators.get(uid, OperatorBarriers()).with_subtask(one)
