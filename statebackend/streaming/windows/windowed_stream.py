"""Keyed streams with windows: ``stream.key_by(...).window(...).trigger(...).aggregate(...)``.

Each method returns a new windowed stream, so one may be reused. The methods that take a function end the chain and
share these arguments:

    uid, name, schema   as for `KeyedStream.process`
    element_type        a serializer or type hint of the records, if windows hold records and the input has no schema

`WindowedStreamPair` brings two streams together by key and window: a *co-group* function receives both lists of
records; a *join* function receives every pair, left records in the outer loop. Windows fire by the watermark of both
streams, and late records are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from attrs import evolve, field, frozen

from snapshots.errors import format_value
from statebackend.state.descriptors import as_serializer
from statebackend.state.states import AggregateFunction
from statebackend.streaming.aggregates import Aggregate, checked_aggregates
from statebackend.streaming.errors import JobDefinitionError, format_instance
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.time.timestamps import Duration, duration_ms
from statebackend.streaming.windows.assigners import GlobalWindows, WindowAssigner
from statebackend.streaming.windows.evictors import Evictor
from statebackend.streaming.windows.triggers import Trigger
from statebackend.streaming.windows.window_definition import (
    AggregatedContents,
    CoGroupedContents,
    ColumnAggregates,
    ListedContents,
    ReducedContents,
    WindowContents,
    WindowDefinition,
)
from statebackend.streaming.windows.window_functions import (
    AppliedWindowFunction,
    ProcessWindowFunction,
    ResultWindowFunction,
    WindowContext,
)

__all__ = [
    "AddWindows",
    "CoGroupWindowFunction",
    "Count",
    "JoinWindowFunction",
    "KeyAndWindow",
    "PairFunction",
    "WindowedStream",
    "WindowedStreamPair",
    "checked_assigner",
    "checked_lateness_ms",
    "checked_trigger",
]


class Count(AggregateFunction[Any, int, int]):
    """Counts records. Where records come in columns, the operator counts whole batches without creating records."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, left: int, right: int) -> int:
        return left + right


class KeyAndWindow(ProcessWindowFunction[Any, Any, Any, Any]):
    """Emits the key, the window's start and end in milliseconds, and the result.

    A key of several columns becomes several values of the row.
    """

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> list[tuple[Any, ...]]:
        window = context.window
        parts = key if key.__class__ is tuple else (key,)
        return [(*parts, window.start, window.end, element) for element in elements]


S = TypeVar("S", covariant=True)


WindowFunction: TypeAlias = (
    ProcessWindowFunction[Any, Any, Any, Any] | Callable[[Any, Any, Any], "Iterable[Any] | None"]
)
"""Receives the result of a window: an object, or a plain function of key, window and result."""


class AddWindows(Protocol[S]):
    """Adds the operation to the graph and returns its output."""

    def __call__(self, definition: WindowDefinition, *, uid: str, name: str, schema: Any) -> S: ...


