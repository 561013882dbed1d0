"""A backend with state of every kind: filled, and changed in every possible way."""

from __future__ import annotations

from typing import Any

from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.priority_queue import PriorityQueueDescriptor
from statebackend.testing.backends.evolving_records import MUTABLE_SUM, SUM
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, content, contents, fill, filled

KEYS = range(20)
QUEUE: PriorityQueueDescriptor[int] = PriorityQueueDescriptor("queue", int)


def fill_all_kinds(harness: BackendHarness, backend: KeyedStateBackend) -> None:
    """Fill states of every kind, and a queue, for `KEYS`."""
    fill(harness, backend, KEYS)
    queue = backend.get_priority_queue(QUEUE)
    for key in KEYS:
        harness.at(backend, key)
        backend.get_state(SUM).add(key)
        backend.get_state(MUTABLE_SUM).add(key)
        queue.add(key, harness.key_group(key))


def change_all_kinds(harness: BackendHarness, backend: KeyedStateBackend) -> None:
    """Call every write method, for old and new keys."""
    queue = backend.get_priority_queue(QUEUE)
    for key in range(30):
        harness.at(backend, key)
        value, elements, entries = backend.get_state(VALUE), backend.get_state(LIST), backend.get_state(MAP)
        if key % 3 == 0:
            value.clear()
            elements.clear()
            entries.clear()
        elif key % 3 == 1:
            value.update(-key)
            elements.add(7)
            entries.put("key", -key)
            entries.put("new", key)
            entries.remove("offset-0")
        else:
            value.clear()
            value.update(key * 2)
            elements.update([8])
            entries.clear()
            entries.put_all({"other": key})
        backend.get_state(SUM).add(1)
        backend.get_state(MUTABLE_SUM).add(1)
    for key in range(0, 20, 2):
        assert queue.remove(key, harness.key_group(key)) in (True, False)
    queue.add(50, 0)


def all_kinds(harness: BackendHarness, backend: KeyedStateBackend) -> tuple[Any, ...]:
    """Return the content of the states and the queue."""
    folded = [content(harness, backend, descriptor) for descriptor in (SUM, MUTABLE_SUM)]
    return (*contents(harness, backend), *folded, queued(backend))


def queued(backend: KeyedStateBackend) -> list[int]:
    """Return the content of the queue."""
    return sorted(element for element, _ in backend.get_priority_queue(QUEUE).entries())


FILLED = (
    *filled(KEYS, 0),
    {key: key for key in KEYS},
    {key: str(key) for key in KEYS},
    list(KEYS),
)

CHANGED = (
    {key: -key if key % 3 == 1 else key * 2 for key in range(30) if key % 3},
    {key: [*([0] if key < 20 else []), 7] if key % 3 == 1 else [8] for key in range(30) if key % 3},
    {key: {"key": -key, "new": key} if key % 3 == 1 else {"other": key} for key in range(30) if key % 3},
    {key: key + 1 if key < 20 else 1 for key in range(30)},
    {key: str(key + 1 if key < 20 else 1) for key in range(30)},
    [*range(1, 20, 2), 50],
)
