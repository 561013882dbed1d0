"""Windows and their serializers, in the layout of Flink's: namespaces of windowed state.

time window := i64(start) i64(end)        global window := 00
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, final

from snapshots.envelope import register_snapshot
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.fixed_fields import FixedFieldsSerializer
from typeserializers.kernel.single_values import SingleValueSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import exact_parts
from typeserializers.scalars.fixed_width import LongSerializer

WINDOWS: Final = "org.apache.flink.streaming.api.windowing.windows."


class TimeWindow(NamedTuple):
    """The time from ``start`` up to but not including ``end``, both in milliseconds.

    A tuple, because windows are hashed and compared at every access to their state.
    """

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """The last millisecond that belongs to the window."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether the windows overlap or touch, so that sessions would merge."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The least window around both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


@final
class GlobalWindow:
    """The window of everything; there is one instance, `GLOBAL_WINDOW`."""

    __slots__ = ()

    @property
    def max_timestamp(self) -> int:
        """The last millisecond there is."""
        return (1 << 63) - 1

    def __repr__(self) -> str:
        return "GLOBAL_WINDOW"

    def __reduce__(self) -> str:
        return "GLOBAL_WINDOW"


GLOBAL_WINDOW: Final = GlobalWindow()


class TimeWindowSerializer(FixedFieldsSerializer[TimeWindow]):
    """A `TimeWindow`, in 16 bytes."""

    format_characters = "qq"
    value_class = TimeWindow
    attribute_names = ("start", "end")

    def create_instance(self) -> TimeWindow:
        return TimeWindow(0, 0)

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        window_class = function.bind("window_class", TimeWindow)
        bounds: list[tuple[TypeSerializer[Any], str]] = [
            (LongSerializer(), f"{again}[{index}]") for index in range(len(self.attribute_names))
        ]
        return exact_parts([f"type({first}) is {window_class}"], bounds, function)

    def snapshot_configuration(self) -> TimeWindowSerializerSnapshot:
        return TimeWindowSerializerSnapshot()


class GlobalWindowSerializer(SingleValueSerializer[GlobalWindow]):
    """`GLOBAL_WINDOW`, as one zero byte."""

    value = GLOBAL_WINDOW

    def snapshot_configuration(self) -> GlobalWindowSerializerSnapshot:
        return GlobalWindowSerializerSnapshot()


@register_snapshot(WINDOWS + "TimeWindow$Serializer$TimeWindowSerializerSnapshot")
class TimeWindowSerializerSnapshot(SimpleTypeSerializerSnapshot[TimeWindow]):
    serializer_class = TimeWindowSerializer


@register_snapshot(WINDOWS + "GlobalWindow$Serializer$GlobalWindowSerializerSnapshot")
class GlobalWindowSerializerSnapshot(SimpleTypeSerializerSnapshot[GlobalWindow]):
    serializer_class = GlobalWindowSerializer
