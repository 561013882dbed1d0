"""Limits of the parts of a checkpoint from both sides: the limit is accepted, and one more is rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from checkpoint_builders import acknowledgement, file_handle, operator_state

from statebackend.checkpoint import (
    Acknowledgement,
    ChannelTimestamp,
    ChannelWatermark,
    CheckpointCoordinator,
    CheckpointError,
    CheckpointKind,
    CheckpointMetadata,
    FileHandle,
    InputChannel,
    InputWatermark,
    InvariantViolationError,
    KeyedStateHandle,
    MalformedAcknowledgementError,
    NodeWatermark,
    OpaqueStateHandle,
    OperatorState,
    ReadSource,
    SavepointIdentity,
    SourcePositions,
    SubtaskState,
    TaskId,
    TimersDue,
    UnsafePathError,
    WatermarkState,
)
from statebackend.checkpoint.coordinator import acknowledgement as acknowledgements
from statebackend.checkpoint.invariants import checked_relative_path, path_segment
from statebackend.checkpoint.state_handles import check_operator_states

LONGEST = "n" * 1024
TOO_LONG = "n" * 1025
LARGEST_LONG = (1 << 63) - 1
CHECKSUM = "xxh3:" + "0" * 32
PLAIN = operator_state()


def metadata(**changes: Any) -> CheckpointMetadata:
    fields: dict[str, Any] = {
        "checkpoint_id": 1,
        "kind": CheckpointKind.CHECKPOINT,
        "job_id": "job",
        "job_name": "name",
        "timestamp_ms": 5,
        "max_parallelism": 4,
        "operators": (),
    }
    return CheckpointMetadata(**{**fields, **changes})


def altered(**changes: Any) -> OperatorState:
    return attrs.evolve(PLAIN, **changes)


def of_reports(count: int) -> dict[str, int]:
    return {str(number): number for number in range(count)}


FITS: list[Callable[[], object]] = [
    lambda: FileHandle("a", 0, CHECKSUM),
    lambda: FileHandle("a", LARGEST_LONG, CHECKSUM),
    lambda: KeyedStateHandle(LONGEST, LONGEST, 0, 0, b""),
    lambda: KeyedStateHandle("s", "heap", (1 << 15) - 1, (1 << 15) - 1, b""),
    lambda: SubtaskState(),
    lambda: OpaqueStateHandle(LONGEST, b""),
    lambda: OperatorState(LONGEST, LONGEST, 1, (SubtaskState(),)),
    lambda: OperatorState("u", "n", 1 << 15, (SubtaskState(),) * (1 << 15)),
    lambda: ChannelTimestamp("source", "", -(1 << 63)),
    lambda: ChannelTimestamp(LONGEST, LONGEST, LARGEST_LONG),
    lambda: ChannelWatermark(source="source", watermark_ms=-(1 << 63), last_active_ms=0),
    lambda: TimersDue("u", -(1 << 63), LARGEST_LONG),
    lambda: SourcePositions(batch_id=LARGEST_LONG, offsets=b"", sources=(ReadSource("", LONGEST, LONGEST),)),
    lambda: SavepointIdentity("job", 0, 0),
    lambda: acknowledgement(event_time_timer_ms=-(1 << 63), processing_time_timer_ms=LARGEST_LONG),
    lambda: TaskId("u", 0),
    lambda: TaskId(LONGEST, (1 << 31) - 1),
    lambda: acknowledgement(checkpoint_id=0, subtask_index=0),
    lambda: attrs.evolve(acknowledgement(), checkpoint_id=LARGEST_LONG, subtask_index=(1 << 31) - 1),
    lambda: acknowledgement(report={"a": -(1 << 63), "b": LARGEST_LONG, "c": None, "d": "", "e": True, "f": 0.5}),
    lambda: acknowledgement(report=of_reports(10_000), metrics=of_reports(10_000)),
    lambda: metadata(checkpoint_id=0, timestamp_ms=0, max_parallelism=1, processing_time_ms=0),
    lambda: metadata(checkpoint_id=LARGEST_LONG, timestamp_ms=LARGEST_LONG, max_parallelism=1 << 15),
    lambda: metadata(job_id=LONGEST, job_name=LONGEST, properties={LONGEST: ""}, sink_committables={LONGEST: b""}),
    lambda: metadata(parent_checkpoint_id=0, parent_digest=CHECKSUM),
    lambda: CheckpointCoordinator(LONGEST, LONGEST, None),
    lambda: CheckpointCoordinator("job", "run", 1, max_concurrent_checkpoints=1),
    lambda: CheckpointCoordinator("job", "run", LARGEST_LONG, max_concurrent_checkpoints=1000),
    lambda: CheckpointCoordinator("job", "run", 1).trigger(0, (TaskId("u", 0),), 0),
    lambda: CheckpointCoordinator("job", "run", 1).trigger(LARGEST_LONG, (TaskId("u", 0),), 0),
    lambda: checked_relative_path("a" * 255),
    lambda: checked_relative_path("é" * 127),
    lambda: checked_relative_path("/".join(["a" * 255] * 4)),
    lambda: checked_relative_path("/".join(["a" * 204] * 5)),
    lambda: checked_relative_path(" ~é/a b"),
]

DOES_NOT_FIT: list[Callable[[], object]] = [
    lambda: FileHandle("a", LARGEST_LONG + 1, CHECKSUM),
    lambda: FileHandle("a", 1, CHECKSUM[:-1] + "G"),
    lambda: KeyedStateHandle(TOO_LONG, "heap", 0, 0, b""),
    lambda: KeyedStateHandle("s", TOO_LONG, 0, 0, b""),
    lambda: KeyedStateHandle("s", "", 0, 0, b""),
    lambda: KeyedStateHandle("s", "heap", 1 << 15, 1 << 15, b""),
    lambda: KeyedStateHandle("s", "heap", 0, 0, bytearray()),
    lambda: KeyedStateHandle("s", "heap", 0, 0, b"", (file_handle("a"), "b")),
    lambda: OpaqueStateHandle(TOO_LONG, b""),
    lambda: OperatorState(TOO_LONG, "n", 1, (SubtaskState(),)),
    lambda: OperatorState("u", "", 1, (SubtaskState(),)),
    lambda: OperatorState("u", TOO_LONG, 1, (SubtaskState(),)),
    lambda: OperatorState("u", "n", 1, ()),
    lambda: OperatorState("u", "n", 0, (SubtaskState(),)),
    lambda: OperatorState("u", "n", (1 << 15) + 1, (SubtaskState(),)),
    lambda: ChannelTimestamp("", "", 0),
    lambda: ChannelTimestamp("source", None, 0),
    lambda: ChannelTimestamp("source", TOO_LONG, 0),
    lambda: ChannelTimestamp("source", "", None),
    lambda: ChannelTimestamp("source", "", LARGEST_LONG + 1),
    lambda: ChannelWatermark(source="source", watermark_ms=-(1 << 63) - 1),
    lambda: ChannelWatermark(source="source", last_active_ms=-1),
    lambda: ChannelWatermark(source="source", is_idle=1),
    lambda: WatermarkState(0.5),
    lambda: WatermarkState(0, [ChannelWatermark(source="source")]),
    lambda: WatermarkState(0, (ChannelWatermark(source="source"), ChannelWatermark(source="source", watermark_ms=1))),
    lambda: WatermarkState(0, (), (NodeWatermark(node="a"), NodeWatermark(node="a", is_idle=True))),
    lambda: WatermarkState(0, (), [NodeWatermark(node="a")]),
    lambda: NodeWatermark(node=""),
    lambda: NodeWatermark(node="a", sent_watermark_ms=LARGEST_LONG + 1),
    lambda: NodeWatermark(node="a", inputs=[InputWatermark(0, (InputChannel("b"),))]),
    lambda: InputWatermark(0, ()),
    lambda: InputWatermark(0, (InputChannel("b"), InputChannel("b", 1))),
    lambda: InputChannel("", 1),
    lambda: InputChannel("b", 0.5),
    lambda: InputChannel("b", 1, 1),
    lambda: TimersDue("u", LARGEST_LONG + 1),
    lambda: TimersDue("", 1),
    lambda: SourcePositions(batch_id=-1, offsets=b""),
    lambda: SourcePositions(batch_id=None, offsets=b""),
    lambda: SourcePositions(batch_id=1, offsets="text"),
    lambda: SourcePositions(batch_id=1, offsets=b"", sources=[ReadSource("a")]),
    lambda: SourcePositions(batch_id=1, offsets=b"", sources=("a",)),
    lambda: ReadSource("\ud800"),
    lambda: ReadSource("rate", ""),
    lambda: ReadSource("rate", TOO_LONG),
    lambda: ReadSource("rate", "clock", ""),
    lambda: SavepointIdentity("", 0, 0),
    lambda: SavepointIdentity("job", -1, 0),
    lambda: acknowledgement(event_time_timer_ms=LARGEST_LONG + 1),
    lambda: acknowledgement(processing_time_timer_ms=0.5),
    lambda: acknowledgement(channel_timestamps=[]),
    lambda: acknowledgement(channel_timestamps=(ChannelTimestamp("a", "", 1), ChannelTimestamp("a", "", 2))),
    lambda: altered(subtasks=list(PLAIN.subtasks)),
    lambda: altered(subtasks=(*PLAIN.subtasks, None)),
    lambda: check_operator_states([altered(subtasks=())]),
    lambda: check_operator_states([altered(max_parallelism=PLAIN.max_parallelism - 1)]),
    lambda: check_operator_states([altered(max_parallelism=PLAIN.max_parallelism + 1)]),
    lambda: TaskId("u", 1 << 31),
    lambda: TaskId("u", -1),
    lambda: TaskId("", 0),
    lambda: acknowledgement(checkpoint_id=1 << 63),
    lambda: attrs.evolve(acknowledgement(), subtask_index=1 << 31),
    *[
        lambda name=name: attrs.evolve(acknowledgement(), **{name: ""})
        for name in ("job_id", "run_id", "operator_uid", "attempt_id", "digest")
    ],
    lambda: attrs.evolve(acknowledgement(), state=None),
    lambda: acknowledgement(report={"a": -(1 << 63) - 1}),
    lambda: acknowledgement(metrics={"a": 1 << 63}),
    lambda: acknowledgement(report=of_reports(10_001)),
    lambda: acknowledgement(metrics=of_reports(10_001)),
    lambda: metadata(checkpoint_id=1 << 63),
    lambda: metadata(timestamp_ms=1 << 63),
    lambda: metadata(timestamp_ms=-1),
    lambda: metadata(max_parallelism=(1 << 15) + 1),
    lambda: metadata(job_id=""),
    lambda: metadata(job_name=TOO_LONG),
    lambda: metadata(operators=(None,)),
    lambda: metadata(operators=[]),
    lambda: metadata(parent_checkpoint_id=2, parent_digest=CHECKSUM),
    lambda: metadata(parent_checkpoint_id=-1, parent_digest=CHECKSUM),
    lambda: metadata(source_positions=bytearray()),
    lambda: metadata(sink_committables={"a": "text"}),
    lambda: metadata(sink_committables={TOO_LONG: b""}),
    lambda: metadata(properties={"": "text"}),
    lambda: metadata(properties={"a": "\ud800"}),
    lambda: CheckpointCoordinator("", "run", None),
    lambda: CheckpointCoordinator("job", "", None),
    lambda: CheckpointCoordinator("job", "run", 0),
    lambda: CheckpointCoordinator("job", "run", 1 << 63),
    lambda: CheckpointCoordinator("job", "run", 1.5),
    lambda: CheckpointCoordinator("job", "run", None, max_concurrent_checkpoints=0),
    lambda: CheckpointCoordinator("job", "run", None, max_concurrent_checkpoints=1001),
    lambda: CheckpointCoordinator("job", "run", None).trigger(-1, (TaskId("u", 0),), 0),
    lambda: CheckpointCoordinator("job", "run", None).trigger(1 << 63, (TaskId("u", 0),), 0),
    lambda: checked_relative_path("a" * 256),
    lambda: checked_relative_path("é" * 128),
    lambda: checked_relative_path("/".join(["a" * 255] * 4) + "a"),
    lambda: checked_relative_path("/".join(["a" * 204] * 5) + "a"),
    lambda: checked_relative_path("a\x1f"),
    lambda: checked_relative_path("é/../a"),
    lambda: checked_relative_path("é\\a"),
    lambda: checked_relative_path("\ud800"),
]


@pytest.mark.parametrize("build", FITS)
def test_values_at_the_limit_are_accepted(build: Callable[[], object]) -> None:
    build()


@pytest.mark.parametrize("build", DOES_NOT_FIT)
def test_values_beyond_the_limit_are_rejected(build: Callable[[], object]) -> None:
    with pytest.raises((InvariantViolationError, UnsafePathError)):
        build()


def test_an_acknowledgement_has_at_most_the_maximal_length(monkeypatch: pytest.MonkeyPatch) -> None:
    one = acknowledgement()
    data = one.encode()
    monkeypatch.setattr(acknowledgements, "MAX_ACKNOWLEDGEMENT_BYTES", len(data))
    assert Acknowledgement.decode(one.encode()) == one
    monkeypatch.setattr(acknowledgements, "MAX_ACKNOWLEDGEMENT_BYTES", len(data) - 1)
    with pytest.raises(MalformedAcknowledgementError, match="Move state from meta"):
        one.encode()
    with pytest.raises(MalformedAcknowledgementError, match="the limit is"):
        Acknowledgement.decode(data)


def test_the_error_of_a_short_acknowledgement_names_what_is_missing() -> None:
    data = acknowledgement().encode()
    for length in range(5, 13):
        with pytest.raises(MalformedAcknowledgementError, match=f"ends after {length} bytes, within its header"):
            Acknowledgement.decode(data[:length])
    with pytest.raises(MalformedAcknowledgementError, match="checksum does not match"):
        Acknowledgement.decode(data[:13])


def test_a_name_is_shortened_only_if_it_is_too_long_for_a_segment() -> None:
    assert path_segment("a" * 150) == "a" * 150
    cut = path_segment("a" * 151)
    assert (len(cut), cut[:117]) == (150, "a" * 117)
    assert cut[117] == "~"


def test_equal_handles_may_describe_one_file_twice() -> None:
    ours, theirs = (operator_state(uid, (file_handle("shared/x", b"1"),)) for uid in ("one", "two"))
    assert ours.subtasks[0].files[0] is not theirs.subtasks[0].files[0]
    check_operator_states([ours, theirs])


def test_limit_errors_are_checkpoint_errors() -> None:
    assert issubclass(InvariantViolationError, CheckpointError)
    assert issubclass(UnsafePathError, CheckpointError)


@pytest.mark.parametrize(
    ("path", "match"),
    [("/é", "absolute"), ("/a", "absolute"), ("é//a", "empty segment"), ("é\\a", "backslash"), ("a/", "empty")],
)
def test_a_rejected_path_has_a_reason(path: str, match: str) -> None:
    with pytest.raises(UnsafePathError, match=match):
        checked_relative_path(path)
