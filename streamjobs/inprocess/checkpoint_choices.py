"""What a program says of its checkpoints, checked before anything is touched."""

from __future__ import annotations

from attrs import frozen

from checkpointing.barriers.checkpointing_mode import CheckpointingMode
from checkpointing.coordinator.checkpoint_requests import CheckpointLimits
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.errors import InvariantViolationError
from streamjobs.errors import JobDefinitionError
from streamjobs.inprocess.run_snapshots import CheckpointSettings
from streamjobs.runtime.given_settings import check_whole_numbers

__all__ = ["CheckpointChoices", "settings_of"]


@frozen(kw_only=True)
class CheckpointChoices:
    """What a program says of its checkpoints; see `LocalStreamEnvironment`."""

    interval_ms: int | None
    mode: str
    is_unaligned: bool
    aligned_timeout_ms: int
    max_concurrent: int
    min_pause_ms: int
    timeout_ms: int
    tolerable_failures: int


def settings_of(choices: CheckpointChoices) -> CheckpointSettings:
    """The settings of a run; raises `JobDefinitionError` for what cannot be."""
    if choices.mode not in ("exactly_once", "at_least_once"):
        raise JobDefinitionError(f"checkpointing_mode is {choices.mode!r}; it is 'exactly_once' or 'at_least_once'")
    check_whole_numbers(
        {
            "checkpoint_interval_ms": choices.interval_ms,
            "aligned_checkpoint_timeout_ms": choices.aligned_timeout_ms,
            "max_concurrent_checkpoints": choices.max_concurrent,
            "min_pause_between_checkpoints_ms": choices.min_pause_ms,
            "checkpoint_timeout_ms": choices.timeout_ms,
            "tolerable_failed_checkpoints": choices.tolerable_failures,
        }
    )
    if choices.interval_ms is not None and choices.interval_ms < 1:
        raise JobDefinitionError(f"checkpoint_interval_ms is {choices.interval_ms}; it is at least 1")
    if choices.timeout_ms < 1:
        raise JobDefinitionError(f"checkpoint_timeout_ms is {choices.timeout_ms}; it is at least 1")
    try:
        is_exactly_once = choices.mode == "exactly_once"
        has_timeout = choices.aligned_timeout_ms > 0
        mode = CheckpointingMode(
            is_exactly_once=is_exactly_once,
            is_unaligned=choices.is_unaligned and not has_timeout,
            alignment_timeout_ms=choices.aligned_timeout_ms if choices.is_unaligned and has_timeout else None,
        )
        limits = CheckpointLimits(
            max_concurrent_checkpoints=choices.max_concurrent, minimum_pause_ms=choices.min_pause_ms
        )
        FailurePolicy(choices.tolerable_failures)
    except InvariantViolationError as error:
        raise JobDefinitionError(f"checkpoints of the environment: {error}") from error
    return CheckpointSettings(
        mode=mode,
        interval_ms=choices.interval_ms,
        timeout_ms=choices.timeout_ms,
        limits=limits,
        tolerable_failures=choices.tolerable_failures,
        has_threads=choices.interval_ms is not None,
    )
