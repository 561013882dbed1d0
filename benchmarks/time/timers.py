"""Timers compared with value updates, without Spark: registered in one epoch, fired in the next.

In the backend, a timer of every key is registered and polled. The peer updates a value of every key twice, since each
side is two epochs with a snapshot each. In the operator, a function registers a timer for every record and is called
when it fires. The peer updates a value for every record.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.backends.measuring import OURS, medians
from benchmarks.backends.setting import MAX_PARALLELISM, Setting, all_records
from benchmarks.backends.subtask import Subtask as BackendSubtask
from benchmarks.backends.subtask import fill
from benchmarks.result import Result
from statebackend import KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.state.state_backend import state_backend
from statebackend.streaming.operators.keyed_process import KeyedProcessOperator
from statebackend.streaming.operators.operator import ObjectBatch
from statebackend.streaming.runtime.restore_plan import SubtaskRestore, continued_subtask
from statebackend.streaming.runtime.state_registration import registered_states
from statebackend.streaming.runtime.subtask import OperatorEpoch, OperatorParts, Subtask
from statebackend.streaming.time.internal_timer_service import InternalTimerService, TimerKey, timer_queue_descriptors
from typeserializers.scalars.fixed_width import LongSerializer
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer

MOST_UPDATES = 4
PEER = "value update"
VALUE = ValueStateDescriptor("value", int)


def results(arguments: argparse.Namespace) -> Iterator[Result]:
    """Compare a timer with a value update on both backends, in the backend and in the operator, in microseconds."""
    for backend in ("heap", "rocksdb"):
        for level, ours, peer in (("backend", _timers, _updates), ("operator", _timer_function, _update_function)):
            with TemporaryDirectory(prefix="benchmark-timers-") as directory:
                setting = Setting(directory, arguments.rounds, 1.0, seed=4, clock_name=arguments.clock)
                turns = {OURS: ours(setting, backend, arguments.timers), PEER: peer(setting, backend, arguments.timers)}
                reached = medians(setting, turns)
            name = f"timer registered and fired, {backend}, {level}"
            yield Result(name, reached[OURS], reached[PEER], PEER, "us", 1 / MOST_UPDATES)


def _microseconds(setting: Setting, number: int, loop: Callable[[], object]) -> float:
    start = setting.clock()
    loop()
    return (setting.clock() - start) / number * 1e6


def _timers(setting: Setting, backend_name: str, number: int) -> Callable[[], float]:
    records = all_records(number)

    def turn() -> float:
        with BackendSubtask(setting.new_directory("timers")) as subtask:
            backend = subtask.open(backend_name)
            descriptors = timer_queue_descriptors("timers", LongSerializer(), VoidNamespaceSerializer())
            event_time, processing_time = map(backend.get_priority_queue, descriptors)
            current = TimerKey()
            timers: InternalTimerService[Any] = InternalTimerService(event_time, processing_time, current, lambda: 0)
            fired = count()

            def fire(timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
                next(fired)

            def epochs() -> None:
                register = timers.register_event_time_timer
                for current.key, current.key_group in records:
                    register(VOID_NAMESPACE, 1000)
                subtask.snapshot(backend)
                timers.advance_watermark(1000, fire)
                subtask.snapshot(backend)

            taken = _microseconds(setting, number, epochs)
            _check(next(fired), number)
            return taken

    return turn


def _updates(setting: Setting, backend_name: str, number: int) -> Callable[[], float]:
    records = all_records(number)

    def turn() -> float:
        with BackendSubtask(setting.new_directory("updates")) as subtask:
            backend = subtask.open(backend_name)
            state = backend.get_state(VALUE)

            def epochs() -> None:
                for value in (1, 2):
                    fill(backend, state, records, value)
                    subtask.snapshot(backend)

            return _microseconds(setting, 2 * number, epochs)

    return turn


class Registering(KeyedProcessFunction[int, int, Any]):
    """Registers a timer for each record, and counts the timers that fire."""

    def __init__(self) -> None:
        self.fired = 0

    def process_element(self, value: int, context: ProcessContext[int]) -> None:
        context.timer_service.register_event_time_timer(1000)

    def on_timer(self, timestamp: int, context: Any) -> None:
        self.fired += 1


class Updating(KeyedProcessFunction[int, int, Any]):
    """Updates a value for each record."""

    def open(self, context: RuntimeContext) -> None:
        self.value = context.get_state(VALUE)

    def process_element(self, value: int, context: ProcessContext[int]) -> None:
        self.value.update(value)


def _timer_function(setting: Setting, backend_name: str, number: int) -> Callable[[], float]:
    def turn() -> float:
        function, directory = Registering(), setting.new_directory("registering")
        taken = _two_epochs(setting, directory, backend_name, function, [_records(number), _records(0)]) / number
        _check(function.fired, number)
        return taken

    return turn


def _update_function(setting: Setting, backend_name: str, number: int) -> Callable[[], float]:
    def turn() -> float:
        directory = setting.new_directory("updating")
        records = _records(number)
        return _two_epochs(setting, directory, backend_name, Updating(), [records, records]) / (2 * number)

    return turn


def _records(number: int) -> ObjectBatch:
    records = all_records(number)
    keys = [key for key, _ in records]
    return ObjectBatch(keys, keys, [key_group for _, key_group in records], [0] * number)


def _two_epochs(
    setting: Setting, directory: str, backend_name: str, function: Any, batches: list[ObjectBatch]
) -> float:
    """Return the microseconds of two epochs of a subtask; the second starts with the watermark 1000."""
    file_system = CheckpointFileSystem.from_uri(Path(directory) / "job")
    parts = OperatorParts(
        job_id="benchmark",
        run_id=directory,
        operator_uid="timers",
        operator_factory=KeyedProcessOperator,
        side_outputs=(),
        key_serializer=LongSerializer(),
        parallelism=1,
        max_parallelism=MAX_PARALLELISM,
        backend=state_backend(backend_name),
        planned=registered_states(function, "timers", 1, (None,)).planned,
        planned_operator_state={},
        file_system=file_system,
    )
    taken, restore = 0.0, SubtaskRestore()
    for epoch_id, (batch, watermark_ms) in enumerate(zip(batches, (0, 1000), strict=True)):
        subtask = Subtask(
            parts,
            OperatorEpoch(epoch_id=epoch_id, processing_time_ms=0, watermark_ms=watermark_ms),
            subtask_index=0,
            attempt_id="attempt",
            restore=restore,
            local_directory=str(Path(directory) / "local"),
        )
        run = subtask.run(lambda: function, [(0, batch)])
        taken += _microseconds(setting, 1, partial(list, run))
        restore = continued_subtask(subtask.acknowledgement.state, file_system)
    return taken


def _check(fired: int, expected: int) -> None:
    if fired != expected:
        raise AssertionError(f"{fired} timers have fired, not {expected}")
