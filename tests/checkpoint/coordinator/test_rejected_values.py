"""Invalid coordinators, tasks and acknowledgements are rejected when they are created."""

from __future__ import annotations

from typing import Any

import pytest

from statebackend.checkpoint import (
    Acknowledgement,
    ChannelTimestamp,
    CheckpointCoordinator,
    InvariantViolationError,
    SubtaskState,
    TaskId,
)
from statebackend.checkpoint.coordinator.acknowledgement import MAX_REPORT_ENTRIES

INDEXES = [-1, 1 << 31, True, 1.0, "1", None]
NAMES = ["", None, 7, "\ud800"]
CHANNEL = ChannelTimestamp("source", "channel", 5)


def made(**changes: Any) -> Acknowledgement:
    content = {
        "job_id": "job",
        "run_id": "run",
        "checkpoint_id": 7,
        "operator_uid": "one",
        "subtask_index": 0,
        "attempt_id": "attempt",
        "digest": "digest",
        "state": SubtaskState(),
    }
    return Acknowledgement(**{**content, **changes})


@pytest.mark.parametrize("index", INDEXES)
def test_a_subtask_index_has_at_most_32_bits(index: Any) -> None:
    for make in (lambda: TaskId("one", index), lambda: made(subtask_index=index)):
        with pytest.raises(InvariantViolationError, match="subtask_index must be an integer from 0 to 2147483647"):
            make()
    assert made(subtask_index=(1 << 31) - 1).task == TaskId("one", (1 << 31) - 1)


@pytest.mark.parametrize("name", NAMES)
def test_an_acknowledgement_needs_names(name: Any) -> None:
    with pytest.raises(InvariantViolationError, match="operator_uid"):
        TaskId(name, 0)
    for part in ("job_id", "run_id", "operator_uid", "attempt_id", "digest"):
        with pytest.raises(InvariantViolationError, match=part):
            made(**{part: name})


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": None},
        {"state": "state"},
        {"checkpoint_id": -1},
        {"checkpoint_id": True},
        {"channel_timestamps": [CHANNEL]},
        {"channel_timestamps": ("channel",)},
        {"channel_timestamps": (CHANNEL, ChannelTimestamp("source", "channel", 6))},
        {"event_time_timer_ms": 1 << 63},
        {"processing_time_timer_ms": "soon"},
        {"report": {"n": 1 << 63}},
        {"report": {"n": -(1 << 63) - 1}},
        {"metrics": {"n": b"bytes"}},
        {"metrics": {"": 1}},
        {"metrics": {str(number): 0 for number in range(MAX_REPORT_ENTRIES + 1)}},
    ],
    ids=str,
)
def test_other_types_are_not_acknowledgements(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvariantViolationError):
        made(**wrong)


def test_values_at_the_limit_are_acknowledged() -> None:
    values = {"least": -(1 << 63), "greatest": (1 << 63) - 1}
    full = {str(number): 0 for number in range(MAX_REPORT_ENTRIES)}
    one = made(report=values, metrics=full, channel_timestamps=(CHANNEL,), event_time_timer_ms=(1 << 62))
    assert Acknowledgement.decode(one.encode()) == one


@pytest.mark.parametrize(
    "wrong",
    [
        *({"job_id": name} for name in NAMES),
        *({"run_id": name} for name in NAMES),
        *({"timeout_ms": number} for number in (0, -1, True, 1.5, "1")),
        *({"max_concurrent_checkpoints": number} for number in (0, -1, 1001, True, "1")),
    ],
    ids=str,
)
def test_a_coordinator_needs_names_and_limits(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvariantViolationError):
        CheckpointCoordinator(**{"job_id": "job", "run_id": "run", "timeout_ms": 1, **wrong})
    CheckpointCoordinator("job", "run", None, max_concurrent_checkpoints=None)


@pytest.mark.parametrize("checkpoint_id", [-1, True, 1.0, "1", None, 1 << 63])
def test_a_checkpoint_id_must_fit(checkpoint_id: Any) -> None:
    coordinator = CheckpointCoordinator("job", "run", None)
    with pytest.raises(InvariantViolationError, match="checkpoint_id must be an integer from 0"):
        coordinator.trigger(checkpoint_id, [TaskId("one", 0)], 0)
    assert coordinator.pending_ids == ()
