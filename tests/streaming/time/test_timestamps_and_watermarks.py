from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from golden_time_traces import as_recorded, scenarios
from hypothesis import given
from hypothesis import strategies as st

from statebackend.streaming.errors import JobDefinitionError, StreamJobError
from statebackend.streaming.time import timestamps_and_watermarks
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.timestamps_and_watermarks import (
    TimedChannel,
    TimestampedRecord,
    TimestampsAndWatermarks,
)
from statebackend.streaming.time.watermark_generators import (
    END_OF_TIME,
    NoWatermarks,
    Watermark,
    WatermarkElement,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStatus,
    WatermarksWithIdleness,
)
from statebackend.streaming.watermark_strategy import WatermarkStrategy

IDLE, ACTIVE = WatermarkStatus.IDLE, WatermarkStatus.ACTIVE
TRACES = scenarios("watermark_strategies")
OBJECTS = [one for one in TRACES if one["operator"]["type"] == "watermark_generator"]
JOBS = [one for one in TRACES if one["operator"]["type"] == "assign_timestamps"]


class Recorded(WatermarkOutput):
    def __init__(self) -> None:
        self.sent: list[WatermarkElement] = []

    def emit_watermark(self, timestamp_ms: int) -> None:
        self.sent.append(Watermark(timestamp_ms))

    def mark_idle(self) -> None:
        self.sent.append(IDLE)

    def mark_active(self) -> None:
        self.sent.append(ACTIVE)


class Punctuated(WatermarkGenerator[dict[str, Any]]):
    def on_event(self, event: dict[str, Any], timestamp_ms: int, output: WatermarkOutput) -> None:
        emits: dict[str, Callable[[], None]] = {
            "w": lambda: output.emit_watermark(timestamp_ms),
            "i": output.mark_idle,
            "a": output.mark_active,
        }
        emits.get(event["key"], lambda: None)()


STRATEGIES: dict[str, Callable[[dict[str, Any]], WatermarkStrategy[Any]]] = {
    "bounded": lambda reported: WatermarkStrategy.for_bounded_out_of_orderness(reported["bound"]),
    "monotonous": lambda reported: WatermarkStrategy.for_monotonous_timestamps(),
    "none": lambda reported: WatermarkStrategy.no_watermarks(),
    "punctuated": lambda reported: WatermarkStrategy.for_generator(Punctuated),
}


def strategy_of(scenario: dict[str, Any]) -> WatermarkStrategy[Any]:
    reported = scenario["operator"]["strategy"]
    strategy = STRATEGIES[reported["type"]](reported)
    return strategy.with_idleness(reported["idleness"]) if "idleness" in reported else strategy


@pytest.mark.parametrize("scenario", OBJECTS, ids=[one["name"] for one in OBJECTS])
def test_generators_emit_the_output_of_flink(scenario: dict[str, Any]) -> None:
    if "error" in (scenario["expected"] or [{}])[0]:
        with pytest.raises(JobDefinitionError, match=r"must be at least [01] ms"):
            strategy_of(scenario)
        return
    strategy = strategy_of(scenario)
    now_ms = 1_000
    generator = strategy.create_generator()
    if strategy.idleness_ms is not None:
        generator = WatermarksWithIdleness(generator, strategy.idleness_ms, lambda: now_ms)
    sent = []
    for at, event in enumerate(scenario["input"]):
        output = Recorded()
        if "event" in event:
            generator.on_event(None, event["event"], output)
        elif "periodic" in event:
            generator.on_periodic_emit(output)
        else:
            now_ms += event["clock"]
        sent += as_recorded(at, output.sent)
    assert sent == scenario["expected"]


def job_entries(
    source: TimestampsAndWatermarks[dict[str, Any]], at: int, event: dict[str, Any]
) -> list[dict[str, Any]]:
    if "record" in event:
        record = event["record"]
        done = source.on_record(record, record["ts"], 0)
        out = {"key": record["key"], "values": [record["value"]]}
        return [{"at": at, "out": out, "ts": done.timestamp_ms}, *as_recorded(at, done.elements)]
    if "end" in event:
        return as_recorded(at, source.on_upstream(END_OF_TIME))
    if "watermark" in event:
        return as_recorded(at, source.on_upstream(Watermark(event["watermark"])))
    return as_recorded(at, source.on_upstream(IDLE if "idle" in event else ACTIVE))


