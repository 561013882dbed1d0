"""How the barriers of a job travel: one value, for those that create barriers and those that handle them.

    AT_LEAST_ONCE      no channel is blocked; after a restore records may count twice
    ALIGNED            exactly once; channels are blocked after their barriers
    UNALIGNED          exactly once; barriers overtake records, which become part of the checkpoint
    unaligned_after    aligned for some time, then unaligned

A barrier records whether and when it overtakes; the mode selects the table that handles it. If records must not be
overtaken (`may_overtake`), every barrier is aligned. A savepoint is aligned in every mode except at least once, so it
never has in-flight records.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from statebackend.checkpoint.barriers.elements import BarrierHandler, CheckpointBarrier
from statebackend.checkpoint.barriers.exactly_once import ExactlyOnceHandler, alternating, always_aligned
from statebackend.checkpoint.barriers.tracker import BarrierTracker
from statebackend.checkpoint.errors import InvariantViolationError


@frozen(kw_only=True)
class CheckpointingMode:
    """The handling of barriers.

    Barriers overtake at once if ``is_unaligned``, otherwise ``alignment_timeout_ms`` after their creation (None:
    never). Raises `InvariantViolationError` for barriers that overtake in at-least-once mode, which blocks no channel.
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
                "unaligned checkpoints need exactly_once: in at_least_once no barrier waits. Leave one of the two out"
            )
        if self.alignment_timeout_ms is not None and self.alignment_timeout_ms < 0:
            raise InvariantViolationError(f"an alignment cannot time out after {self.alignment_timeout_ms} ms")

    @classmethod
    def unaligned_after(cls, alignment_timeout_ms: int) -> CheckpointingMode:
        """Aligned until that many milliseconds after the creation of a barrier, then unaligned."""
        return cls(alignment_timeout_ms=alignment_timeout_ms)

    @property
    def may_be_unaligned(self) -> bool:
        """Whether a checkpoint may contain in-flight records."""
        return self.is_unaligned or self.alignment_timeout_ms is not None

    def barrier(self, checkpoint_id: int, created_ms: int, *, is_savepoint: bool = False) -> CheckpointBarrier:
        """Create a barrier of a checkpoint at that time, in milliseconds of the handlers' clock."""
        return CheckpointBarrier(
            checkpoint_id=checkpoint_id,
            created_ms=created_ms,
            is_savepoint=is_savepoint,
            is_unaligned=self.is_unaligned and not is_savepoint,
            alignment_timeout_ms=None if is_savepoint else self.alignment_timeout_ms,
        )

    def handler(self, channel_count: int, *, may_overtake: bool = True) -> BarrierHandler:
        """Create the barrier handler of a task. Raises `InvariantViolationError` if it has no channels."""
        if not self.is_exactly_once:
            return BarrierTracker(channel_count)
        return ExactlyOnceHandler(channel_count, alternating if may_overtake else always_aligned)


CheckpointingMode.AT_LEAST_ONCE = CheckpointingMode(is_exactly_once=False)
CheckpointingMode.ALIGNED = CheckpointingMode()
CheckpointingMode.UNALIGNED = CheckpointingMode(is_unaligned=True)
