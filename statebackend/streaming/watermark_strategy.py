"""How a stream comes to its event time: where timestamps are, how watermarks follow (Flink's ``WatermarkStrategy``).

A strategy is a value: each `with_` method returns another one, and what is wrong is rejected when it is said. It holds
nothing that runs, so it can be pickled if the functions that it was given can; runtimes make of it what runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from attrs import evolve, field, frozen

from statebackend.streaming.errors import JobDefinitionError, format_value
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.time.channel_watermarks import SourceTime
from statebackend.streaming.time.timestamps import Duration, duration_ms
from statebackend.streaming.time.timestamps_and_watermarks import TimestampsAndWatermarks
from statebackend.streaming.time.watermark_generators import (
    BoundedOutOfOrdernessWatermarks,
    NoWatermarks,
    WatermarkGenerator,
)

__all__ = ["FUTURE_RECORDS", "WatermarkAlignment", "WatermarkStrategy"]

T = TypeVar("T")

FUTURE_RECORDS: Final[OutputTag[Any]] = OutputTag("future-records")
"""The side output of records that are too far in the future, if a strategy names no other."""

_NO_COLUMN: Final = (int, float, bytes, bool, list, tuple, dict, set)


@frozen
class WatermarkAlignment:
    """That sources of one group wait for each other: none gets further ahead of the slowest than the drift."""

    group: str
    max_drift_ms: int


# Columns of Spark cannot be compared: strategies are told apart by identity.
@frozen(kw_only=True, eq=False)
class WatermarkStrategy(Generic[T]):
    """How records get timestamps and what watermarks they make; begin with one of the class methods.

    A record keeps the timestamp it has unless `with_timestamps` says otherwise. All that is not given is None.
    ``out_of_orderness_ms`` is None where watermarks do not follow from the largest timestamp alone.
    """

    generator_factory: Callable[[], WatermarkGenerator[T]]
    out_of_orderness_ms: int | None = None
    timestamps: Any = None
    channel: Any = None
    idleness_ms: int | None = None
    future_limit_ms: int | None = None
    future_tag: OutputTag[Any] = field(default=FUTURE_RECORDS)
    alignment: WatermarkAlignment | None = None

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy[Any]:
        """Timestamps never go back within a source or, with `with_channel`, a channel of it."""
        return cls.for_bounded_out_of_orderness(0)

    @classmethod
    def for_bounded_out_of_orderness(cls, out_of_orderness: Duration) -> WatermarkStrategy[Any]:
        """A record comes at most so much later than one with a larger timestamp: "10 minutes", a timedelta, or ms.

        Spark's ``withWatermark`` with that delay says the same. Raises `JobDefinitionError` for what is no duration or
        less than nothing.
        """
        bound_ms = duration_ms(out_of_orderness, "the bound of out-of-orderness", at_least_ms=0)
        factory = functools.partial(BoundedOutOfOrdernessWatermarks, bound_ms)
        return WatermarkStrategy(generator_factory=factory, out_of_orderness_ms=bound_ms)

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy[Any]:
        """Records have timestamps and time does not advance by them: for jobs of processing time alone."""
        return WatermarkStrategy(generator_factory=NoWatermarks)

    @classmethod
    def for_generator(cls, factory: Callable[[], WatermarkGenerator[T]]) -> WatermarkStrategy[T]:
        """Watermarks of the user's own: ``factory``, such as a subclass of `WatermarkGenerator`, makes a generator.

        It is called without arguments, once per source or per channel of it. Raises `JobDefinitionError` for what
        cannot be called so.
        """
        if isinstance(factory, WatermarkGenerator):
            raise JobDefinitionError(
                f"for_generator was given {format_value(factory, 80)}, one "
                f"generator; every source, and every channel of it, "
                f"needs its own, so give what makes one, such as the class {type(factory).__name__}"
            )
        _check_callable(factory, 0, "the factory of for_generator", "no argument")
        return WatermarkStrategy(generator_factory=factory)

    def with_timestamps(self, timestamps: Any) -> WatermarkStrategy[T]:
        """Where the timestamp of a record is: the name of a column, a function of the record or, on Spark, a Column.

        It is a number of milliseconds since 1970, a timestamp, or None for a record without.
        Raises `JobDefinitionError` for anything else.
        """
        _check_column(timestamps, "with_timestamps")
        return evolve(self, timestamps=timestamps)

    def with_channel(self, channel: Any) -> WatermarkStrategy[T]:
        """What has a watermark of its own within the source, such as the partition that a record was read from.

        The name of a column, a function of the record or, on Spark, a Column, with few values: the watermark of the
        source is that of the slowest of them. Raises `JobDefinitionError` for anything else.
        """
        _check_column(channel, "with_channel")
        return evolve(self, channel=channel)

    def with_idleness(self, timeout: Duration) -> WatermarkStrategy[T]:
        """A source, or channel, without records for so long (of processing time) is not waited for: "5 minutes".

        Raises `JobDefinitionError` for what is no duration or none that is more than nothing.
        """
        return evolve(self, idleness_ms=duration_ms(timeout, "the timeout of with_idleness", at_least_ms=1))

    def with_future_limit(self, limit: Duration, tag: OutputTag[Any] | None = None) -> WatermarkStrategy[T]:
        """Records further ahead of the processing time go to a side output, `FUTURE_RECORDS` unless a tag is given.

        They make no watermarks: one wrong clock would make the records of all others late. Raises
        `JobDefinitionError` for what is no duration or less than nothing, and for what is no `OutputTag`.
        """
        if tag is not None and not isinstance(tag, OutputTag):
            raise JobDefinitionError(
                f"the tag of with_future_limit is {format_value(tag, 80)}; it must be an OutputTag"
            )
        limit_ms = duration_ms(limit, "the limit of with_future_limit", at_least_ms=0)
        return evolve(self, future_limit_ms=limit_ms, future_tag=FUTURE_RECORDS if tag is None else tag)

    def with_watermark_alignment(self, group: str, max_drift: Duration) -> WatermarkStrategy[T]:
        """Sources of one group wait for each other: none is read on that is further ahead of the slowest.

        Raises `JobDefinitionError` for a group without a name and for what is no duration or less than nothing.
        """
        if not isinstance(group, str) or not group.strip():
            raise JobDefinitionError(
                f"the group of with_watermark_alignment is {format_value(group, 40)}; it needs a name"
            )
        drift_ms = duration_ms(max_drift, "the drift of with_watermark_alignment", at_least_ms=0)
        return evolve(self, alignment=WatermarkAlignment(group, drift_ms))

    def source_time(self) -> SourceTime:
        """How time follows from the largest timestamps of channels, where those are all that is reported."""
        return SourceTime(
            out_of_orderness_ms=self.out_of_orderness_ms,
            idleness_ms=self.idleness_ms,
            has_channels=self.channel is not None,
        )

    def timestamps_and_watermarks(
        self,
        timestamp_of_record: Callable[[T], object] | None,
        channel_of_record: Callable[[T], Hashable] | None,
    ) -> TimestampsAndWatermarks[T]:
        """What carries the strategy out for one source, record by record.

        The functions say of a record what `with_timestamps` and `with_channel` mean; each is None where that was not
        given.
        """
        return TimestampsAndWatermarks(
            self.create_generator,
            timestamp_of_record=timestamp_of_record,
            channel_of_record=channel_of_record,
            idleness_ms=self.idleness_ms,
            future_limit_ms=self.future_limit_ms,
        )

    def create_generator(self) -> WatermarkGenerator[T]:
        """A new generator. Raises `JobDefinitionError` if the factory makes something else."""
        generator = self.generator_factory()
        if not isinstance(generator, WatermarkGenerator):
            raise JobDefinitionError(
                f"the factory of for_generator made {format_value(generator, 80)}; it must make a WatermarkGenerator"
            )
        return generator


def _check_column(given: Any, method: str) -> None:
    what = "the name of a column, a function of the record or, on Spark, a Column"
    if isinstance(given, str):
        if not given.strip():
            raise JobDefinitionError(f"{method} was given an empty name; give {what}")
    elif given is None or isinstance(given, _NO_COLUMN):
        raise JobDefinitionError(f"{method} was given {format_value(given, 80)}; give {what}")
    elif callable(given):
        _check_callable(given, 1, f"the function of {method}", "one argument, the record")


def _check_callable(function: Any, arguments: int, what: str, which: str) -> None:
    if not callable(function):
        raise JobDefinitionError(f"{what} is {format_value(function, 80)}, which cannot be called")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions in C do not say what they take.
        return
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        raise JobDefinitionError(f"{what} is {format_value(function, 80)}; it is called with {which}") from None
