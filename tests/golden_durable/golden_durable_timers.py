"""An operator with state that functions cannot use, namespaces and priority queues, and a small runtime for it.

Each subtask has a state backend, and checkpoints go through the coordinator into the store of a job directory.
`HARBOURS` writes, and `everything_in` reads all content of the restored backends. Names in the state are stable, as in
`golden_durable_programs`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from golden_durable_programs import TTL, plain, schemas_of, visit_v1

from statebackend import (
    AggregatingStateDescriptor,
    KeyedStateBackend,
    KeyedStateBackendParameters,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    PriorityQueueDescriptor,
    ReducingStateDescriptor,
    RestoredHandle,
    StateDescriptor,
    ValueStateDescriptor,
    key_group_range_of_subtask,
)
from statebackend.checkpoint import CheckpointFileSystem, CheckpointMetadata, KeyedStateHandle
from statebackend.state.state_backend import state_backend
from typeserializers import LongSerializer, StringSerializer, Timer, TimerSerializer, TimeWindow, TimeWindowSerializer

UID = "harbours"
MAX_PARALLELISM = 16
KEYS = range(12)
PANES = ("", "pane")
WINDOWS = (TimeWindow(0, 1000), TimeWindow(1000, 2000))

EVENT_TIMERS: PriorityQueueDescriptor[Any] = PriorityQueueDescriptor(
    "event timers", TimerSerializer(LongSerializer(), StringSerializer())
)
PROCESSING_TIMERS: PriorityQueueDescriptor[Any] = PriorityQueueDescriptor(
    "processing timers", TimerSerializer(LongSerializer(), TimeWindowSerializer())
)


def namespaced(version: int = 1) -> list[tuple[Any, Sequence[Any], StateDescriptor]]:
    """The states of the operator, with their namespace serializers and the namespaces in use."""
    schemas = schemas_of(version)
    panes, windows = (StringSerializer(), PANES), (TimeWindowSerializer(), WINDOWS)
    return [
        (*panes, ValueStateDescriptor("value by pane", schemas.visit)),
        (*windows, ListStateDescriptor("list by window", int)),
        (*panes, MapStateDescriptor("map by pane", str, schemas.visit)),
        (*windows, ReducingStateDescriptor("reducing by window", operator.add, int)),
        (*panes, AggregatingStateDescriptor("aggregating by pane", schemas.average, schemas.mean)),
        (*panes, ValueStateDescriptor("value by pane with ttl", int, ttl=TTL)),
        (*windows, ListStateDescriptor("list by window with ttl", schemas.visit, ttl=TTL)),
        (*panes, MapStateDescriptor("map by pane with ttl", str, float, ttl=TTL)),
    ]


def key_group(key: int) -> int:
    """A key group that tests can predict. Every third key group has no key."""
    return (key * 4 // 3) % MAX_PARALLELISM


@contextmanager
def opened(
    backend: str,
    file_system: CheckpointFileSystem,
    metadata: CheckpointMetadata | None,
    parallelism: int,
    local_directory: str | os.PathLike[str],
    clock: Callable[[], int],
) -> Iterator[list[KeyedStateBackend]]:
    """The backends of all subtasks, restored from ``metadata`` if it is given."""
    handles: tuple[KeyedStateHandle, ...] = ()
    if metadata is not None:
        [one] = [one for one in metadata.operators if one.uid == UID]
        handles = one.keyed_handles
    with ExitStack() as stack:
        backends = []
        for index in range(parallelism):
            own = key_group_range_of_subtask(index, parallelism, MAX_PARALLELISM)
            parameters = KeyedStateBackendParameters(
                operator_uid=UID,
                key_serializer=LongSerializer(),
                max_parallelism=MAX_PARALLELISM,
                key_group_range=own,
                file_system=file_system,
                file_prefix=f"shared/0/{index:05d}",
                local_directory=os.path.join(local_directory, str(index)),
                restore=tuple(
                    RestoredHandle(handle, file_system)
                    for handle in handles
                    if own.overlaps(KeyGroupRange(handle.key_group_start, handle.key_group_end))
                ),
                clock=clock,
            )
            created = state_backend(backend).create_keyed_state_backend(parameters)
            backends.append(stack.enter_context(created))
        yield backends


def write_epoch(backends: list[KeyedStateBackend], epoch: int) -> None:
    """Run three epochs: write all keys; write the even keys again; remove a few and poll timers."""
    for backend in backends:
        own = backend.key_group_range
        handles = {
            descriptor.name: backend.get_or_create_keyed_state(serializer, descriptor)
            for serializer, _, descriptor in namespaced()
        }
        event_timers = backend.get_priority_queue(EVENT_TIMERS)
        processing_timers = backend.get_priority_queue(PROCESSING_TIMERS)
        for key in KEYS:
            group = key_group(key)
            if not own.start <= group <= own.end:
                continue
            backend.set_current_key(key, group)
            if epoch == 2 and key in (2, 3):
                for _, namespaces, descriptor in namespaced():
                    handles[descriptor.name].set_current_namespace(namespaces[0])
                    handles[descriptor.name].clear()
                processing_timers.remove(Timer(5000 - key, key, WINDOWS[0]), group)
            if epoch == 0 or (epoch == 1 and key % 2 == 0):
                _store(handles, key, key + 100 * epoch)
                event_timers.add(Timer(1000 * key - 3000 + epoch, key, PANES[key % 2]), group)
                processing_timers.add(Timer(5000 - key, key, WINDOWS[epoch]), group)
        if epoch == 2:
            for _ in event_timers.poll_while(lambda timer: timer.timestamp <= 0):
                pass


def _store(handles: dict[str, Any], key: int, number: int) -> None:
    for place in range(2):
        for _, namespaces, descriptor in namespaced():
            handles[descriptor.name].set_current_namespace(namespaces[place])
        stored = number + 10 * place
        handles["value by pane"].update(visit_v1(f"pier {key}", stored))
        handles["list by window"].add(stored)
        handles["map by pane"].put(str(stored), visit_v1("map", stored) if key % 5 else None)
        handles["reducing by window"].add(stored)
        handles["aggregating by pane"].add(stored)
        handles["value by pane with ttl"].update(stored)
        handles["list by window with ttl"].add(visit_v1("list", stored))
        handles["map by pane with ttl"].put(str(stored), stored / 4 if key % 5 else None)


def everything_in(backends: list[KeyedStateBackend], version: int = 1) -> dict[str, Any]:
    """By state name: ``{(key, namespace): content}``, or all elements of a queue in polling order.

    It removes the elements from the queues. The queues of all subtasks are read as one.
    """
    found: dict[str, Any] = {EVENT_TIMERS.name: [], PROCESSING_TIMERS.name: []}
    for backend in backends:
        for serializer, _, descriptor in namespaced(version):
            state: Any = backend.get_or_create_keyed_state(serializer, descriptor)
            contents = found.setdefault(descriptor.name, {})
            for key, namespace in list(backend.get_keys_and_namespaces(descriptor.name)):
                backend.set_current_key(key, key_group(key))
                state.set_current_namespace(namespace)
                content = _READERS[descriptor.kind.name](state)
                if content not in (None, [], {}):
                    contents[key, _plain_namespace(namespace)] = plain(content)
        for queue in (EVENT_TIMERS, PROCESSING_TIMERS):
            for timer, group in backend.get_priority_queue(queue).poll_while(lambda timer: True):
                assert group == key_group(timer.key)
                found[queue.name].append((timer.timestamp, timer.key, _plain_namespace(timer.namespace)))
    for queue in (EVENT_TIMERS, PROCESSING_TIMERS):
        if len(backends) > 1:
            found[queue.name].sort()
    return found


def _plain_namespace(namespace: Any) -> Any:
    return (namespace.start, namespace.end) if isinstance(namespace, TimeWindow) else namespace


_READERS: dict[str, Callable[[Any], Any]] = {
    "value": lambda state: state.value(),
    "list": lambda state: list(state.get()),
    "map": lambda state: dict(state.items()),
    "reducing": lambda state: state.get(),
    "aggregating": lambda state: state.get(),
}
