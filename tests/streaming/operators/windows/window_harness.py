"""The operator harness with a window operator."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import pytest

from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_backend import StateBackend
from statebackend.state.states import AggregateFunction
from statebackend.streaming.operators.window_operator import WindowOperator
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.windows.assigners import TumblingEventTimeWindows
from statebackend.streaming.windows.window_definition import WindowDefinition
from statebackend.streaming.windows.window_functions import ProcessWindowFunction
from statebackend.streaming.windows.windowed_stream import WindowedStream
from statebackend.testing.backends.harness import BackendHarness
from statebackend.testing.operators import OperatorTestHarness
from typeserializers.kernel.type_serializer import TypeSerializer

UID = "windows"
BACKENDS = pytest.mark.parametrize(
    "state_backend", [HeapStateBackend(), RocksDBStateBackend()], ids=["heap", "rocksdb"]
)
HEAP = HeapStateBackend()
HOURLY = TumblingEventTimeWindows.of(10)


class WindowRun(OperatorTestHarness):
    """A window operator opened over its own backend."""

    def __init__(
        self,
        harness: BackendHarness,
        state_backend: StateBackend,
        definition: WindowDefinition,
        *restore: KeyedStateHandle,
        side_outputs: Collection[OutputTag[Any]] = (),
        schema: DeclaredSchema | None = None,
        key_serializer: TypeSerializer[Any] | None = None,
        watermark: int = MIN_TIMESTAMP,
    ) -> None:
        super().__init__(
            harness,
            state_backend,
            WindowOperator(copy.deepcopy(definition), UID),
            *restore,
            side_outputs=side_outputs,
            schemas=(schema,) * max(1, len(definition.element_serializers)),
            key_serializer=key_serializer,
            watermark=watermark,
        )


def windows(assigner: Any = HOURLY) -> Any:
    return WindowedStream.of(lambda definition, **_: definition, assigner)


class Sum(AggregateFunction[int, int, int]):
    """A sum that raises at 13."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        if value == 13:
            raise ZeroDivisionError("thirteen")
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, left: int, right: int) -> int:
        return left + right


class Values(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: list[Any]) -> Any:
        return [(key, elements)]


def play(
    harness: BackendHarness, definition: WindowDefinition, records: list[Any], state_backend: Any = HEAP
) -> WindowRun:
    run = WindowRun(harness, state_backend, definition)
    for record in records:
        run.records(record)
    run.watermark(MAX_TIMESTAMP)
    assert run.entries() == {}
    return run


def rise(one: int, other: int) -> int:
    return other - one
