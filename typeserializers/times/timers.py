"""Timers and windows, and their serializers in Flink's layout.

    timer         := u64(timestamp with its sign bit flipped) key namespace
    time window   := i64(start) i64(end)
    global window := 00

The flipped bit makes the bytes sort like the timestamps, negative ones first. Windows are the namespaces of windowed
state.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar, final

from attrs import define

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import misfit
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter, is_nested_too_deep
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.fixed_fields import FixedFieldsSerializer, SingleValueSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import exact_parts
from typeserializers.scalars.fixed_width import LongSerializer

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)

WINDOWS: Final = "org.apache.flink.streaming.api.windowing.windows."


class TimeWindow(NamedTuple):
    """The time from ``start`` (inclusive) to ``end`` (exclusive), in milliseconds.

    It is a tuple, because windows are hashed and compared at every access to their state.
    """

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """The last millisecond that belongs to the window."""
        return self.end - 1

    @property
    def start_time(self) -> datetime.datetime:
        """The start as a datetime in UTC. Raises `OverflowError` outside of the years 1 to 9999."""
        return _EPOCH + datetime.timedelta(milliseconds=self.start)

    @property
    def end_time(self) -> datetime.datetime:
        """The end (exclusive), as `start_time`."""
        return _EPOCH + datetime.timedelta(milliseconds=self.end)

    def intersects(self, other: TimeWindow) -> bool:
        """Whether the windows overlap or touch, so that sessions would merge."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Returns the smallest window that contains both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


@final
class GlobalWindow:
    """The window that contains every record; the only instance is `GLOBAL_WINDOW`."""

    __slots__ = ()

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp."""
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


K = TypeVar("K")
N = TypeVar("N")

_SIGN: Final = 1 << 63


@define(unsafe_hash=True)
class Timer(Generic[K, N]):
    """A timestamp in milliseconds at which a timer of a key and namespace fires.

    Do not modify it: it is shared. This is not enforced, because creating an object of a frozen class takes more than
    twice as long.
    """

    timestamp: int
    key: K
    namespace: N


class TimerSerializer(CompiledTypeSerializer["Timer[K, N]"], Generic[K, N]):
    """A `Timer`."""

    def __init__(self, key_serializer: TypeSerializer[K], namespace_serializer: TypeSerializer[N]) -> None:
        self.key_serializer = key_serializer
        self.namespace_serializer = namespace_serializer

    @property
    def length(self) -> int:
        key, namespace = self.key_serializer.length, self.namespace_serializer.length
        return -1 if -1 in (key, namespace) else 8 + key + namespace

    @property
    def minimum_length(self) -> int:
        return 8 + self.key_serializer.minimum_length + self.namespace_serializer.minimum_length

    @property
    def is_immutable_type(self) -> bool:
        return self.key_serializer.is_immutable_type and self.namespace_serializer.is_immutable_type

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return (
            self.key_serializer.equal_values_have_equal_bytes
            and self.namespace_serializer.equal_values_have_equal_bytes
        )

    def configuration(self) -> Hashable:
        return self.key_serializer, self.namespace_serializer

    def create_instance(self) -> Timer[K, N]:
        return Timer(0, self.key_serializer.create_instance(), self.namespace_serializer.create_instance())

    def copy(self, value: Timer[K, N]) -> Timer[K, N]:
        if self.is_immutable_type:
            return value
        key, namespace = self.key_serializer.copy(value.key), self.namespace_serializer.copy(value.namespace)
        return Timer(value.timestamp, key, namespace)

    def duplicate(self) -> TimerSerializer[K, N]:
        key, namespace = self.key_serializer.duplicate(), self.namespace_serializer.duplicate()
        unchanged = key is self.key_serializer and namespace is self.namespace_serializer
        return self if unchanged else TimerSerializer(key, namespace)

    def write_to(self, value: Timer[K, N], out: DataOutputView) -> None:
        require_timer(value)
        out.write((value.timestamp + _SIGN).to_bytes(8, "big"))
        self.key_serializer.serialize(value.key, out)
        self.namespace_serializer.serialize(value.namespace, out)

    def read_from(self, source: DataInputView) -> Timer[K, N]:
        timestamp = int.from_bytes(source.read(8), "big") - _SIGN
        return Timer(timestamp, self.key_serializer.deserialize(source), self.namespace_serializer.deserialize(source))

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        timer_class, require = function.bind("timer_class", Timer), function.bind("require_timer", require_timer)
        emitter.line(f"if {value}.__class__ is not {timer_class}: {require}({value})")
        self._emit_parts(emitter, f"{value}.timestamp", f"{value}.key", f"{value}.namespace")

    def compile_write_parts(self) -> Callable[[int, K, N], bytes]:
        """Returns a function that writes a timer of these parts without creating it; it may raise any exception."""
        function = GeneratedFunction("write", "timestamp, key, namespace")
        emitter = WriteEmitter(function)
        try:
            self._emit_parts(emitter, "timestamp", "key", "namespace")
            return function.compile([*emitter.lines, f"return {emitter.expression()}"])
        except (SyntaxError, RecursionError) as error:
            if not is_nested_too_deep(error):
                raise
            write = self.codec.write
            return lambda timestamp, key, namespace: write(Timer(timestamp, key, namespace))

    def _emit_parts(self, emitter: WriteEmitter, timestamp: str, key: str, namespace: str) -> None:
        emitter.fixed("Q", f"{timestamp} + {_SIGN}")
        self.key_serializer.emit_write(emitter, key)
        self.namespace_serializer.emit_write(emitter, namespace)

    def emit_read(self, emitter: ReadEmitter) -> str:
        timestamp = emitter.fixed("Q")
        key = self.key_serializer.emit_read(emitter)
        namespace = self.namespace_serializer.emit_read(emitter)
        return f"{emitter.function.bind('timer_class', Timer)}({timestamp} - {_SIGN}, {key}, {namespace})"

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, Timer):
            yield misfit(path, value, "is not a Timer")
            return
        yield from LongSerializer().problems(value.timestamp, f"{path}.timestamp")
        yield from self.key_serializer.problems(value.key, f"{path}.key")
        yield from self.namespace_serializer.problems(value.namespace, f"{path}.namespace")

    def snapshot_configuration(self) -> TimerSerializerSnapshot[K, N]:
        return TimerSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"TimerSerializer({self.key_serializer!r}, {self.namespace_serializer!r})"


def require_timer(value: Any) -> None:
    """Raises `TypeError` for a value that is not a `Timer`."""
    if not isinstance(value, Timer):
        raise TypeError(f"a Timer is needed, not {type(value).__name__}")


@register_snapshot("org.apache.flink.streaming.api.operators.TimerSerializerSnapshot")
class TimerSerializerSnapshot(CompositeTypeSerializerSnapshot["Timer[K, N]", TimerSerializer[Any, Any]], Generic[K, N]):
    current_outer_version = 2
    outer_serializer_class = TimerSerializer

    def nested_serializers(self, outer: TimerSerializer[Any, Any]) -> Sequence[TypeSerializer[Any]]:
        return outer.key_serializer, outer.namespace_serializer

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> TimerSerializer[Any, Any]:
        return TimerSerializer(nested[0], nested[1])

    def nested_path(self, index: int) -> str:
        return (".key", ".namespace")[index]