@pytest.mark.parametrize("scenario", JOBS, ids=[one["name"] for one in JOBS])
def test_within_a_job_it_sends_the_output_of_the_flink_operator(scenario: dict[str, Any]) -> None:
    source = TimestampsAndWatermarks(
        strategy_of(scenario).create_generator, timestamp_of_record=lambda record: record["value"]
    )
    sent = [entry for at, event in enumerate(scenario["input"]) for entry in job_entries(source, at, event)]
    assert sent == scenario["expected"]


def bounded(bound_ms: int = 0, **options: Any) -> TimestampsAndWatermarks[int]:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound_ms)
    return TimestampsAndWatermarks(strategy.create_generator, **options)


def test_a_periodic_watermark_is_emitted_once_and_only_if_larger() -> None:
    source = bounded(5)
    assert source.on_periodic_emit(0) == ()
    source.on_record(1, 100, 0)
    assert source.on_periodic_emit(0) == (Watermark(94),)
    source.on_record(1, 50, 0)
    assert source.on_periodic_emit(0) == ()
    assert source.watermark_ms == 94


def test_records_too_far_in_the_future_move_no_watermark() -> None:
    source = bounded(future_limit_ms=1_000)
    assert source.on_record(1, 6_001, 5_000) == TimestampedRecord(6_001, True, ())
    assert source.on_record(1, MAX_TIMESTAMP, 5_000).is_beyond_limit
    assert source.on_periodic_emit(5_000) == ()
    assert source.on_record(1, 6_000, 5_000) == TimestampedRecord(6_000, False, ())
    assert source.on_periodic_emit(5_000) == (Watermark(5_999),)


def test_a_record_without_a_timestamp_passes_and_moves_no_watermark() -> None:
    source = bounded(timestamp_of_record=lambda record: None, future_limit_ms=0)
    assert source.on_record(1, 7, 0) == TimestampedRecord(None, False, ())
    assert source.on_periodic_emit(0) == ()


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        (datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))), 0),
        (datetime.datetime(1970, 1, 1, 0, 0, 1), 1_000),
        (datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999), -1),
        (datetime.datetime.max, 253402300799999),
        (-5, -5),
    ],
)
def test_a_timestamp_may_be_a_datetime(value: object, expected_ms: int) -> None:
    assert bounded(timestamp_of_record=lambda record: value).on_record(1, None, 0).timestamp_ms == expected_ms


@pytest.mark.parametrize("value", ["12", 1.5, True, 1 << 63, datetime.date(2020, 1, 1)])
def test_an_invalid_timestamp_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match="is not a timestamp"):
        bounded(timestamp_of_record=lambda record: value).on_record(1, None, 0)


def test_the_slowest_channel_determines_the_watermark_of_the_source() -> None:
    source = bounded(channel_of_record=lambda record: record % 2)
    source.on_record(0, 100, 0)
    assert source.on_periodic_emit(0) == (Watermark(99),)
    source.on_record(1, 50, 0)
    source.on_record(0, 200, 0)
    assert source.on_periodic_emit(0) == ()
    source.on_record(1, 150, 0)
    assert source.on_periodic_emit(0) == (Watermark(149),)
    assert source.channels() == {0: TimedChannel(199, False), 1: TimedChannel(149, False)}


def test_an_idle_channel_is_ignored_and_all_idle_channels_make_the_source_idle() -> None:
    source = bounded(channel_of_record=lambda record: record, idleness_ms=100)
    for channel, timestamp_ms in [(0, 10), (1, 20)]:
        source.on_record(channel, timestamp_ms, 0)
    assert source.on_periodic_emit(0) == (Watermark(9),)
    source.on_record(1, 30, 50)
    assert source.on_periodic_emit(100) == ()
    source.on_record(1, 40, 150)
    assert source.on_periodic_emit(201) == (Watermark(39),)
    assert source.on_periodic_emit(202) == ()
    assert source.on_periodic_emit(303) == (IDLE,)
    assert source.on_periodic_emit(404) == ()
    source.on_record(0, 50, 500)
    assert source.on_periodic_emit(500) == (ACTIVE, Watermark(49))