@frozen(eq=False)
class WindowedStream(Generic[S]):
    """A keyed stream with windows under construction. Methods return a new one until an operation ends the chain."""

    _add: AddWindows[S] = field(repr=False)
    _assigner: WindowAssigner[Any]
    _trigger: Trigger[Any, Any] | None = None
    _evictor: Evictor[Any, Any] | None = None
    _lateness_ms: int = 0
    _late_tag: OutputTag[Any] | None = None

    @classmethod
    def of(cls, add: AddWindows[S], assigner: WindowAssigner[Any]) -> WindowedStream[S]:
        """Start with an assigner. Raises `JobDefinitionError` for anything else."""
        return cls(add, checked_assigner(assigner))

    def trigger(self, trigger: Trigger[Any, Any]) -> WindowedStream[S]:
        """Set the trigger, which replaces the default trigger of the assigner."""
        return evolve(self, trigger=checked_trigger(trigger))

    def evictor(self, evictor: Evictor[Any, Any]) -> WindowedStream[S]:
        """Remove records from a window when it fires. The window then stores every record."""
        return evolve(self, evictor=_instance(evictor, Evictor, "evictor()", "an Evictor"))

    def allowed_lateness(self, lateness: Duration) -> WindowedStream[S]:
        """Keep event-time windows for this time after their end. Each late record until then fires the window."""
        return evolve(self, lateness_ms=checked_lateness_ms(lateness, self._assigner))

    def side_output_late_data(self, tag: OutputTag[Any]) -> WindowedStream[S]:
        """Send records that are late for all their windows to a side output. Without it they are dropped."""
        if not self._assigner.is_event_time:
            raise JobDefinitionError(
                f"side_output_late_data() requires event-time windows; no record is late for windows of "
                f"{type(self._assigner).__name__}"
            )
        return evolve(self, late_tag=_instance(tag, OutputTag, "side_output_late_data()", "an OutputTag"))

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        window_function: WindowFunction | None = None,
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        element_type: Any = None,
    ) -> S:
        """Fold the records of a window into one with ``function(left, right)``, as they arrive.

        The result is emitted when the window fires, or passed to ``window_function``: as the only element, or
        to a plain function of key, window and result.
        """
        return self._end(
            ReducedContents(function), _result_function(window_function), function, uid, schema, name, element_type
        )

    def aggregate(
        self,
        function: AggregateFunction[Any, Any, Any] | None = None,
        window_function: WindowFunction | None = None,
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        accumulator_type: Any = None,
        element_type: Any = None,
        **aggregates: Aggregate,
    ) -> S:
        """Fold the records of a window into an accumulator, as they arrive.

        The result is emitted when the window fires, or passed to ``window_function`` as in `reduce`.
        ``accumulator_type`` is a serializer or type hint; by default the return type of ``create_accumulator``.

        Instead of a function, pass built-in aggregates, as for `KeyedStream.aggregate`. A firing emits the key columns,
        ``window struct<start: timestamp, end: timestamp>`` and the aggregates. The schema of the result follows.
        """
        if aggregates or function is None:
            if function is not None:
                raise JobDefinitionError("aggregate() takes a function or built-in aggregates, not both")
            columns = ColumnAggregates(checked_aggregates(aggregates))
            return self._end(
                columns, _result_function(window_function), None, uid, schema, name or "aggregate", element_type
            )
        contents = AggregatedContents.of(function, accumulator_type)
        return self._end(contents, _result_function(window_function), function, uid, schema, name, element_type)

    def count(
        self,
        window_function: WindowFunction | None = None,
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
    ) -> S:
        """Count the records of a window, a whole batch at once if records are in columns.

        When the window fires it emits a row: key, start and end of the window in milliseconds, and count. A
        ``window_function`` receives the count as in `reduce` instead.

        Raises:
            JobDefinitionError: A global window has no start and no end.
        """
        if window_function is None and isinstance(self._assigner, GlobalWindows):
            raise JobDefinitionError("count(): a global window has no start and no end; use aggregate(n=count())")
        function = Count()
        contents = AggregatedContents.of(function, None)
        return self._end(
            contents, _result_function(window_function) or KeyAndWindow(), function, uid, schema, name, None
        )

    def process(
        self,
        function: ProcessWindowFunction[Any, Any, Any, Any],
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        element_type: Any = None,
    ) -> S:
        """Pass all records of a window to a function when it fires."""
        return self._end(ListedContents(), _process_function(function), function, uid, schema, name, element_type)

    def apply(
        self,
        function: Callable[[Any, Any, list[Any]], Iterable[Any] | None],
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        element_type: Any = None,
    ) -> S:
        """As `process`, with a plain function of key, window and records that yields or returns a list."""
        if not callable(function):
            raise JobDefinitionError(
                f"apply() takes a function of key, window and records, not {format_value(function, 80)}"
            )
        applied = AppliedWindowFunction(function)
        return self._end(ListedContents(), applied, function, uid, schema, name, element_type)

    def _end(
        self,
        contents: WindowContents,
        window_function: Any,
        named_after: Any,
        uid: str,
        schema: Any,
        name: str,
        element_type: Any,
    ) -> S:
        definition = WindowDefinition(
            assigner=self._assigner,
            trigger=self._assigner.default_trigger() if self._trigger is None else self._trigger,
            contents=contents,
            window_function=None if window_function is None else _process_function(window_function),
            evictor=self._evictor,
            allowed_lateness_ms=self._lateness_ms,
            late_data_tag=self._late_tag,
            element_serializer=None if element_type is None else as_serializer(element_type),
        )
        own_name = getattr(named_after, "__name__", type(named_after).__name__)
        return self._add(definition, uid=uid, name=name or own_name, schema=schema)


_SUCH_AS: Final = "a window assigner, such as TumblingEventTimeWindows.of('1 hour')"


def checked_assigner(given: Any) -> WindowAssigner[Any]:
    """Return the assigner. Raises `JobDefinitionError` for anything else."""
    assigner: WindowAssigner[Any] = _instance(given, WindowAssigner, "window()", _SUCH_AS)
    return assigner


