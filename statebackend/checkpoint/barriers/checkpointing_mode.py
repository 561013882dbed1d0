"""How the barriers of a job travel: one value, passed to whoever makes barriers and to whoever takes them.

    AT_LEAST_ONCE      nothing stands still; after a restore records may count twice
    ALIGNED            exactly once; channels stand still behind their barriers
    UNALIGNED          exactly once; barriers overtake records, which belong to the checkpoint then
    unaligned_after    aligned for some time, unaligned from then on

A barrier says itself whether it overtakes, and from when: what is left to who takes it is which table reads it. Where
records must not be overtaken (`may_overtake`) every barrier is aligned. A savepoint is aligned in every mode but that
of at least once, so it never has records on their way.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from statebackend.checkpoint.barriers.elements import BarrierHandler, CheckpointBarrier
from statebackend.checkpoint.barriers.exactly_once import ExactlyOnceHandler, alternating, always_aligned
from statebackend.checkpoint.barriers.tracker import BarrierTracker
from statebackend.checkpoint.errors import InvariantViolationError

__all__ = ["CheckpointingMode"]


@frozen(kw_only=True)
class CheckpointingMode:
    """See the module.

    ``is_unaligned`` barriers overtake at once; the others begin to when ``alignment_timeout_ms`` have passed since they
    were made, None: never. Raises `InvariantViolationError` for at least once with barriers that overtake: what nothing
    waits for needs not be overtaken.
    """

    is_exactly_once: bool = True
    is_unaligned: bool = False
    alignment_timeout_ms: int | None = None

    AT_LEAST_ONCE: ClassVar[CheckpointingMode]
    ALIGNED: ClassVar[CheckpointingMode]
    UNALIGNED: ClassVar[CheckpointingMode]

    def __attrs_post_init__(self) -> None:
        if not self.is_exactly_once and self.may_be_unaligned:
            raise InvariantViolationError(
                "barriers overtake nothing where records may count twice; leave one of the two"
            )
        if self.alignment_timeout_ms is not None and self.alignment_timeout_ms < 0:
            raise InvariantViolationError(f"an alignment cannot time out after {self.alignment_timeout_ms} ms")

    @classmethod
    def unaligned_after(cls, alignment_timeout_ms: int) -> CheckpointingMode:
        """Aligned for that many milliseconds since a barrier was made, unaligned from then on."""
        return cls(alignment_timeout_ms=alignment_timeout_ms)

    @property
    def may_be_unaligned(self) -> bool:
        """Whether a checkpoint may have records that were on their way."""
        return self.is_unaligned or self.alignment_timeout_ms is not None

    def barrier(self, checkpoint_id: int, created_ms: int, *, is_savepoint: bool = False) -> CheckpointBarrier:
        """A barrier of a checkpoint that is made at that time, in milliseconds of the clock of the handlers."""
        return CheckpointBarrier(
            checkpoint_id=checkpoint_id,
            created_ms=created_ms,
            is_savepoint=is_savepoint,
            is_unaligned=self.is_unaligned and not is_savepoint,
            alignment_timeout_ms=None if is_savepoint else self.alignment_timeout_ms,
        )

    def handler(self, channel_count: int, *, may_overtake: bool = True) -> BarrierHandler:
        """Who says what a task with so many channels does with barriers; with none, `InvariantViolationError`."""
        if not self.is_exactly_once:
            return BarrierTracker(channel_count)
        return ExactlyOnceHandler(channel_count, alternating if may_overtake else always_aligned)


CheckpointingMode.AT_LEAST_ONCE = CheckpointingMode(is_exactly_once=False)
CheckpointingMode.ALIGNED = CheckpointingMode()
CheckpointingMode.UNALIGNED = CheckpointingMode(is_unaligned=True)
