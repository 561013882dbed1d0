"""How a stream gets event time: where timestamps are, and how watermarks follow (Flink's ``WatermarkStrategy``).

A strategy is an immutable value. Each `with_` method validates its arguments and returns another strategy. It is
picklable if its functions are; runtimes create the running objects from it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from attrs import evolve, field, frozen

from snapshots.errors import format_value
from statebackend.streaming.errors import JobDefinitionError
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
"""The default side output of records that are too far in the future."""

_NO_COLUMN: Final = (int, float, bytes, bool, list, tuple, dict, set)


@frozen
class WatermarkAlignment:
    """Sources of one group wait for each other: none gets further ahead of the slowest than the drift."""

    group: str
    max_drift_ms: int


def channel_name(value: Any) -> str:
    """Return the name of a channel in checkpoints; "" for a record without one.

    A text of quotes alone gets another pair of them, so that the value "" is not a missing channel.
    """
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if text.strip('"') else f'"{text}"'


# Spark columns are not comparable, so strategies are equal by identity.
@frozen(kw_only=True, eq=False)
class WatermarkStrategy(Generic[T]):
    """How records get timestamps and which watermarks they produce. Start with one of the class methods.

    A record keeps its timestamp unless `with_timestamps` is used. Settings that were not given are None.
    ``out_of_orderness_ms`` is None if watermarks do not follow from the largest timestamp alone.
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
        """Timestamps never decrease within a source or, with `with_channel`, within a channel."""
        return cls.for_bounded_out_of_orderness(0)

    @classmethod
    def for_bounded_out_of_orderness(cls, out_of_orderness: Duration) -> WatermarkStrategy[Any]:
        """A record arrives at most this much later than one with a larger timestamp.

        The same as Spark's ``withWatermark`` with that delay.

        Args:
            out_of_orderness: "10 minutes", a timedelta or milliseconds.

        Raises:
            JobDefinitionError: The argument is not a duration, or is negative.
        """
        bound_ms = duration_ms(out_of_orderness, "the bound of out-of-orderness", at_least_ms=0)
        factory = functools.partial(BoundedOutOfOrdernessWatermarks, bound_ms)
        return WatermarkStrategy(generator_factory=factory, out_of_orderness_ms=bound_ms)

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy[Any]:
        """Records do not advance event time. They need no timestamps.

        For records without a time, such as broadcast rules, add ``with_idleness("1 ms")``. Then operators do
        not wait for their watermark.
        """
        return WatermarkStrategy(generator_factory=NoWatermarks)

    @classmethod
    def for_generator(cls, factory: Callable[[], WatermarkGenerator[T]]) -> WatermarkStrategy[T]:
        """Use custom watermarks.

        Args:
            factory: Returns a `WatermarkGenerator`, such as a subclass. It is called without arguments, once per source
                or channel.

        Raises:
            JobDefinitionError: The factory cannot be called without arguments.
        """
        if isinstance(factory, WatermarkGenerator):
            raise JobDefinitionError(
                f"for_generator was given {format_value(factory, 80)}, a single generator; every source and channel "
                f"needs its own, so pass a factory, such as the class {type(factory).__name__}"
            )
        _check_callable(factory, 0, "the factory of for_generator", "no argument")
        return WatermarkStrategy(generator_factory=factory)

    def with_timestamps(self, timestamps: Any) -> WatermarkStrategy[T]:
        """Set where the timestamp of a record is.

        Args:
            timestamps: The name of a column, a function of the record or, on Spark, a Column. It yields milliseconds
                since 1970, a timestamp, or None for a record without a timestamp.

        Raises:
            JobDefinitionError: The argument is anything else.
        """
        _check_column(timestamps, "with_timestamps")
        return evolve(self, timestamps=timestamps)

    def with_channel(self, channel: Any) -> WatermarkStrategy[T]:
        """Set which parts of the source have their own watermarks, such as the partition that a record was read from.

        The watermark of the source is the minimum over its channels.

        Args:
            channel: The name of a column, a function of the record or, on Spark, a Column, with few distinct values.

        Raises:
            JobDefinitionError: The argument is anything else.
        """
        _check_column(channel, "with_channel")
        return evolve(self, channel=channel)

    def with_idleness(self, timeout: Duration) -> WatermarkStrategy[T]:
        """Do not wait for a source or channel without records for this long, in processing time: "5 minutes".

        Raises:
            JobDefinitionError: The timeout is not a positive duration.
        """
        return evolve(self, idleness_ms=duration_ms(timeout, "the timeout of with_idleness", at_least_ms=1))

    def with_future_limit(self, limit: Duration, tag: OutputTag[Any] | None = None) -> WatermarkStrategy[T]:
        """Send records that are further ahead of the processing time to a side output.

        They do not advance the watermark, so one wrong clock does not make all other records late.

        Args:
            limit: The greatest distance.
            tag: The side output; `FUTURE_RECORDS` by default.

        Raises:
            JobDefinitionError: The limit is not a duration or is negative, or the tag is not an `OutputTag`.
        """
        if tag is not None and not isinstance(tag, OutputTag):
            raise JobDefinitionError(
                f"the tag of with_future_limit is {format_value(tag, 80)}; it must be an OutputTag"
            )
        limit_ms = duration_ms(limit, "the limit of with_future_limit", at_least_ms=0)
        return evolve(self, future_limit_ms=limit_ms, future_tag=FUTURE_RECORDS if tag is None else tag)

    def with_watermark_alignment(self, group: str, max_drift: Duration) -> WatermarkStrategy[T]:
        """Pause sources of this group that are further ahead of the slowest one than the drift.

        Raises:
            JobDefinitionError: The group has no name, or the drift is not a duration or is negative.
        """
        if not isinstance(group, str) or not group.strip():
            raise JobDefinitionError(
                f"the group of with_watermark_alignment is {format_value(group, 40)}; it needs a name"
            )
        drift_ms = duration_ms(max_drift, "the drift of with_watermark_alignment", at_least_ms=0)
        return evolve(self, alignment=WatermarkAlignment(group, drift_ms))

    @property
    def has_watermarks(self) -> bool:
        """Whether the records may advance event time."""
        return self.generator_factory is not NoWatermarks

    def source_time(self) -> SourceTime:
        """How time follows from the largest timestamps of channels, for runtimes that report only those."""
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
        """Create what runs the strategy for one source, record by record.

        The functions return the timestamp and the channel of a record; each is None if the strategy does not set it.
        """
        return TimestampsAndWatermarks(
            self.create_generator,
            timestamp_of_record=timestamp_of_record,
            channel_of_record=channel_of_record,
            idleness_ms=self.idleness_ms,
            future_limit_ms=self.future_limit_ms,
        )

    def create_generator(self) -> WatermarkGenerator[T]:
        """Create a generator. Raises `JobDefinitionError` if the factory returns something else."""
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
        # Some C functions have no signature.
        return
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        raise JobDefinitionError(f"{what} is {format_value(function, 80)}; it is called with {which}") from None