def checked_trigger(given: Any) -> Trigger[Any, Any]:
    """Return the trigger. Raises `JobDefinitionError` for anything else."""
    trigger: Trigger[Any, Any] = _instance(given, Trigger, "trigger()", "a Trigger")
    return trigger


def checked_lateness_ms(lateness: Duration, assigner: WindowAssigner[Any]) -> int:
    """Return the lateness in milliseconds. Raises `JobDefinitionError` where no record can be late."""
    lateness_ms = duration_ms(lateness, "allowed_lateness()", at_least_ms=0)
    if lateness_ms and not assigner.is_event_time:
        raise JobDefinitionError(
            f"allowed_lateness() requires event-time windows; no record is late for windows of "
            f"{type(assigner).__name__}"
        )
    return lateness_ms


def _process_function(function: Any) -> ProcessWindowFunction[Any, Any, Any, Any]:
    if not isinstance(function, ProcessWindowFunction):
        raise JobDefinitionError(
            f"a function over windows must be an instance of a ProcessWindowFunction, or a plain function for apply() "
            f"and results, not {format_instance(function)}"
        )
    return function


def _result_function(function: Any) -> Any:
    if isinstance(function, (ProcessWindowFunction, type)) or not callable(function):
        return function
    return ResultWindowFunction(function)


def _instance(given: Any, kind: type, method: str, what: str) -> Any:
    if not isinstance(given, kind):
        raise JobDefinitionError(f"{method} takes {what}, not {format_instance(given)}")
    return given


CoGroup = Callable[[list[Any], list[Any]], "Iterable[Any] | None"]
PairFunction = Callable[[Callable[[Any, Any], Any]], ProcessWindowFunction[Any, Any, Any, Any]]
"""Wraps a user's function of two as a window function: `JoinWindowFunction` or `CoGroupWindowFunction`."""


@frozen
class CoGroupWindowFunction(ProcessWindowFunction[Any, Any, Any, Any]):
    """Calls a function with both lists."""

    function: CoGroup

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterable[Any] | None:
        [(left, right)] = elements
        return self.function(left, right)


@frozen
class JoinWindowFunction(ProcessWindowFunction[Any, Any, Any, Any]):
    """Calls a function with every pair and emits the results."""

    function: Callable[[Any, Any], Any]

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterator[Any]:
        [(lefts, rights)] = elements
        for left in lefts:
            for right in rights:
                yield self.function(left, right)


@frozen(eq=False)
class WindowedStreamPair(Generic[S]):
    """Two keyed streams with windows under construction. Methods return a new pair; `apply` ends the chain."""

    _add: AddWindows[S] = field(repr=False)
    _assigner: WindowAssigner[Any]
    _kind: PairFunction
    _trigger: Trigger[Any, Any] | None = None
    _lateness_ms: int = 0

    @classmethod
    def of(cls, add: AddWindows[S], assigner: WindowAssigner[Any], kind: PairFunction) -> WindowedStreamPair[S]:
        """Start with an assigner. Raises `JobDefinitionError` for anything else."""
        return cls(add, checked_assigner(assigner), kind)

    def trigger(self, trigger: Trigger[Any, Any]) -> WindowedStreamPair[S]:
        """Set the trigger, which replaces the default trigger of the assigner."""
        return evolve(self, trigger=checked_trigger(trigger))

    def allowed_lateness(self, lateness: Duration) -> WindowedStreamPair[S]:
        """As `WindowedStream.allowed_lateness`."""
        return evolve(self, lateness_ms=checked_lateness_ms(lateness, self._assigner))

    def apply(
        self,
        function: Callable[[Any, Any], Any],
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        left_type: Any = None,
        right_type: Any = None,
    ) -> S:
        """Apply a function to the records of both streams.

        A join emits ``function(left, right)`` for every pair of a key and window. A co-group emits the records that
        ``function(lefts, rights)`` yields or returns in a list; one of the lists may be empty. ``left_type`` and
        ``right_type`` are serializers or type hints of the records, for inputs without a schema.
        """
        if not callable(function):
            raise JobDefinitionError(f"apply() takes a function of two, not {format_value(function, 80)}")
        left, right = (None if one is None else as_serializer(one) for one in (left_type, right_type))
        definition = WindowDefinition(
            assigner=self._assigner,
            trigger=self._assigner.default_trigger() if self._trigger is None else self._trigger,
            contents=CoGroupedContents((left, right)),
            window_function=self._kind(function),
            allowed_lateness_ms=self._lateness_ms,
        )
        own_name = getattr(function, "__name__", type(function).__name__)
        return self._add(definition, uid=uid, name=name or own_name, schema=schema)
