"""An emitted row keeps its values, even if the function modifies the object afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import reused_rows
from chain_runner import run_chain
from reused_rows import (
    REUSED,
    SCHEMA,
    SOURCE,
    WAYS,
    WAYS_IN_EVENT_TIME,
    Processor,
    ReusedDict,
    ReusedList,
    Yields,
    are_as_emitted,
)
from spark_job_fixture import memory_sink, pickled_by_value

from statebackend import DataStream, KeyedProcessFunction, UserFunctionError, WatermarkStrategy
from statebackend.local import LocalStreamEnvironment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

RECORDS = [("a", at) for at in range(1, 6)]


def timed(environment: LocalStreamEnvironment) -> DataStream:
    times: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    return environment.from_elements(RECORDS, SOURCE).assign_timestamps_and_watermarks(times)


@pytest.mark.parametrize("reused", REUSED)
@pytest.mark.parametrize("way", WAYS)
def test_a_row_keeps_its_values_at_emission(way: str, reused: str) -> None:
    rows: list[Any] = []
    environment = LocalStreamEnvironment()
    WAYS[way](environment.from_elements(RECORDS, SOURCE), REUSED[reused]()).sink_to(rows)
    environment.execute()
    assert are_as_emitted(rows, len(RECORDS))


@pytest.mark.parametrize("reused", REUSED)
@pytest.mark.parametrize("way", WAYS | WAYS_IN_EVENT_TIME)
def test_rows_keep_their_values_in_event_time(way: str, reused: str) -> None:
    rows: list[Any] = []
    environment = LocalStreamEnvironment()
    (WAYS | WAYS_IN_EVENT_TIME)[way](timed(environment), REUSED[reused]()).sink_to(rows)
    environment.execute(drain=True)
    assert are_as_emitted(rows, len(RECORDS))


def test_rows_of_a_spark_processor_keep_their_values_at_emission() -> None:
    rows: list[Any] = []
    environment = LocalStreamEnvironment()
    grouped = timed(environment).group_by("k")
    grouped.transform_with_state(Processor(ReusedList()), SCHEMA, "append", "eventTime").sink_to(rows)
    environment.execute(drain=True)
    assert are_as_emitted(rows, 2 * len(RECORDS))


def test_the_result_of_a_stateless_step_keeps_its_values() -> None:
    rows: list[Any] = []
    one = ReusedDict()
    environment = LocalStreamEnvironment()
    stream = environment.from_elements(RECORDS, SOURCE).flat_map(lambda record: [one.next()])

    class Passes(KeyedProcessFunction[Any, Any, Any]):
        def process_element(self, value: Any, context: Any) -> Any:
            return [value]

    stream.key_by(lambda row: 0).process(Passes(), uid="passes", schema=SCHEMA).sink_to(rows)
    environment.execute()
    assert are_as_emitted(rows, len(RECORDS))


def test_the_cut_into_epochs_does_not_change_rows() -> None:
    cut: list[Any] = []
    for epoch_size in (None, 1, 2):
        rows: list[Any] = []
        environment = LocalStreamEnvironment(epoch_size=epoch_size)
        stream = environment.from_elements(RECORDS, SOURCE)
        stream.key_by("k").process(Yields(ReusedDict()), uid="yields", schema=SCHEMA).sink_to(rows)
        environment.execute()
        cut.append(rows)
    assert cut[0] == cut[1] == cut[2]


def test_bytes_and_nested_values_keep_their_values_at_emission() -> None:
    class Nested(KeyedProcessFunction[Any, Any, Any]):
        def __init__(self) -> None:
            self.data, self.by_name, self.inside = bytearray(), {"list": [0]}, {"numbers": [0]}

        def process_element(self, value: Any, context: Any) -> Any:
            self.data.append(value.at)
            self.by_name["list"][0] = self.inside["numbers"][0] = value.at
            yield self.data, self.by_name, self.inside

    rows: list[Any] = []
    environment = LocalStreamEnvironment()
    stream = environment.from_elements(RECORDS[:3], SOURCE).key_by("k")
    schema = "data binary, by_name map<string,array<int>>, inside struct<numbers: array<int>>"
    stream.process(Nested(), uid="nested", schema=schema).sink_to(rows)
    environment.execute()
    assert [bytes(row.data) for row in rows] == [b"\1", b"\1\2", b"\1\2\3"]
    assert [(row.by_name, row.inside.numbers) for row in rows] == [({"list": [at]}, [at]) for at in (1, 2, 3)]


def test_an_invalid_row_is_named_in_the_error() -> None:
    class Unfit(KeyedProcessFunction[Any, Any, Any]):
        def process_element(self, value: Any, context: Any) -> Any:
            yield {"n": value.at, "unknown": 1}

    environment = LocalStreamEnvironment()
    stream = environment.from_elements(RECORDS, SOURCE).key_by("k")
    stream.process(Unfit(), uid="unfit", schema=SCHEMA).sink_to([])
    with pytest.raises(ValueError, match=r"operator 'unfit': .* lacks seen .*'n': 1, 'unknown': 1") as raised:
        environment.execute()
    assert not isinstance(raised.value, UserFunctionError)


@pytest.mark.spark
def test_rows_on_spark_keep_their_values_at_emission(spark: SparkSession, tmp_path: Path) -> None:
    ways = ("yield", "side output", "async generator")
    sinks = [memory_sink() for _ in ways]

    def chain(stream: DataStream) -> None:
        for way, sink in zip(ways, sinks, strict=True):
            WAYS[way](stream, REUSED["dict"]()).sink_to(sink, uid=way)

    with pickled_by_value(reused_rows):
        run_chain(spark, tmp_path, SOURCE, [[{"k": k, "at": at} for k, at in RECORDS]], chain, parallelism=1)
    for sink in sinks:
        assert are_as_emitted(sink.rows, len(RECORDS))
