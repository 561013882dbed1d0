"""State with a time-to-live that version 1 of the formats wrote is restored, and its bytes are as documented."""

import struct

import pytest
from attrs import evolve

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends.harness import BackendHarness, ManualClock, content
from tests.golden_formats.golden_formats import GOLDEN
from tests.golden_formats.golden_states import TTL_DESCRIPTORS, golden_handle


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


@pytest.mark.parametrize("now_ms", [2_000, 10_999, 11_000, 12_000])
@pytest.mark.parametrize(
    ("name", "backend"),
    [("heap-ttl-1", "heap"), ("rocksdb-ttl-1", "rocksdb"), ("canonical-ttl-1", "heap"), ("canonical-ttl-1", "rocksdb")],
)
def test_state_with_a_time_to_live_of_version_1_is_restored(tmp_path, name, backend, now_ms):
    harness = BackendHarness(str(tmp_path))
    harness.file_system = CheckpointFileSystem.from_uri(GOLDEN / name / "store")
    harness.clock = ManualClock(now_ms)
    restored = harness.open(state_backend(backend), golden_handle(name))
    assert {one.name: content(harness, restored, one) for one in TTL_DESCRIPTORS} == expected(now_ms)
    harness.close()
    without = harness.open(state_backend(backend), golden_handle(name))
    found = {one.name: content(harness, without, evolve(one, ttl=None)) for one in TTL_DESCRIPTORS}
    assert found == expected(0)
    harness.close()


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_the_rows_are_written_byte_for_byte_as_documented(tmp_path, backend):
    harness = BackendHarness(str(tmp_path))
    harness.clock = ManualClock(1000)
    opened = harness.open(state_backend(backend))
    harness.at(opened, 1)
    value, elements, entries, total = (opened.get_state(one) for one in TTL_DESCRIPTORS[:4])
    value.update(7)
    elements.add_all([7, 8])
    entries.put_all({"a": 7, "b": None})
    total.add(7)
    stamp, seven, eight = (struct.pack(">q", number) for number in (1000, 7, 8))
    rows = {}
    for descriptor in TTL_DESCRIPTORS[:4]:
        batches = opened.export_state(descriptor.name)
        rows[descriptor.name] = [value for batch in batches for value in batch.values]
    assert rows == {
        "value": [stamp + seven],
        "list": [struct.pack(">i", 2) + stamp + seven + stamp + eight],
        "map": [b"\0" + stamp + b"\0" + seven, b"\0" + stamp + b"\1"],
        "sum": [stamp + seven],
    }
    harness.close()