def test_a_punctuated_watermark_of_a_channel_counts_at_once() -> None:
    source = TimestampsAndWatermarks(Punctuated, channel_of_record=lambda record: record["channel"])
    assert source.on_record({"key": "w", "channel": 0}, 10, 0).elements == (Watermark(10),)
    assert source.on_record({"key": "w", "channel": 1}, 5, 0).elements == ()
    assert source.on_record({"key": "w", "channel": 0}, 20, 0).elements == ()
    assert source.on_record({"key": "w", "channel": 1}, 15, 0).elements == (Watermark(15),)


def test_one_channel_more_than_the_limit_is_rejected_without_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamps_and_watermarks, "MAX_CHANNELS", 2)
    source = bounded(channel_of_record=lambda record: record)
    source.on_record(0, 10, 0)
    source.on_record(1, 10, 0)
    with pytest.raises(StreamJobError, match="channel 2 is one more than the 2 channels"):
        source.on_record(2, 5, 0)
    assert source.on_periodic_emit(0) == (Watermark(9),)


def test_a_restored_channel_holds_the_watermark_before_it_has_a_record() -> None:
    source = bounded(channel_of_record=lambda record: record)
    source.restore(50, ACTIVE, {"fast": TimedChannel(99, False), "slow": TimedChannel(50, False)})
    source.on_record("fast", 200, 0)
    assert source.on_periodic_emit(0) == ()
    source.on_record("slow", 120, 0)
    assert source.on_periodic_emit(0) == (Watermark(119),)
    again = bounded(channel_of_record=lambda record: record)
    again.restore(50, ACTIVE, {"fast": TimedChannel(99, False), "gone": TimedChannel(10, True)})
    assert again.channels() == {"fast": TimedChannel(99, False), "gone": TimedChannel(10, True)}


def test_a_restored_source_continues_after_its_sent_watermark_and_becomes_active_by_it() -> None:
    source = bounded()
    source.restore(100, IDLE)
    assert (source.watermark_ms, source.status) == (100, IDLE)
    source.on_record(1, 51, 0)
    assert source.on_periodic_emit(0) == ()
    source.on_record(1, 102, 0)
    assert source.on_periodic_emit(0) == (ACTIVE, Watermark(101))
    with pytest.raises(ValueError, match="64 bits"):
        source.restore(1 << 63, ACTIVE)


def test_the_end_of_input_is_sent_once_and_nothing_follows_it() -> None:
    source = bounded()
    source.on_record(1, 10, 0)
    assert source.on_end_of_input() == (END_OF_TIME,)
    assert source.on_end_of_input() == ()
    source.on_record(1, 20, 0)
    assert source.on_periodic_emit(0) == ()


timestamps = st.one_of(st.integers(-20, 20), st.sampled_from([MIN_TIMESTAMP, MIN_TIMESTAMP + 3, MAX_TIMESTAMP - 1]))
records = st.tuples(st.integers(0, 2), timestamps | st.none())
steps = st.lists(st.one_of(records, st.integers(0, 30)), max_size=40)


@given(steps, st.integers(0, 10) | st.just(MAX_TIMESTAMP), st.booleans(), st.sampled_from([None, 1, 10]))
def test_no_order_of_events_decreases_its_watermark(
    steps: Sequence[tuple[int, int | None] | int], bound_ms: int, channels: bool, idleness_ms: int | None
) -> None:
    source = bounded(bound_ms, channel_of_record=(lambda record: record) if channels else None, idleness_ms=idleness_ms)
    now_ms, sent = 0, []
    for step in steps:
        if isinstance(step, int):
            now_ms += step
            sent += source.on_periodic_emit(now_ms)
        else:
            sent += source.on_record(*step, now_ms).elements
    watermarks = [one.timestamp_ms for one in sent if isinstance(one, Watermark)]
    assert watermarks == sorted(set(watermarks))
    statuses = [one for one in sent if isinstance(one, WatermarkStatus)]
    assert statuses == [(IDLE, ACTIVE)[at % 2] for at in range(len(statuses))]


