"""State written by released format versions, which every later release must restore.

The files are never regenerated: a new version gets new files next to the old ones. Each was written by version 1 in two
epochs, the second of which overwrites, appends and removes. Those called "folding" hold the kinds that came later, and
namespaces; those called "queue" hold a priority queue of timers.
"""

import json
import pathlib
import struct

import pytest

from snapshots.envelope import snapshot_to_bytes
from statebackend import ListStateDescriptor, ValueStateDescriptor
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle
from statebackend.state.state_backend import state_backend
from statebackend.state.state_meta import KeyedStateMeta, StateFile, StateMeta, decode_meta, encode_meta
from statebackend.testing.backends.evolving_records import MUTABLE_SUM, SUM, LegV1, LegV2, leg_v1, leg_v2
from statebackend.testing.backends.harness import BackendHarness, content, contents, filled
from statebackend.testing.backends.priority_queue_contract import TIMERS, timer
from typeserializers import LongSerializer, StringSerializer, VoidNamespaceSerializer

GOLDEN = pathlib.Path(__file__).parent / "golden"


def golden_handle(name):
    fields = json.loads((GOLDEN / name / "handle.json").read_text())
    files = tuple(FileHandle(**file) for file in fields.pop("files"))
    return KeyedStateHandle(**{**fields, "meta": bytes.fromhex(fields["meta"])}, files=files)


def expected():
    value, elements, entries = filled(range(6), 0, 1)
    for state in (value, elements, entries):
        del state[5]
    entries[4]["null"] = None
    return value, elements, entries


@pytest.mark.parametrize(
    ("name", "backend"),
    [("heap-1", "heap"), ("rocksdb-1", "rocksdb"), ("canonical-1", "heap"), ("canonical-1", "rocksdb")],
)
def test_state_of_version_1_is_restored(tmp_path, name, backend):
    harness = BackendHarness(str(tmp_path))
    harness.file_system = CheckpointFileSystem.from_uri(GOLDEN / name / "store")
    restored = harness.open(state_backend(backend), golden_handle(name))
    assert contents(harness, restored) == expected()
    assert content(harness, restored, ValueStateDescriptor("leg", leg_v1())) == {
        key: LegV1("EWR", key + 1) for key in range(6)
    }
    restored.close()
    migrated = harness.open(state_backend(backend), golden_handle(name))
    assert content(harness, migrated, ValueStateDescriptor("leg", leg_v2())) == {
        key: LegV2("EWR", float(key + 1)) for key in range(6)
    }
    harness.close()


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("heap-1-folding", "heap"),
        ("rocksdb-1-folding", "rocksdb"),
        ("canonical-1-folding", "heap"),
        ("canonical-1-folding", "rocksdb"),
    ],
)
def test_folding_state_and_namespaces_of_version_1_are_restored(tmp_path, name, backend):
    harness = BackendHarness(str(tmp_path))
    harness.file_system = CheckpointFileSystem.from_uri(GOLDEN / name / "store")
    restored = harness.open(state_backend(backend), golden_handle(name))
    assert content(harness, restored, SUM) == {key: 2 * key + 1 for key in range(3)}
    found = {}
    for descriptor in (MUTABLE_SUM, ListStateDescriptor("panes", int)):
        for key, namespace in restored.get_keys_and_namespaces(descriptor.name):
            harness.at(restored, key)
            state = restored.get_partitioned_state(namespace, StringSerializer(), descriptor)
            found[descriptor.name, key, namespace] = state.get()
    addresses = [(key, namespace) for key in range(4) for namespace in ("", "pane")]
    sums = {("mutable sum", *address): str(2 * (address[0] + len(address[1])) + 1) for address in addresses}
    del sums["mutable sum", 3, "pane"]
    assert found == {**sums, **{("panes", *address): [0, 1] for address in addresses}}
    harness.close()


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("heap-1-queue", "heap"),
        ("rocksdb-1-queue", "rocksdb"),
        ("canonical-1-queue", "heap"),
        ("canonical-1-queue", "rocksdb"),
    ],
)
def test_priority_queues_of_version_1_are_restored(tmp_path, name, backend):
    harness = BackendHarness(str(tmp_path))
    harness.file_system = CheckpointFileSystem.from_uri(GOLDEN / name / "store")
    restored = harness.open(state_backend(backend), golden_handle(name))
    expected = [(timer(1000 * number, number, "pane" * (number % 2)), number % 10) for number in (-1, 0, 1, 2, 4, 5)]
    expected.insert(2, (timer(500, 7), 7))
    rows = [row for batch in restored.export_state("timers") for row in zip(*batch, strict=True)]
    written = [(group, TIMERS.element_serializer.to_bytes(element)) for element, group in expected]
    assert rows == [(*row, b"\x00", None, b"") for row in sorted(written)]
    assert list(restored.get_priority_queue(TIMERS).poll_while(lambda element: True)) == expected
    harness.close()


@pytest.mark.parametrize("name", ["heap-1", "rocksdb-1", "canonical-1"])
def test_the_metadata_of_version_1_is_read(name):
    handle = golden_handle(name)
    meta = decode_meta(handle.meta, len(handle.files))
    assert [state.name for state in meta.states] == ["value", "list", "map", "leg"]
    again = decode_meta(encode_meta(meta), len(handle.files))
    assert [state.files for state in again.states] == [state.files for state in meta.states]
    assert all(state.has_schema_of(old) for state, old in zip(again.states, meta.states, strict=True))


def test_the_metadata_is_written_byte_for_byte_as_documented():
    long_snapshot = LongSerializer().snapshot_configuration()
    void_snapshot = VoidNamespaceSerializer().snapshot_configuration()
    state = StateMeta.of_one_schema(
        "count", ValueStateDescriptor.kind, void_snapshot, {"value": long_snapshot}, (StateFile(0, "state-1"),)
    )
    envelope, void = (sized(snapshot_to_bytes(snapshot)) for snapshot in (long_snapshot, void_snapshot))
    expected = (
        b"SBM1"
        + i32(1)
        + envelope
        + struct.pack(">q", 9)
        + i32(1)
        + utf("count")
        + utf("value")
        + void
        + i32(1)
        + utf("value")
        + envelope
        + i32(1)
        + i32(0)
        + utf("state-1")
    )
    assert encode_meta(KeyedStateMeta(long_snapshot, 9, (state,))) == expected
    assert encode_meta(decode_meta(expected, 1)) == expected


def i32(number):
    return struct.pack(">i", number)


def utf(text):
    return struct.pack(">H", len(text)) + text.encode()


def sized(data):
    return i32(len(data)) + data
