"""Typing of watermark strategies; `make lint` checks it, and an unused ignore is an error too.

Nothing here is run. Each function shows one thing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from statebackend import OutputTag, WatermarkGenerator, WatermarkOutput, WatermarkStrategy

if TYPE_CHECKING:
    from typing_extensions import assert_type


class Marked(WatermarkGenerator[str]):
    def on_event(self, event: str, timestamp_ms: int, output: WatermarkOutput) -> None:
        if event.endswith("!"):
            output.emit_watermark(timestamp_ms)


def a_strategy_of_the_users_own_knows_the_records_of_its_generator() -> None:
    strategy = WatermarkStrategy.for_generator(Marked)
    assert_type(strategy, WatermarkStrategy[str])
    assert_type(strategy.with_timestamps(len).with_idleness(5).with_channel("partition"), WatermarkStrategy[str])
    assert_type(strategy.create_generator(), WatermarkGenerator[str])


def all_other_strategies_are_for_any_records() -> None:
    assert_type(WatermarkStrategy.for_monotonous_timestamps(), WatermarkStrategy[Any])
    assert_type(WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=1)), WatermarkStrategy[Any])
    assert_type(WatermarkStrategy.no_watermarks().with_future_limit("1 day", OutputTag("far")), WatermarkStrategy[Any])


def what_is_no_duration_is_an_error() -> None:
    WatermarkStrategy.for_bounded_out_of_orderness(1.5)  # type: ignore[arg-type]
    WatermarkStrategy.no_watermarks().with_idleness(None)  # type: ignore[arg-type]


def one_generator_is_no_factory() -> None:
    WatermarkStrategy.for_generator(Marked())  # type: ignore[arg-type]