def test_any_end_of_time_from_upstream_is_forwarded() -> None:
    # The watermark may come from another process, so it need not be the object `END_OF_TIME`.
    assert bounded().on_upstream(Watermark(MAX_TIMESTAMP)) == (END_OF_TIME,)
    assert bounded().on_upstream(Watermark(MAX_TIMESTAMP - 1)) == ()


def test_channels_of_a_checkpoint_make_no_source_without_channels_idle() -> None:
    source = bounded(idleness_ms=10)
    source.restore(5, ACTIVE, {"gone": TimedChannel(5, False)})
    sent: list[WatermarkElement] = []
    for now_ms in range(0, 60, 10):
        source.on_record(0, 100 + now_ms, now_ms)
        sent += source.on_periodic_emit(now_ms)
    assert sent == [Watermark(99 + now_ms) for now_ms in range(0, 60, 10)]


def test_idleness_counts_from_the_last_time_without_records() -> None:
    output, now_ms = Recorded(), 0
    generator: WatermarksWithIdleness[Any] = WatermarksWithIdleness(Punctuated(), 15, lambda: now_ms)
    for has_event, now_ms in ((True, 10), (False, 20), (True, 30), (False, 40), (False, 50)):  # noqa: B007
        if has_event:
            generator.on_event({"key": ""}, 0, output)
        generator.on_periodic_emit(output)
    assert output.sent == []
    now_ms = 56
    generator.on_periodic_emit(output)
    assert output.sent == [IDLE]


def test_a_channel_that_had_a_record_after_idleness_becomes_idle_again_and_reports_it() -> None:
    source = bounded(idleness_ms=10)
    reported: list[list[WatermarkElement]] = []
    for now_ms in (0, 11, 20, 30, 50):
        if now_ms == 20:
            source.on_record(0, 100, now_ms)
        reported.append(list(source.on_periodic_emit(now_ms)))
    assert reported == [[], [IDLE], [ACTIVE, Watermark(99)], [], [IDLE]]


def test_a_source_without_watermarks_becomes_idle_and_stays_so_whatever_it_reads() -> None:
    source: TimestampsAndWatermarks[Any] = TimestampsAndWatermarks(NoWatermarks, idleness_ms=10)
    reported: list[list[WatermarkElement]] = []
    for now_ms in (0, 11, 22, 33):
        source.on_record(0, 100, now_ms)
        reported.append(list(source.on_periodic_emit(now_ms)))
    assert reported == [[], [IDLE], [], []]


@given(
    st.lists(st.lists(st.none() | st.integers(-100, 100), max_size=5), max_size=5),
    st.sampled_from([None, 0, 30]),
    st.sampled_from([None, 2]),
)
def test_batched_records_have_the_effect_of_single_records(
    batches: list[list[int | None]], future_limit_ms: int | None, idleness_ms: int | None
) -> None:
    generator = WatermarkStrategy.for_bounded_out_of_orderness("5 ms").create_generator
    together, single = (
        TimestampsAndWatermarks(generator, future_limit_ms=future_limit_ms, idleness_ms=idleness_ms) for _ in range(2)
    )
    for now_ms, batch in enumerate(batches):
        is_beyond = [single.on_record(None, time, now_ms).is_beyond_limit for time in batch]
        assert together.on_timestamps(batch, now_ms) == (not any(is_beyond))
        if any(is_beyond):
            for time in batch:
                together.on_record(None, time, now_ms)
        assert together.on_periodic_emit(now_ms) == single.on_periodic_emit(now_ms)
        assert (together.watermark_ms, together.status) == (single.watermark_ms, single.status)


@pytest.mark.parametrize(
    "options",
    [{}, {"idleness_ms": 5}, {"channel_of_record": str}, {"timestamp_of_record": int}],
    ids=["punctuated", "idle", "channels", "timestamps"],
)
def test_records_with_individual_effects_are_not_batched(options: dict[str, Any]) -> None:
    factory: Any = Punctuated
    if "channel_of_record" in options or "timestamp_of_record" in options:
        factory = WatermarkStrategy.for_bounded_out_of_orderness("5 ms").create_generator
    time = TimestampsAndWatermarks(factory, **options)
    assert not time.on_timestamps([1, 2], 0)
    assert time.on_periodic_emit(0) in ((), (Watermark(MIN_TIMESTAMP),))
