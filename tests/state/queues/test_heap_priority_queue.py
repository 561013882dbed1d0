"""The queue on the heap: removed entries do not accumulate in its heap or in its changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.priority_queue import PriorityQueueDescriptor
from statebackend.testing.backends.harness import BackendHarness
from typeserializers.scalars.strings import StringSerializer

QUEUE: Any = PriorityQueueDescriptor("queue", StringSerializer())


def test_entries_that_are_removed_and_added_again_do_not_accumulate(tmp_path: Path) -> None:
    queue: Any = BackendHarness(str(tmp_path)).open(HeapStateBackend()).get_priority_queue(QUEUE)
    queue.add("a", 0)
    for _ in range(5_000):
        queue.add("b", 0)
        queue.remove("b", 0)
    assert len(queue._table.heap) < 2_000
    queue.add("b", 0)
    assert (queue.size(), queue.poll(), queue.poll(), queue.poll()) == (2, "a", "b", None)


def test_an_entry_that_comes_and_goes_between_snapshots_is_no_change(tmp_path: Path) -> None:
    harness = BackendHarness(str(tmp_path))
    backend = harness.open(HeapStateBackend())
    queue: Any = backend.get_priority_queue(QUEUE)
    queue.add("a", 0)
    queue.add("b", 0)
    queue.remove("b", 0)
    assert list(queue._table.history.epoch.changes) == [b"\x02a\0\0"]
    assert harness.snapshot(backend).entries_written == 1
    queue.add("c", 0)
    assert queue.poll() == "a"
    assert queue.poll() == "c"
    assert list(queue._table.history.epoch.changes) == [b"\x02a\0\0"]
    assert harness.snapshot(backend).entries_written == 1
    assert queue.size() == 0


def test_an_entry_that_a_running_snapshot_does_not_have_is_recorded(tmp_path: Path) -> None:
    harness = BackendHarness(str(tmp_path))
    backend = harness.open(HeapStateBackend())
    queue: Any = backend.get_priority_queue(QUEUE)
    queue.add("a", 0)
    running = backend.prepare_snapshot(1, "running")
    queue.add("b", 0)
    queue.remove("b", 0)
    # The snapshot may have read "b" before its removal.
    assert list(queue._table.history.epoch.changes) == [b"\x02b\0\0"]
    queue.remove("a", 0)
    assert running.run().entries_written == 1
    assert queue.size() == 0
    assert harness.snapshot(backend).entries_written == 1
