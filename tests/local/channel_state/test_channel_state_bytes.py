"""The byte format of channel state: it round trips, released files stay readable, and other bytes are rejected."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from snapshots.errors import StateFormatError
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.local import channel_state as channel_state_bytes
from statebackend.local.channel_state import decode_elements, decode_meta, encode_part, forms_of_operators
from statebackend.local.graph import rows_of
from statebackend.local.network.channel import InFlight, RecordBatch
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import END_OF_TIME, Watermark, WatermarkStatus
from tests.local.channel_state.channel_states import COUNTS, FORMS, counts, everything, in_flight, time

pytestmark = pytest.mark.slow

WORDS = TaskId("words", 0)


def reader(end: TaskId) -> str:
    return "join"


def sealed(body: bytes) -> bytes:
    """A metadata file with a valid checksum and any body."""
    return b"SBCH\0\0\0\1" + xxhash.xxh3_64_digest(body) + body


def test_channel_state_round_trips() -> None:
    meta, data = encode_part(time(), in_flight(), reader, FORMS)
    read = decode_meta(meta)
    assert read.time == time()
    assert {one.end: one.element_count for one in read.channels} == {WORDS: 5, TaskId("rates", 3): 1}
    assert decode_elements(read, data, reader, FORMS) == in_flight()


def test_rows_keep_their_types() -> None:
    meta, data = encode_part(None, {WORDS: [everything()]}, reader, FORMS)
    [batch] = decode_elements(decode_meta(meta), data, reader, FORMS)[WORDS]
    assert isinstance(batch, RecordBatch)
    for row, read in zip(everything().records, batch.records, strict=True):
        assert type(read) is type(row)
        assert [type(value) for value in read] == [type(value) for value in row]


elements = st.one_of(
    st.integers(MIN_TIMESTAMP + 1, MAX_TIMESTAMP - 1).map(Watermark),
    st.sampled_from(WatermarkStatus),
    st.lists(st.tuples(st.one_of(st.none(), st.text(max_size=4)), st.none() | st.integers(-(1 << 63), (1 << 63) - 1)),
             min_size=1, max_size=4)
    .flatmap(lambda rows: st.tuples(
        st.just(rows), st.none() | st.lists(st.none() | st.integers(MIN_TIMESTAMP, MAX_TIMESTAMP),
                                            min_size=len(rows), max_size=len(rows))))
    .map(lambda made: RecordBatch(0, rows_of(made[0], COUNTS), made[1])),
)  # fmt: skip


@given(st.dictionaries(st.integers(0, 3).map(lambda index: TaskId("s", index)), st.lists(elements, min_size=1)))
def test_any_elements_round_trip_in_order(channels: dict[TaskId, Sequence[InFlight]]) -> None:
    meta, data = encode_part(time(), channels, reader, FORMS)
    assert decode_elements(decode_meta(meta), data, reader, FORMS) == channels


def test_every_flipped_byte_and_every_truncation_of_the_metadata_is_rejected() -> None:
    meta, _ = encode_part(time(), in_flight(), reader, FORMS)
    for place in range(len(meta)):
        for damaged in (meta[:place], meta[:place] + bytes([meta[place] ^ 0xFF]) + meta[place + 1 :]):
            with pytest.raises(StateFormatError):
                decode_meta(damaged)
    with pytest.raises(StateFormatError):
        decode_meta(meta + b"\0")


def test_malformed_bytes_with_a_valid_checksum_are_rejected_or_read() -> None:
    meta, data = encode_part(time(), in_flight(), reader, FORMS)
    body = meta[16:]
    for place in range(len(body)):
        for damaged in (body[:place], *(body[:place] + bytes([bad]) + body[place + 1 :] for bad in (0, 1, 0x7F, 0xFF))):
            with contextlib.suppress(StateFormatError):
                decode_elements(decode_meta(sealed(damaged)), data, reader, FORMS)
    whole = decode_meta(meta)
    for place in range(len(data)):
        for bad in (0, 1, 0x7F, 0xFF):
            damaged = data[:place] + bytes([bad]) + data[place + 1 :]
            with contextlib.suppress(StateFormatError):
                decode_elements(whole, damaged, reader, FORMS)
        with pytest.raises(StateFormatError):
            decode_elements(whole, data[:place], reader, FORMS)


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (RecordBatch(0, []), "has no records"),
        (RecordBatch(0, counts("a").records, [1, 2]), "more or fewer timestamps than records"),
        (RecordBatch(2, counts("a").records), "the records for input 2 of 'join' have no declared schema"),
        (RecordBatch(0, [{"word": "a", "count": 1}]), "is not a row of the 2 columns declared"),
        (RecordBatch(0, [("a", "not a number")]), "count"),
        (END_OF_TIME, "a watermark in flight is neither the smallest nor the largest time"),
        (Watermark(MIN_TIMESTAMP), "a watermark in flight is neither the smallest nor the largest time"),
    ],
)
def test_invalid_channel_state_is_not_written(element: Any, message: str) -> None:
    with pytest.raises(StateFormatError, match=message):
        encode_part(None, {WORDS: [element]}, reader, FORMS)


def test_a_channel_without_elements_is_not_written() -> None:
    with pytest.raises(StateFormatError, match="has no elements"):
        encode_part(None, {WORDS: []}, reader, FORMS)


def test_channel_state_beyond_the_limit_is_neither_written_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    meta, data = encode_part(None, in_flight(), reader, FORMS)
    monkeypatch.setattr(channel_state_bytes, "MAX_CHANNEL_STATE_BYTES", len(data))
    encode_part(None, in_flight(), reader, FORMS)
    monkeypatch.setattr(channel_state_bytes, "MAX_CHANNEL_STATE_BYTES", len(data) - 1)
    with pytest.raises(StateFormatError, match="use aligned checkpoints"):
        encode_part(None, in_flight(), reader, FORMS)
    with pytest.raises(StateFormatError, match="bytes of elements"):
        decode_meta(meta)


def test_records_of_another_schema_are_not_read() -> None:
    meta, data = encode_part(None, {WORDS: [counts("a")]}, reader, FORMS)
    other = forms_of_operators({"join": [parsed_schema("word string, count int", "test")]})
    with pytest.raises(StateFormatError, match="input 0 of 'join' were rows of another schema"):
        decode_elements(decode_meta(meta), data, reader, other)
    with pytest.raises(StateFormatError, match="input 0 of 'join' were rows of another schema"):
        decode_elements(decode_meta(meta), data, reader, {})


def test_a_later_version_is_rejected_by_its_number() -> None:
    meta, _ = encode_part(None, {}, reader, FORMS)
    with pytest.raises(StateFormatError, match="channel state was written by a newer version of statebackend"):
        decode_meta(meta[:7] + b"\2" + meta[8:])
