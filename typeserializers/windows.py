"""Windows and their serializers, in the layout of Flink's: namespaces of windowed state.

    time window := i64(start) i64(end)        global window := 00
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, final

from attrs import frozen

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import MalformedDataError
from snapshots.registry import register_snapshot
from snapshots.simple import SimpleTypeSerializerSnapshot
from typeserializers.code_generation import ReadEmitter, WriteEmitter
from typeserializers.compiled import CompiledTypeSerializer
from typeserializers.fixed_fields import FixedFieldsSerializer
from typeserializers.value_text import misfit, shown

WINDOWS: Final = "org.apache.flink.streaming.api.windowing.windows."


@frozen(order=True)
class TimeWindow:
    """The time from ``start`` up to but not including ``end``, both in milliseconds."""

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

    def snapshot_configuration(self) -> TimeWindowSerializerSnapshot:
        return TimeWindowSerializerSnapshot()


class GlobalWindowSerializer(CompiledTypeSerializer[GlobalWindow]):
    """`GLOBAL_WINDOW`, as one zero byte."""

    @property
    def length(self) -> int:
        return 1

    @property
    def is_immutable_type(self) -> bool:
        return True

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return True

    def create_instance(self) -> GlobalWindow:
        return GLOBAL_WINDOW

    def write_to(self, value: GlobalWindow, out: DataOutputView) -> None:
        _require_global_window(value)
        out.write(b"\x00")

    def read_from(self, source: DataInputView) -> GlobalWindow:
        _require_zero(source.read_unsigned_byte())
        return GLOBAL_WINDOW

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.line(f"{emitter.function.bind('require_global', _require_global_window)}({value})")
        emitter.append("b'\\x00'")

    def emit_read(self, emitter: ReadEmitter) -> str:
        byte = emitter.fixed("B")
        emitter.line(f"{emitter.function.bind('require_zero', _require_zero)}({byte})")
        return emitter.function.bind("global_window", GLOBAL_WINDOW)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value is not GLOBAL_WINDOW:
            yield misfit(path, value, "is not GLOBAL_WINDOW")

    def snapshot_configuration(self) -> GlobalWindowSerializerSnapshot:
        return GlobalWindowSerializerSnapshot()


def _require_global_window(value: Any) -> None:
    if value is not GLOBAL_WINDOW:
        raise TypeError(f"{shown(value)} is not GLOBAL_WINDOW")


def _require_zero(byte: int) -> None:
    if byte:
        raise MalformedDataError(f"the global window is one zero byte, found {byte:#x}")


@register_snapshot(WINDOWS + "TimeWindow$Serializer$TimeWindowSerializerSnapshot")
class TimeWindowSerializerSnapshot(SimpleTypeSerializerSnapshot[TimeWindow]):
    def create_serializer(self) -> TimeWindowSerializer:
        return TimeWindowSerializer()


@register_snapshot(WINDOWS + "GlobalWindow$Serializer$GlobalWindowSerializerSnapshot")
class GlobalWindowSerializerSnapshot(SimpleTypeSerializerSnapshot[GlobalWindow]):
    def create_serializer(self) -> GlobalWindowSerializer:
        return GlobalWindowSerializer()
