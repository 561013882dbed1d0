"""Operator state in a state handle, byte for byte, and as written by released versions.

The golden files are never regenerated: a new version gets new files next to the old ones.
"""

import json
import pathlib
import struct

import attrs
import pyarrow.parquet as pq
import pytest

from checkpointing.handles.state_handles import FileHandle, KeyedStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from snapshots.envelope import snapshot_to_bytes
from statebackend.api.errors import StateRestoreError
from statebackend.keyed.backend_parameters import KeyedStateSnapshot
from statebackend.keyed.state_meta import decode_meta
from statebackend.operator_state import (
    BroadcastStateDescriptor,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorStateMode,
    OperatorStateSnapshot,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
    join_handles,
    join_snapshots,
    split_handle,
)
from statebackend.operator_state.handles import FileSlice, StatePart
from testkit.backends.schemas import LegV1, LegV2, leg_v1, leg_v2
from typeserializers import LongSerializer

GOLDEN = pathlib.Path(__file__).parent / "golden"
CHECKSUM = "xxh3:" + "0" * 32
ENVELOPE = snapshot_to_bytes(LongSerializer().snapshot_configuration())
KEYED_FILE, FIRST_FILE, SECOND_FILE = (FileHandle(path, 1, CHECKSUM) for path in ("keyed", "first", "second"))
SLICE = FileSlice(SECOND_FILE, 2, 5)


def state(name="offsets", mode=OperatorStateMode.UNION, slices=(SLICE,), **envelopes):
    return OperatorStateMeta(name, mode, (StatePart(envelopes or {"element": ENVELOPE}, tuple(slices)),))


def keyed_handle(operator):
    return attrs.evolve(operator.keyed_handle(0, 1), files=(KEYED_FILE,))


def test_operator_state_is_written_byte_for_byte_as_documented(operator):
    keyed = keyed_handle(operator)
    states = (
        state("rules", OperatorStateMode.BROADCAST, [FileSlice(FIRST_FILE, 0, 7)], value=ENVELOPE, key=ENVELOPE),
        state(slices=[FileSlice(SECOND_FILE, 2, 5), FileSlice(FIRST_FILE, 7, 8)]),
        state("empty", OperatorStateMode.SPLIT, []),
    )
    joined = join_handles(keyed, OperatorStateHandle(states))
    assert joined.files == (KEYED_FILE, FIRST_FILE, SECOND_FILE)
    assert (joined.state_id, joined.backend) == (keyed.state_id, keyed.backend)
    element = i32(1) + utf("element") + sized(ENVELOPE)
    assert joined.meta == (
        b"SBO1"
        + i32(1)
        + i32(1)
        + sized(keyed.meta)
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
        + file_slice(1, 0, 7)
        + utf("offsets")
        + utf("union")
        + i32(1)
        + element
        + i32(2)
        + file_slice(2, 2, 5)
        + file_slice(1, 7, 8)
        + utf("empty")
        + utf("split")
        + i32(1)
        + element
        + i32(0)
    )
    assert split_handle(joined) == (keyed, OperatorStateHandle(states))


def test_without_operator_state_a_handle_and_a_snapshot_stay_as_they_are(operator):
    keyed = keyed_handle(operator)
    assert join_handles(keyed, OperatorStateHandle()) is keyed
    snapshot = KeyedStateSnapshot(keyed, "digest", 1, 2)
    assert join_snapshots(snapshot, OperatorStateSnapshot(OperatorStateHandle(), "other", 0, 0)) is snapshot


def test_a_joined_snapshot_counts_both_and_its_digest_depends_on_both(operator):
    handle = OperatorStateHandle((state(),))
    snapshots = [
        join_snapshots(
            KeyedStateSnapshot(keyed_handle(operator), keyed, 1, 10), OperatorStateSnapshot(handle, own, 2, 20)
        )
        for keyed, own in (("a", "b"), ("a", "c"), ("b", "b"))
    ]
    assert {(one.entries_written, one.bytes_written) for one in snapshots} == {(3, 30)}
    assert len({one.digest for one in snapshots}) == 3
    assert split_handle(snapshots[0].handle)[1] == handle


def test_keyed_state_with_operator_state_is_refused_by_name_where_it_was_not_split(operator):
    joined = join_handles(operator.keyed_handle(0, 1), OperatorStateHandle((state(slices=()),)))
    with pytest.raises(StateRestoreError, match=r"0x53424f31.*not ours"):
        decode_meta(joined.meta, 0)
    with pytest.raises(ValueError, match="carries operator state already"):
        join_handles(joined, OperatorStateHandle((state(slices=()),)))


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
def test_what_breaks_an_invariant_is_not_written(operator, states, what):
    with pytest.raises(StateRestoreError, match=what):
        join_handles(keyed_handle(operator), OperatorStateHandle(states))


