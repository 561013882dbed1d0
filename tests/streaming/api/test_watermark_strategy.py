from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import attrs
import pytest

from statebackend import (
    FUTURE_RECORDS,
    JobDefinitionError,
    OutputTag,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)
from statebackend.streaming.time.channel_watermarks import SourceTime
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkStatus
from statebackend.streaming.watermark_strategy import WatermarkAlignment

FAR = OutputTag[Any]("far")


class EveryEvent(WatermarkGenerator[Any]):
    def on_event(self, event: Any, timestamp_ms: int, output: WatermarkOutput) -> None:
        output.emit_watermark(timestamp_ms)


def sent_at(record: Any) -> int:
    return int(record["sent"])


WHOLE = (
    WatermarkStrategy.for_bounded_out_of_orderness("10 minutes")
    .with_timestamps("sent")
    .with_channel("partition")
    .with_idleness(timedelta(minutes=5))
    .with_future_limit("1 day", FAR)
    .with_watermark_alignment("flights", "30 seconds")
)


def test_a_strategy_stores_its_settings_in_milliseconds() -> None:
    assert WHOLE.out_of_orderness_ms == 600_000
    assert (WHOLE.timestamps, WHOLE.channel) == ("sent", "partition")
    assert (WHOLE.idleness_ms, WHOLE.future_limit_ms, WHOLE.future_tag) == (300_000, 86_400_000, FAR)
    assert WHOLE.alignment == WatermarkAlignment("flights", 30_000)


def test_each_step_returns_a_new_strategy_and_keeps_the_former() -> None:
    first = WatermarkStrategy.for_monotonous_timestamps()
    second = first.with_idleness("1 second")
    assert (first.idleness_ms, second.idleness_ms) == (None, 1_000)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        first.idleness_ms = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "strategy",
    [
        WHOLE,
        WatermarkStrategy.no_watermarks(),
        WatermarkStrategy.for_generator(EveryEvent).with_timestamps(sent_at),
    ],
)
def test_a_strategy_can_be_pickled(strategy: WatermarkStrategy[Any]) -> None:
    copy = pickle.loads(pickle.dumps(strategy))
    assert copy.timestamps == strategy.timestamps
    assert type(copy.create_generator()) is type(strategy.create_generator())


def test_only_bounded_watermarks_depend_on_the_largest_timestamp() -> None:
    assert WatermarkStrategy.for_monotonous_timestamps().out_of_orderness_ms == 0
    assert WatermarkStrategy.no_watermarks().out_of_orderness_ms is None
    assert WatermarkStrategy.for_generator(EveryEvent).out_of_orderness_ms is None


def test_runtimes_create_generators_from_a_strategy() -> None:
    assert WHOLE.source_time() == SourceTime(out_of_orderness_ms=600_000, idleness_ms=300_000, has_channels=True)
    assert START.source_time() == SourceTime(out_of_orderness_ms=0)
    source = WHOLE.timestamps_and_watermarks(sent_at, lambda record: record["partition"])
    assert source.on_record({"sent": 86_400_001, "partition": 1}, None, 0).is_beyond_limit
    assert source.on_record({"sent": 700_000, "partition": 1}, None, 0).timestamp_ms == 700_000
    assert source.on_periodic_emit(0) == (Watermark(99_999),)
    assert source.on_periodic_emit(1) == ()
    assert source.on_periodic_emit(300_002) == (WatermarkStatus.IDLE,)


def test_every_source_has_its_own_generator() -> None:
    strategy = WatermarkStrategy.for_generator(EveryEvent)
    assert strategy.create_generator() is not strategy.create_generator()


def test_records_too_far_in_the_future_have_a_side_output_by_default() -> None:
    assert WatermarkStrategy.no_watermarks().with_future_limit("1 day").future_tag == FUTURE_RECORDS


START = WatermarkStrategy.for_monotonous_timestamps()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: WatermarkStrategy.for_bounded_out_of_orderness("ten minutes"), "out-of-orderness is 'ten minutes'"),
        (lambda: WatermarkStrategy.for_bounded_out_of_orderness(-1), "must be at least 0 ms"),
        (lambda: WatermarkStrategy.for_generator(EveryEvent()), "such as the class EveryEvent"),
        (lambda: WatermarkStrategy.for_generator(5), "factory of for_generator is 5, which cannot be called"),
        (lambda: WatermarkStrategy.for_generator(sent_at), "it is called with no argument"),
        (lambda: WatermarkStrategy.for_generator(dict).create_generator(), "must make a WatermarkGenerator"),
        (lambda: START.with_timestamps(None), "with_timestamps was given None; give the name of a column"),
        (lambda: START.with_timestamps("  "), "with_timestamps was given an empty name"),
        (lambda: START.with_timestamps(7), "with_timestamps was given 7"),
        (lambda: START.with_timestamps(lambda: 1), "function of with_timestamps .* one argument, the record"),
        (lambda: START.with_channel(("a", "b")), "with_channel was given"),
        (lambda: START.with_idleness(0), "the timeout of with_idleness is 0; it must be at least 1 ms"),
        (lambda: START.with_idleness("1 month"), "months and years"),
        (lambda: START.with_future_limit(-1), "the limit of with_future_limit is -1"),
        (lambda: START.with_future_limit(1, "far"), "must be an OutputTag"),
        (lambda: START.with_watermark_alignment("", 1), "it needs a name"),
        (lambda: START.with_watermark_alignment("g", -1), "the drift of with_watermark_alignment is -1"),
    ],
)
def test_invalid_settings_are_rejected_at_once(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(JobDefinitionError, match=message):
        wrong()
