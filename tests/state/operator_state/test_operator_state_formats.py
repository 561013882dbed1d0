"""Operator state in the state of a subtask, byte for byte."""

import struct

import attrs
import pytest

from snapshots.envelope import snapshot_to_bytes
from statebackend.checkpoint.state_handles import FileHandle, OpaqueStateHandle
from statebackend.state.errors import StateRestoreError
from statebackend.state.operator_state_descriptors import (
    OperatorStateMode,
    SplitListStateDescriptor,
)
from statebackend.state.operator_state_handles import (
    FileSlice,
    OperatorStateHandle,
    OperatorStateMeta,
    StatePart,
    decode_operator_state,
    encode_operator_state,
)
from typeserializers import LongSerializer

CHECKSUM = "xxh3:" + "0" * 32
ENVELOPE = snapshot_to_bytes(LongSerializer().snapshot_configuration())
FIRST_FILE, SECOND_FILE = (FileHandle(path, 1, CHECKSUM) for path in ("first", "second"))
SLICE = FileSlice(SECOND_FILE, 2, 5)
DIGEST = bytes(range(16))


def state(name="offsets", mode=OperatorStateMode.UNION, slices=(SLICE,), digest=None, **envelopes):
    return OperatorStateMeta(name, mode, (StatePart(envelopes or {"element": ENVELOPE}, tuple(slices), digest),))


def test_operator_state_is_written_byte_for_byte_as_documented():
    states = (
        state("rules", OperatorStateMode.BROADCAST, [FileSlice(FIRST_FILE, 0, 7)], value=ENVELOPE, key=ENVELOPE),
        state(slices=[FileSlice(SECOND_FILE, 2, 5), FileSlice(FIRST_FILE, 7, 8)], digest=DIGEST),
        state("empty", OperatorStateMode.SPLIT, []),
    )
    part = encode_operator_state(OperatorStateHandle(states))
    assert part.files == (FIRST_FILE, SECOND_FILE)
    assert part.format == "operator_state"
    element = i32(1) + utf("element") + sized(ENVELOPE)
    assert part.meta == (
        b"SBOS"
        + i32(1)
        + i32(3)
        + utf("rules")
        + utf("broadcast")
        + i32(1)
        + i32(2)
        + utf("key")
        + sized(ENVELOPE)
        + utf("value")
        + sized(ENVELOPE)
        + i32(1)
        + file_slice(0, 0, 7)
        + sized(b"")
        + utf("offsets")
        + utf("union")
        + i32(1)
        + element
        + i32(2)
        + file_slice(1, 2, 5)
        + file_slice(0, 7, 8)
        + sized(DIGEST)
        + utf("empty")
        + utf("split")
        + i32(1)
        + element
        + i32(0)
        + sized(b"")
    )
    decoded = decode_operator_state(part)
    assert decoded == OperatorStateHandle(states)
    assert [one.parts[0].digest for one in decoded.states] == [None, DIGEST, None]


def test_without_state_there_is_no_part():
    assert encode_operator_state(OperatorStateHandle()) is None
    assert decode_operator_state(None) == OperatorStateHandle()


@pytest.mark.parametrize(
    ("states", "what"),
    [
        ((state(), state()), "'offsets' appears twice"),
        ((attrs.evolve(state(), parts=()),), "no part"),
        ((state(value=ENVELOPE),), "a union state with the serializers value"),
        ((state(slices=[FileSlice(FIRST_FILE, 3, 3)]),), "rows 3 to 3"),
        ((state(slices=[FileSlice(FIRST_FILE, -1, 3)]),), "rows -1 to 3"),
    ],
)
def test_invalid_operator_state_is_not_written(states, what):
    with pytest.raises(StateRestoreError, match=what):
        encode_operator_state(OperatorStateHandle(states))


def part_of(*, magic=b"SBOS", version=1, states=1, mode="union", index=0, first=0, last=5, files=1, digest=DIGEST):
    meta = (
        magic
        + i32(version)
        + i32(states)
        + utf("offsets")
        + utf(mode)
        + i32(1)
        + i32(1)
        + utf("element")
        + sized(ENVELOPE)
        + i32(1)
        + file_slice(index, first, last)
        + sized(digest)
    )
    return OpaqueStateHandle("operator_state", meta, (FIRST_FILE, SECOND_FILE)[:files])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"magic": b"SBO3"}, "pre-release"),
        ({"magic": b"", "version": 3}, "pre-release"),
        ({"version": 2}, "newer version of statebackend: its format has version 2"),
        ({"version": 0}, "no version 0"),
        ({"files": 0}, "refers to file 0, which is not one of its own"),
        ({"digest": DIGEST[:-1]}, "a digest of 15 bytes"),
        ({"files": 2}, "files of operator state that no state refers to"),
        ({"states": 10**6}, "does not fit the"),
        ({"states": -1}, "does not fit the"),
        ({"states": 0}, "bytes follow"),
        ({"mode": "other"}, "unknown mode 'other'"),
        ({"mode": "broadcast"}, "a broadcast state with the serializers element"),
        ({"index": -1}, "refers to file -1"),
        ({"index": 1}, "refers to file 1"),
        ({"first": 5}, "rows 5 to 5"),
        ({"first": -1}, "rows -1 to 5"),
    ],
)
def test_invalid_operator_state_is_not_read(changes, what):
    assert decode_operator_state(part_of()).state("offsets") is not None
    with pytest.raises(StateRestoreError, match=f"(?s){what}"):
        decode_operator_state(part_of(**changes))


def test_every_truncation_and_every_extra_byte_is_rejected():
    part = part_of()
    for length in range(len(part.meta)):
        with pytest.raises(StateRestoreError):
            decode_operator_state(attrs.evolve(part, meta=part.meta[:length]))
    with pytest.raises(StateRestoreError, match="1 bytes follow"):
        decode_operator_state(attrs.evolve(part, meta=part.meta + b"\0"))


def test_state_of_an_unknown_serializer_is_kept(operator):
    numbers = SplitListStateDescriptor("numbers", int)
    backends = operator.start()
    backends[0].get_state(numbers).add_all([1, 2, 3])
    (handle,) = operator.snapshot(backends)
    own = decode_operator_state(handle)
    (part,) = own.states[0].parts
    strange = attrs.evolve(part, envelopes={"element": b"\0\x05alien\0\0\0\x01"})
    alien = OperatorStateHandle((attrs.evolve(own.states[0], parts=(strange,)),))
    backends = operator.start([encode_operator_state(alien)], 2)
    with pytest.raises(StateRestoreError, match=r"'numbers'.*alien"):
        backends[0].get_state(numbers)
    exported, _ = operator.savepoint(operator.snapshot(operator.restart(backends, 1)))
    (state_in_savepoint,) = decode_operator_state(exported[0]).states
    assert state_in_savepoint.row_count == 3
    assert state_in_savepoint.parts[0].envelopes == strange.envelopes


def i32(number):
    return struct.pack(">i", number)


def utf(text):
    return struct.pack(">H", len(text)) + text.encode()


def sized(data):
    return i32(len(data)) + data


def file_slice(index, first, last):
    return struct.pack(">iqq", index, first, last)
