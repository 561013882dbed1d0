"""State with TTL as version 1 wrote it, which every later release must restore, with documented bytes.

The files are never regenerated. They were written in two epochs, at 1000 and 2000 ms, with a TTL of 10 s.
"""

import json
import pathlib
import struct

import pytest
from attrs import evolve

from statebackend import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends.evolving_records import MUTABLE_SUM, SUM
from statebackend.testing.backends.harness import BackendHarness, ManualClock, content

GOLDEN = pathlib.Path(__file__).parent / "golden"

TTL = StateTtlConfig(10_000)

DESCRIPTORS = [
    ValueStateDescriptor("value", int, ttl=TTL),
    ListStateDescriptor("list", int, ttl=TTL),
    MapStateDescriptor("map", str, int, ttl=TTL),
    evolve(SUM, ttl=TTL),
    evolve(MUTABLE_SUM, ttl=TTL),
]


def write_epoch(harness, backend, keys, number):
    """The two epochs: keys 0 to 3 with 1, then keys 2 and 3 with 2."""
    for key in keys:
        harness.at(backend, key)
        value, elements, entries, total, mutable_total = (backend.get_state(one) for one in DESCRIPTORS)
        value.update(10 * key + number)
        elements.add_all([key, number])
        entries.put_all({"number": number, f"null {number}": None})
        total.add(number)
        mutable_total.add(number)


def expected(now_ms):
    """The live content at a time, by state."""
    first, second = now_ms < 11_000, now_ms < 12_000
    late = {2, 3} if second else set()
    lists, maps = {}, {}
    for key in range(4):
        lists[key] = ([key, 1] if first else []) + ([key, 2] if key in late else [])
        maps[key] = {"number": 1, "null 1": None} if first else {}
        if key in late:
            maps[key].update({"number": 2, "null 2": None})
    folded = {key: 3 if key in late else 1 if first else None for key in range(4)}
    return {
        "value": {key: 10 * key + 2 if key in late else 10 * key + 1 if first else None for key in range(4)},
        "list": lists,
        "map": maps,
        "sum": folded,
        "mutable sum": {key: None if number is None else str(number) for key, number in folded.items()},
    }


def golden_handle(name):
    fields = json.loads((GOLDEN / name / "handle.json").read_text())
    files = tuple(FileHandle(**file) for file in fields.pop("files"))
    return KeyedStateHandle(**{**fields, "meta": bytes.fromhex(fields["meta"])}, files=files)


@pytest.mark.parametrize("now_ms", [2_000, 10_999, 11_000, 12_000])
@pytest.mark.parametrize(
    ("name", "backend"),
    [("heap-1-ttl", "heap"), ("rocksdb-1-ttl", "rocksdb"), ("canonical-1-ttl", "heap"), ("canonical-1-ttl", "rocksdb")],
)
def test_state_with_a_time_to_live_of_version_1_is_restored(tmp_path, name, backend, now_ms):
    harness = BackendHarness(str(tmp_path))
    harness.file_system = CheckpointFileSystem.from_uri(GOLDEN / name / "store")
    harness.clock = ManualClock(now_ms)
    restored = harness.open(state_backend(backend), golden_handle(name))
    assert {one.name: content(harness, restored, one) for one in DESCRIPTORS} == expected(now_ms)
    harness.close()
    without = harness.open(state_backend(backend), golden_handle(name))
    found = {one.name: content(harness, without, evolve(one, ttl=None)) for one in DESCRIPTORS}
    assert found == expected(0)
    harness.close()


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_the_rows_are_written_byte_for_byte_as_documented(tmp_path, backend):
    harness = BackendHarness(str(tmp_path))
    harness.clock = ManualClock(1000)
    opened = harness.open(state_backend(backend))
    harness.at(opened, 1)
    value, elements, entries, total = (opened.get_state(one) for one in DESCRIPTORS[:4])
    value.update(7)
    elements.add_all([7, 8])
    entries.put_all({"a": 7, "b": None})
    total.add(7)
    stamp, seven, eight = (struct.pack(">q", number) for number in (1000, 7, 8))
    rows = {}
    for descriptor in DESCRIPTORS[:4]:
        batches = opened.export_state(descriptor.name)
        rows[descriptor.name] = [value for batch in batches for value in batch.values]
    assert rows == {
        "value": [stamp + seven],
        "list": [struct.pack(">i", 2) + stamp + seven + stamp + eight],
        "map": [b"\0" + stamp + b"\0" + seven, b"\0" + stamp + b"\1"],
        "sum": [stamp + seven],
    }
    harness.close()
