from __future__ import annotations

import math

import attrs
import pytest
from checkpoint_builders import acknowledgement, file_handle
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint import (
    Acknowledgement,
    ChannelTimestamp,
    InvariantViolationError,
    KeyedStateHandle,
    MalformedAcknowledgementError,
    OpaqueStateHandle,
    SubtaskState,
    TaskId,
)
from statebackend.checkpoint.coordinator.acknowledgement import MAX_ACKNOWLEDGEMENT_BYTES

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
VALUES = st.dictionaries(
    TEXT,
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | TEXT | st.just(""),
    max_size=5,
)


@given(report=VALUES, metrics=VALUES, meta=st.binary(), number_of_files=st.integers(0, 3), uid=TEXT)
def test_acknowledgements_round_trip(report, metrics, meta, number_of_files, uid) -> None:
    files = tuple(file_handle(f"shared/{number}") for number in range(number_of_files))
    one = Acknowledgement(
        "job",
        "run",
        7,
        uid,
        3,
        "attempt",
        "digest",
        SubtaskState(KeyedStateHandle("s", "heap", 1, 2, meta, files), OpaqueStateHandle("format", meta, files[:1])),
        report,
        metrics,
    )
    two = Acknowledgement.decode(one.encode())
    assert (two.state, two.task, two.checkpoint_id) == (one.state, TaskId(uid, 3), 7)
    for name in ("report", "metrics"):
        before, after = getattr(one, name), getattr(two, name)
        assert list(after) == list(before)
        for key, value in before.items():
            assert type(after[key]) is type(value)
            assert after[key] == value or (isinstance(value, float) and math.isnan(value))


def test_every_truncation_and_every_flipped_bit_is_detected() -> None:
    data = acknowledgement(report={"watermark_ms": 5}, files=(file_handle("a"),)).encode()
    for length in range(len(data)):
        with pytest.raises(MalformedAcknowledgementError):
            Acknowledgement.decode(data[:length])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MalformedAcknowledgementError):
            Acknowledgement.decode(bytes(flipped))
    with pytest.raises(MalformedAcknowledgementError):
        Acknowledgement.decode(data + b"\0")


@given(st.binary(max_size=200))
def test_malformed_bodies_with_a_valid_checksum_are_rejected_cheaply(body) -> None:
    import xxhash

    data = b"SBAC\x01" + xxhash.xxh3_64_digest(body) + body
    with pytest.raises(MalformedAcknowledgementError):
        Acknowledgement.decode(data)


def test_errors_name_the_fault() -> None:
    data = acknowledgement().encode()
    with pytest.raises(MalformedAcknowledgementError, match="version 2, this release reads 1"):
        Acknowledgement.decode(data[:4] + b"\x02" + data[5:])
    with pytest.raises(MalformedAcknowledgementError, match="starts with b'PAR1'"):
        Acknowledgement.decode(b"PAR1" + data[4:])
    with pytest.raises(MalformedAcknowledgementError, match="limit"):
        Acknowledgement.decode(bytes(MAX_ACKNOWLEDGEMENT_BYTES + 1))
    big = SubtaskState(KeyedStateHandle("s", "heap", 0, 0, bytes(MAX_ACKNOWLEDGEMENT_BYTES), ()))
    with pytest.raises(MalformedAcknowledgementError, match="Move state from meta into files"):
        Acknowledgement("job", "run", 1, "op", 0, "attempt", "digest", big).encode()


@pytest.mark.parametrize("report", [{"a": [1]}, {"a": 1 << 63}, {"": 1}, {"a": b"x"}, {1: 2}, {"a": "\ud800"}])
def test_a_report_contains_scalars_only(report) -> None:
    with pytest.raises(InvariantViolationError):
        acknowledgement(report=report)


@pytest.mark.parametrize("change", [{"checkpoint_id": -1}, {"subtask_index": -1}, {"digest": ""}, {"job_id": 5}])
def test_invalid_acknowledgements_are_rejected(change) -> None:
    with pytest.raises((InvariantViolationError, TypeError)):
        acknowledgement(**change)


def test_bytes_after_the_record_are_rejected_even_with_a_valid_checksum() -> None:
    import xxhash

    body = acknowledgement().encode()[13:] + b"\0"
    with pytest.raises(MalformedAcknowledgementError, match="has 1 bytes after its end"):
        Acknowledgement.decode(b"SBAC\x01" + xxhash.xxh3_64_digest(body) + body)


@given(
    timestamps=st.dictionaries(st.tuples(TEXT, st.just("") | TEXT), st.integers(-(1 << 63), (1 << 63) - 1), max_size=4),
    event_time_ms=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    processing_time_ms=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
)
def test_watermarks_and_timers_are_encoded(timestamps, event_time_ms, processing_time_ms) -> None:
    one = acknowledgement(
        channel_timestamps=tuple(ChannelTimestamp(*name, time_ms) for name, time_ms in timestamps.items()),
        event_time_timer_ms=event_time_ms,
        processing_time_timer_ms=processing_time_ms,
    )
    assert Acknowledgement.decode(one.encode()) == one
    assert one.has_timers == (event_time_ms is not None or processing_time_ms is not None)


def test_a_subtask_without_state_acknowledges() -> None:
    one = attrs.evolve(acknowledgement(), state=SubtaskState())
    assert Acknowledgement.decode(one.encode()) == one
