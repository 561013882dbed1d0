"""State that version 1 of the formats wrote is restored. `tests/golden_formats/golden_states.py` has the writer."""

import struct

import pytest

from snapshots.envelope import snapshot_to_bytes
from statebackend import ListStateDescriptor, ValueStateDescriptor
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.state.state_backend import state_backend
from statebackend.state.state_meta import KeyedStateMeta, StateFile, StateMeta, decode_meta, encode_meta
from statebackend.testing.backends.evolving_records import MUTABLE_SUM, SUM, LegV1, LegV2, leg_v1, leg_v2
from statebackend.testing.backends.harness import BackendHarness, content, contents, filled
from statebackend.testing.backends.priority_queue_contract import TIMERS, timer
from tests.golden_formats.golden_formats import GOLDEN
from tests.golden_formats.golden_states import golden_handle
from typeserializers import LongSerializer, StringSerializer, VoidNamespaceSerializer


def expected():
    value, elements, entries = filled(range(6), 0, 1)
    for state in (value, elements, entries):
        del state[5]
    entries[4]["null"] = None
    return value, elements, entries


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("heap-plain-1", "heap"),
        ("rocksdb-plain-1", "rocksdb"),
        ("canonical-plain-1", "heap"),
        ("canonical-plain-1", "rocksdb"),
    ],
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
        ("heap-folding-1", "heap"),
        ("rocksdb-folding-1", "rocksdb"),
        ("canonical-folding-1", "heap"),
        ("canonical-folding-1", "rocksdb"),
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
        ("heap-queue-1", "heap"),
        ("rocksdb-queue-1", "rocksdb"),
        ("canonical-queue-1", "heap"),
        ("canonical-queue-1", "rocksdb"),
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


def test_the_metadata_is_written_byte_for_byte_as_documented():
    long_snapshot = LongSerializer().snapshot_configuration()
    void_snapshot = VoidNamespaceSerializer().snapshot_configuration()
    state = StateMeta.of_one_schema(
        "count", ValueStateDescriptor.kind, void_snapshot, {"value": long_snapshot}, (StateFile(0, "state-1"),)
    )
    envelope, void = (sized(snapshot_to_bytes(snapshot)) for snapshot in (long_snapshot, void_snapshot))
    expected = (
        b"SBKS"
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
