"""Invalid chains are rejected in the line of the program that is wrong."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming import StatefulProcessor

from snapshots.errors import MalformedDataError
from statebackend import (
    AsyncDataStream,
    AsyncFunction,
    JobDefinitionError,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    Savepoint,
    SplitListStateDescriptor,
    StateMetricsConfig,
    TumblingEventTimeWindows,
    UserFunctionError,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.ha.object_store import ObjectStoreHighAvailability
from statebackend.local import LocalStreamEnvironment
from statebackend.local.channel_state import forms_of_operators
from statebackend.local.network.channel import Channel
from statebackend.streaming.data_stream import DataStream
from statebackend.streaming.functions import KeyedMultipleInputFunction
from statebackend.streaming.operators.operator_factories import OPERATORS, operator_factory
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.stream_graph import SourceNode, StreamGraph
from statebackend.streaming.time.watermark_generators import WatermarkGenerator, WatermarkOutput

HOURLY = TumblingEventTimeWindows.of("1 hour")


def streams() -> tuple[DataStream, DataStream]:
    graph = StreamGraph()
    return DataStream(graph, graph.add(SourceNode(None, "a"))), DataStream(graph, graph.add(SourceNode(None, "b")))


class Both(KeyedMultipleInputFunction[str, Any]):
    def process_element(self, input_index: int, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
        return []


@pytest.mark.parametrize("order_by", ["time", "ab", (), ["time"], ["time", "time", ()]], ids=repr)
def test_the_number_of_orders_equals_that_of_the_inputs(order_by: Any) -> None:
    first, second = streams()
    connected = first.key_by("k").connect_all(second.key_by("k"))
    with pytest.raises(JobDefinitionError, match=r"order_by of 2 streams is .*; pass one entry for each stream"):
        connected.process(Both(), uid="both", order_by=order_by)
    assert connected.process(Both(), uid="both", order_by=["time", ()])


def test_two_streams_are_joined_by_the_keys_of_both() -> None:
    first, second = streams()
    for joined in (first.join(second), first.join(second).where("k"), first.co_group(second).equal_to("k")):
        with pytest.raises(JobDefinitionError, match=r"chain where\('column'\).equal_to\('column'\) before window"):
            joined.window(HOURLY)
    assert first.join(second).where("k").equal_to("k").window(HOURLY)
    others: list[Any] = [second.key_by("k"), None, "b"]
    for other in others:
        with pytest.raises(JobDefinitionError, match=r"join\(\) takes another stream, not .*where\(\) and equal_to"):
            first.join(other)
        with pytest.raises(JobDefinitionError, match=r"co_group\(\) takes another stream, not "):
            first.co_group(other)


WHOLE = [
    "parallelism",
    "max_parallelism",
    "epoch_size",
    "max_concurrent_checkpoints",
    "tolerable_failed_checkpoints",
]

DURATIONS = [
    "checkpoint_interval",
    "aligned_checkpoint_timeout",
    "min_pause_between_checkpoints",
    "checkpoint_timeout",
]


@pytest.mark.parametrize("name", DURATIONS)
def test_durations_of_an_environment_are_checked(name: str) -> None:
    for given in ("1 second", datetime.timedelta(seconds=1), 1000):
        LocalStreamEnvironment(**{name: given})
    for given in (True, 2.0, "3", -1, "-1 second"):
        with pytest.raises(JobDefinitionError, match=rf"^{name} is {re.escape(repr(given))}[,;]"):
            LocalStreamEnvironment(**{name: given})


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("given", [True, 2.0, "3", datetime.timedelta(seconds=1)], ids=repr)
def test_numbers_of_an_environment_are_integers(name: str, given: Any) -> None:
    with pytest.raises(JobDefinitionError, match=rf"^{name} is {re.escape(repr(given))}; it takes a whole number"):
        LocalStreamEnvironment(**{name: given})


@pytest.mark.parametrize("epoch_size", [0, -1])
def test_an_epoch_has_at_least_one_element(epoch_size: int) -> None:
    with pytest.raises(JobDefinitionError, match=f"epoch_size is {epoch_size}; an epoch needs at least one element"):
        LocalStreamEnvironment(epoch_size=epoch_size)
    LocalStreamEnvironment(epoch_size=1)


@pytest.mark.parametrize(
    ("name", "given", "reported"),
    [
        (
            "metrics",
            StateMetricsConfig,
            "the class StateMetricsConfig; make an instance; it takes an instance of StateMetricsConfig",
        ),
        ("metrics", True, "True; it takes an instance of StateMetricsConfig, or None"),
        ("rules", 5, "5; it takes an instance of EvolutionRules, or None"),
        ("high_availability", ObjectStoreHighAvailability, "the class ObjectStoreHighAvailability; make an instance"),
        ("high_availability", "host:2181", "'host:2181'; it takes an instance of JobServices, or None"),
        ("clock", 5, "5; it takes a function that returns milliseconds"),
    ],
)
def test_settings_of_an_environment_have_their_types(name: str, given: Any, reported: str) -> None:
    with pytest.raises(JobDefinitionError, match=f"^{name} is {reported}"):
        LocalStreamEnvironment(**{name: given})


def test_a_channel_has_a_capacity_of_at_least_one() -> None:
    with pytest.raises(ValueError, match="the capacity of a channel is 0; it must be at least 1"):
        Channel(TaskId("a", 0), TaskId("b", 0), (0,), 0)
    Channel(TaskId("a", 0), TaskId("b", 0), (0,), 1)


def test_an_operator_accepts_only_its_function_classes() -> None:
    assert operator_factory(Both()) is OPERATORS[KeyedMultipleInputFunction]
    with pytest.raises(KeyError):
        operator_factory(object())


@pytest.mark.parametrize(
    "descriptor", [ValueStateDescriptor("count", int), SplitListStateDescriptor("counts", int)], ids=repr
)
def test_an_async_function_has_no_state_of_either_kind(descriptor: Any) -> None:
    class Keeping(AsyncFunction[Any, Any]):
        def open(self, context: RuntimeContext) -> None:
            ask = context.operator_state if isinstance(descriptor, SplitListStateDescriptor) else context
            ask.get_list_state(descriptor) if ask is not context else context.get_state(descriptor)

        async def async_invoke(self, value: Any) -> Iterable[Any]:
            return [value]

    env = LocalStreamEnvironment()
    asked = AsyncDataStream.ordered_wait(
        env.from_elements([("a",)], "k string"), Keeping(), timeout=1000, capacity=1, uid="ask", schema="k string"
    )
    asked.sink_to([])
    with pytest.raises(Exception, match="operator 'ask': an AsyncFunction has no state"):
        env.execute()


class BrokenByTheClock(WatermarkGenerator[Any]):
    def on_event(self, event: Any, timestamp_ms: int, output: WatermarkOutput) -> None:
        pass

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        raise ArithmeticError("boom")


class Same(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        yield value


def test_an_exception_of_a_generator_between_records_names_its_source() -> None:
    env = LocalStreamEnvironment(epoch_size=1)
    strategy = WatermarkStrategy.for_generator(BrokenByTheClock).with_timestamps("t")
    timed = env.from_elements([("a", 1), ("b", 2)], "k string, t bigint").assign_timestamps_and_watermarks(strategy)
    timed.key_by("k").process(Same(), uid="same", schema="k string, t bigint").sink_to([])
    with pytest.raises(UserFunctionError, match="source 'source': its watermark generator raised ArithmeticError: b"):
        env.execute()


def test_rows_in_channels_equal_rows_of_the_schema_to_the_last_byte() -> None:
    form = forms_of_operators({"join": [parsed_schema("word string, d decimal(4,1)", "test")]})["join", 0]
    stored = form.to_bytes(form.from_bytes(form.to_bytes(("a", None))))
    assert form.from_bytes(stored) == ("a", None)
    with pytest.raises(MalformedDataError, match="1 bytes follow a record"):
        form.from_bytes(stored + b"\0")
    for record in (("a",), ["a", None], ("a", None, None), "ab"):
        with pytest.raises(MalformedDataError, match="is not a row of the 2 columns declared"):
            form.to_bytes(record)


class Counted(KeyedProcessFunction[Any, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        yield (*context.current_key, self.count.value())


@pytest.mark.parametrize(
    ("keys", "types"),
    [
        (("k", "v"), ("string", "int")),
        (("k", lambda row: row.v), ("string", "bigint")),
        ((lambda row: row.k, "v"), ("string", "int")),
    ],
    ids=["columns", "a function behind", "a function before"],
)
def test_keys_have_the_declared_types_or_those_of_the_function(
    tmp_path: Path, keys: tuple[Any, ...], types: tuple[str, ...]
) -> None:
    env = LocalStreamEnvironment()
    rows: list[Any] = []
    given = env.from_elements([("a", 1), ("a", 1), ("a", 2)], "k string, v int")
    given.key_by(*keys).process(Counted(), uid="counted", schema="k string, v bigint, n bigint").sink_to(rows)
    env.execute().savepoint(tmp_path / "savepoint")
    assert sorted(map(tuple, rows)) == [("a", 1, 1), ("a", 1, 2), ("a", 2, 1)]
    assert tuple(Savepoint.open(tmp_path / "savepoint").key_columns("counted")) == types


class Balance(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        return iter(rows)


def test_a_processor_with_an_initial_frame_needs_spark() -> None:
    env = LocalStreamEnvironment()
    grouped = env.from_elements([("a", 1)], "k string, v bigint").group_by("k")
    given = grouped.transform_with_state(
        Balance(), "k string, v bigint", "update", "none", initial_state=Path("a frame"), uid="balance"
    )
    given.sink_to([])
    with pytest.raises(
        JobDefinitionError, match="operator 'balance': initial_state is a DataFrame, and so needs Spark"
    ):
        env.execute()


class Splitting:
    """Looks like a source, as a class and as an instance."""

    def splits(self) -> Iterable[str]:
        return ()

    def read(self, split: str, position: Any) -> Iterable[Any]:
        return ()


@pytest.mark.parametrize("source", [Splitting, 5, None, [("a", 1)]], ids=str)
def test_a_replayable_source_must_be_an_instance(source: Any) -> None:
    with pytest.raises(JobDefinitionError, match=r"from_source was given .*; pass a ReplayableSource"):
        LocalStreamEnvironment().from_source(source, uid="source")
    LocalStreamEnvironment().from_source(Splitting(), uid="source")
