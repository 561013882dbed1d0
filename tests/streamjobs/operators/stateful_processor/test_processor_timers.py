"""Timers of a processor: in which order an epoch calls it, what deleting and registering does, what is late."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from checkpointing.handles.state_handles import KeyedStateHandle
from statebackend.heap import HeapStateBackend
from statebackend.keyed.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.queues.queue_kind import PriorityQueueDescriptor
from statebackend.rocksdb import RocksDBStateBackend
from streamjobs import UserFunctionError
from streamjobs.api.functions import RuntimeContext
from streamjobs.api.stateful_processor import StatefulProcessorFunction, TimeMode
from streamjobs.operators.operator import CollectingEmitter
from streamjobs.operators.stateful_processor.processor_operator import StatefulProcessorOperator
from streamjobs.rows.row import row_class
from streamjobs.time.timestamps import MIN_TIMESTAMP
from testkit.backends.harness import BackendHarness
from typeserializers.scalars.strings import StringSerializer
from typeserializers.times.timers import Timer, TimerSerializer

UID = "processor"
BACKENDS = {"heap": HeapStateBackend(), "rocksdb": RocksDBStateBackend()}
RECORD = row_class(("k", "register", "delete"))


class QueuedTimers:
    """A timer service over two queues of a backend, which `Epoch` fires."""

    def __init__(self, backend: Any, name: str, namespace_serializer: Any) -> None:
        serializer: Any = TimerSerializer(backend.key_serializer, namespace_serializer)
        self.queues = {
            kind: backend.get_priority_queue(PriorityQueueDescriptor(f"{name}.{kind}", serializer))
            for kind in ("event", "processing")
        }
        self.now_ms = 0
        self.watermark = MIN_TIMESTAMP
        self.key: tuple[Any, int] = (None, -1)

    def current_watermark(self) -> int:
        return self.watermark

    def current_processing_time(self) -> int:
        return self.now_ms

    def register_event_time_timer(self, namespace: Any, timestamp_ms: int) -> None:
        self.queues["event"].add(Timer(timestamp_ms, self.key[0], namespace), self.key[1])

    def delete_event_time_timer(self, namespace: Any, timestamp_ms: int) -> None:
        self.queues["event"].remove(Timer(timestamp_ms, self.key[0], namespace), self.key[1])

    def register_processing_time_timer(self, namespace: Any, timestamp_ms: int) -> None:
        self.queues["processing"].add(Timer(timestamp_ms, self.key[0], namespace), self.key[1])

    def delete_processing_time_timer(self, namespace: Any, timestamp_ms: int) -> None:
        self.queues["processing"].remove(Timer(timestamp_ms, self.key[0], namespace), self.key[1])


class Context(RuntimeContext):
    operator_uid = UID
    subtask_index = 0
    parallelism = 1
    epoch_id = 1
    is_restored = False

    def __init__(self, backend: Any, operator_state: dict[str, dict[Any, Any]]) -> None:
        self.backend = backend
        self.broadcast = operator_state
        self.timers: Any = None

    def register(self, descriptor: Any, namespace_serializer: Any = VOID_NAMESPACE_SERIALIZER) -> Any:
        return self.backend.get_or_create_keyed_state(namespace_serializer, descriptor)

    def register_operator_state(self, descriptor: Any) -> Any:
        entries = self.broadcast.setdefault(descriptor.name, {})

        class State:
            get = entries.get
            put = entries.__setitem__

        return State

    def internal_timer_service(self, name: str, namespace_serializer: Any) -> QueuedTimers:
        self.timers = QueuedTimers(self.backend, name, namespace_serializer)
        return self.timers

    def key_setter(self) -> Callable[[Any, int], None]:
        set_key, timers = self.backend.key_setter(), self.timers

        def set_both(key: Any, key_group: int) -> None:
            timers.key = key, key_group
            set_key(key, key_group)

        return set_both


@frozen
class Batch:
    records: list[Any]
    keys: list[Any]
    key_groups: list[int]
    timestamps: list[int | None] | None
    columns: None = None


class Epochs:
    """Runs a processor epoch by epoch, as a runtime does: timers that are due, records, the barrier, all anew."""

    def __init__(self, directory: Path, backend: Any, processor: Any, mode: TimeMode) -> None:
        self.harness = BackendHarness(str(directory))
        self.backend = backend
        self.function = StatefulProcessorFunction(processor, mode, "k string, text string", 1)
        self.handles: list[KeyedStateHandle] = []
        self.operator_state: dict[str, dict[Any, Any]] = {}
        self.is_in_event_time = mode is TimeMode.EVENT_TIME

    def epoch(self, time: int, *records: tuple[str, int | None, list[int], list[int]]) -> list[tuple[str, str]]:
        """An epoch at a time; records are (key, timestamp, to be registered, to be deleted), sorted by key."""
        backend = self.harness.open(self.backend, *self.handles, key_serializer=StringSerializer())
        context, emitter = Context(backend, self.operator_state), CollectingEmitter()
        operator = StatefulProcessorOperator(copy.deepcopy(self.function), UID)
        operator.open(context, emitter)  # type: ignore[arg-type]
        timers, set_key = context.timers, context.key_setter()
        timers.now_ms = time
        timers.watermark = time if self.is_in_event_time else MIN_TIMESTAMP
        fire = operator.on_event_time_timer if self.is_in_event_time else operator.on_processing_time_timer
        queue = timers.queues["event" if self.is_in_event_time else "processing"]
        for timer, key_group in queue.poll_while(lambda timer: timer.timestamp <= time):
            set_key(timer.key, key_group)
            fire(timer.timestamp, timer.key, key_group, timer.namespace)
        operator.on_watermark(timers.watermark)
        for k, timestamp, register, delete in records:
            record = tuple.__new__(RECORD, (k, register, delete))
            operator.process_batch(0, Batch([record], [k], [self.harness.key_group(k)], [timestamp]))
        operator.prepare_snapshot()
        operator.close()
        self.pending = sum(queue.size() for queue in timers.queues.values())
        self.handles = [self.harness.snapshot(backend).handle]
        return [tuple(row) for _, rows in emitter.taken() for row in rows]


class Timed:
    """Does what the records say, and tells what it is called with; a timer at ...7 registers two more."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        rows = list(rows)  # type: ignore[assignment]
        for row in rows:
            for time in row["register"]:
                self.handle.registerTimer(time)
            for time in row["delete"]:
                self.handle.deleteTimer(time)
        yield self.told(key, f"{len(list(rows))} rows", timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        if expiry % 1000 == 7:
            self.handle.registerTimer(expiry - 1)
            self.handle.registerTimer(expiry + 20_000)
        yield self.told(key, f"timer {expiry}", timerValues)

    def told(self, key: Any, what: str, timer_values: Any) -> Any:
        time = max(timer_values.getCurrentWatermarkInMs(), timer_values.getCurrentProcessingTimeInMs())
        text = f"{what} at {time}, {list(self.handle.listTimers())}"
        return tuple.__new__(row_class(("k", "text")), (key[0], text))

    def close(self) -> None: ...


MODES = [TimeMode.EVENT_TIME, TimeMode.PROCESSING_TIME]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    return BACKENDS[request.param]


@pytest.mark.parametrize("mode", MODES)
def test_records_come_before_timers_and_timers_in_order_of_time(tmp_path: Path, backend: Any, mode: TimeMode) -> None:
    epochs = Epochs(tmp_path, backend, Timed(), mode)
    assert epochs.epoch(0, ("a", 10, [5000, 10_000, 15_000], []), ("c", 10, [], [])) == [
        ("a", "1 rows at 0, [5000, 10000, 15000]"),
        ("c", "1 rows at 0, []"),
    ]
    # What a record deletes does not fire although it is due, what is due when it is registered fires at once, and what
    # a timer registers in the next epoch.
    assert epochs.epoch(10_000, ("a", 10_011, [], [5000]), ("b", 10_012, [10, 9999, 10_001, 1007], [])) == [
        ("a", "1 rows at 10000, [10000, 15000]"),
        ("b", "1 rows at 10000, [10, 1007, 9999, 10001]"),
        ("b", "timer 10 at 10000, [10, 1007, 9999, 10001]"),
        ("b", "timer 1007 at 10000, [1006, 1007, 9999, 10001, 21007]"),
        ("b", "timer 9999 at 10000, [1006, 9999, 10001, 21007]"),
        ("a", "timer 10000 at 10000, [10000, 15000]"),
    ]
    assert epochs.epoch(12_000) == [
        ("b", "timer 1006 at 12000, [1006, 10001, 21007]"),
        ("b", "timer 10001 at 12000, [10001, 21007]"),
    ]
    assert epochs.pending == 2
    assert epochs.epoch(30_000) == [
        ("a", "timer 15000 at 30000, [15000]"),
        ("b", "timer 21007 at 30000, [21006, 21007, 41007]"),
    ]
    assert epochs.pending == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_timer_fires_once_however_often_it_is_registered_and_deleted(
    tmp_path: Path, backend: Any, mode: TimeMode
) -> None:
    epochs = Epochs(tmp_path, backend, Timed(), mode)
    epochs.epoch(0, ("a", 1, [100, 100], []))
    assert epochs.pending == 1
    # The first is deleted by one record of the epoch in which it is due, and registered again by the next.
    assert epochs.epoch(100, ("a", 101, [], [100, 100, 5]), ("a", 102, [100, 50], []), ("a", 103, [], [50])) == [
        ("a", "3 rows at 100, [100]"),
        ("a", "timer 100 at 100, [100]"),
    ]
    assert epochs.epoch(200) == []
    assert epochs.pending == 0


def test_records_are_late_by_the_watermark_of_the_epoch_before(tmp_path: Path, backend: Any) -> None:
    epochs = Epochs(tmp_path, backend, Timed(), TimeMode.EVENT_TIME)
    epochs.epoch(MIN_TIMESTAMP, ("a", 10_000, [], []))
    epochs.epoch(10_000, ("a", 12_000, [], []))
    times = {"a": 9000, "b": 10_000, "c": 10_001, "d": 11_999, "e": None}
    records = [(key, time, [], []) for key, time in times.items()]
    assert [key for key, _ in epochs.epoch(12_000, *records)] == ["c", "d", "e"]
    assert epochs.epoch(12_000, ("a", 12_000, [], [])) == []


@pytest.mark.parametrize(
    ("time", "told"), [("x", "not a str"), (1 << 63, "milliseconds of 64 bits"), (1.5, "not a float")]
)
def test_the_time_of_a_timer_is_whole_milliseconds(tmp_path: Path, time: Any, told: str) -> None:
    epochs = Epochs(tmp_path, BACKENDS["heap"], Timed(), TimeMode.EVENT_TIME)
    with pytest.raises(UserFunctionError, match=f"operator 'processor', key 'a': handleInputRows raised .*{told}"):
        epochs.epoch(0, ("a", 1, [time], []))