def joined_parts(operator, *, version=1, keyed_files=1, states=1, mode="union", index=1, first=0, last=5):
    keyed = keyed_handle(operator)
    meta = (
        b"SBO1"
        + i32(version)
        + i32(keyed_files)
        + sized(keyed.meta)
        + i32(states)
        + utf("offsets")
        + utf(mode)
        + i32(1)
        + i32(1)
        + utf("element")
        + sized(ENVELOPE)
        + i32(1)
        + file_slice(index, first, last)
    )
    return attrs.evolve(keyed, meta=meta, files=(KEYED_FILE, FIRST_FILE))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"version": 2}, "version 2.*newer release"),
        ({"keyed_files": 3}, "has 2 files, not 3"),
        ({"keyed_files": -1}, "has 2 files, not -1"),
        ({"keyed_files": 2}, "refers to file 1, which is not one of its own"),
        ({"keyed_files": 0}, "files that no state refers to"),
        ({"states": 10**6}, "does not fit the"),
        ({"states": -1}, "does not fit the"),
        ({"states": 0}, "bytes follow"),
        ({"mode": "other"}, "'other' state, which is not known"),
        ({"mode": "broadcast"}, "a broadcast state with the serializers element"),
        ({"index": 0}, "refers to file 0"),
        ({"index": 2}, "refers to file 2"),
        ({"first": 5}, "rows 5 to 5"),
        ({"first": -1}, "rows -1 to 5"),
    ],
)
def test_what_breaks_an_invariant_is_not_read(operator, changes, what):
    assert split_handle(joined_parts(operator))[1].state("offsets") is not None
    with pytest.raises(StateRestoreError, match=f"(?s){what}"):
        split_handle(joined_parts(operator, **changes))


def test_every_truncation_and_every_extra_byte_is_refused(operator):
    joined = joined_parts(operator)
    for length in range(4, len(joined.meta)):
        with pytest.raises(StateRestoreError):
            split_handle(attrs.evolve(joined, meta=joined.meta[:length]))
    with pytest.raises(StateRestoreError, match="1 bytes follow"):
        split_handle(attrs.evolve(joined, meta=joined.meta + b"\0"))


def test_state_whose_serializer_nobody_knows_travels_on(operator):
    numbers = SplitListStateDescriptor("numbers", int)
    backends = operator.start()
    backends[0].get_state(numbers).add_all([1, 2, 3])
    (handle,) = operator.snapshot(backends)
    keyed, own = split_handle(handle)
    (part,) = own.states[0].parts
    strange = attrs.evolve(part, envelopes={"element": b"\0\x05alien\0\0\0\x01"})
    alien = OperatorStateHandle((attrs.evolve(own.states[0], parts=(strange,)),))
    backends = operator.start([join_handles(keyed, alien)], 2)
    with pytest.raises(StateRestoreError, match=r"'numbers'.*alien"):
        backends[0].get_state(numbers)
    exported, _ = operator.savepoint(operator.snapshot(operator.restart(backends, 1)))
    (state_in_savepoint,) = split_handle(exported[0])[1].states
    assert state_in_savepoint.row_count == 3
    assert state_in_savepoint.parts[0].envelopes == strange.envelopes


def golden_handles(name):
    handles = []
    for fields in json.loads((GOLDEN / name / "handles.json").read_text()):
        files = tuple(FileHandle(**file) for file in fields.pop("files"))
        handles.append(KeyedStateHandle(**{**fields, "meta": bytes.fromhex(fields["meta"])}, files=files))
    return handles


@pytest.mark.parametrize("name", ["checkpoint-1", "savepoint-1"])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize(("version", "serializer"), [(1, leg_v1), (2, leg_v2)])
def test_operator_state_of_version_1_is_restored(operator, name, parallelism, version, serializer):
    source = CheckpointFileSystem.from_uri(GOLDEN / name / "store")
    backends = operator.start(golden_handles(name), parallelism, source)
    legs = [LegV1("EWR", 1), LegV1("JFK", 2), LegV1("LGA", 3)]
    expected = legs if version == 1 else [LegV2(leg.airport, float(leg.minutes)) for leg in legs]
    split = [backend.get_state(SplitListStateDescriptor("legs", serializer())).get() for backend in backends]
    assert [leg for part in split for leg in part] == expected
    if parallelism == 2:
        assert list(map(len, split)) == [1, 2]
    for backend in backends:
        assert backend.get_state(UnionListStateDescriptor("offsets", tuple[str, int])).get() == [("p0", 10), ("p1", 20)]
        table = backend.get_state(BroadcastStateDescriptor("by leg", str, serializer()))
        assert list(table.items()) == [("second", expected[1]), ("none", None), ("first", expected[0])]
        assert backend.get_state(SplitListStateDescriptor("empty", int)).get() == []
    assert backends[0].state_names() == ("legs", "offsets", "by leg", "empty")


@pytest.mark.parametrize("name", ["checkpoint-1", "savepoint-1"])
def test_the_meta_data_of_version_1_is_written_alike(name):
    for handle in golden_handles(name):
        assert join_handles(*split_handle(handle)) == handle


def test_the_files_of_version_1_are_parquet_that_any_tool_reads():
    directory = GOLDEN / "savepoint-1" / "store" / "operator"
    table = pq.ParquetFile(directory / "operator=broadcast" / "by%20leg" / "part-00001.parquet").read()
    assert table.schema.names == ["key", "value"]
    assert table.schema.metadata == {b"statebackend.operator_state.format": b"1"}
    assert table.column("key").to_pylist() == [b"\x07second", b"\x05none", b"\x06first"]
    assert [value is None for value in table.column("value").to_pylist()] == [False, True, False]
    offsets = pq.ParquetFile(directory / "operator=union" / "offsets" / "part-00001.parquet").read()
    assert offsets.to_pylist() == [{"key": None, "value": b"\x03p1" + struct.pack(">q", 20)}]


def i32(number):
    return struct.pack(">i", number)


def utf(text):
    return struct.pack(">H", len(text)) + text.encode()


def sized(data):
    return i32(len(data)) + data


def file_slice(index, first, last):
    return struct.pack(">iqq", index, first, last)
