"""Two streams that are brought together by key and window.

All records of a key and a window, of both streams, are given to one function: as two lists (*co-group*), or as all
pairs of a left and a right record, the left ones in the outer loop (*join*), so that a record without a partner gives
nothing. The windows fire and are given up as those of one stream, by the watermark of both; a record that is late for
them is dropped.

Counting the records of windows, as a row for each key and window.

How many records there are is seen without looking at them. So where they come in columns, an operator counts a whole
batch at once, and makes no objects of its records.

A keyed stream with windows: ``stream.key_by(...).window(...).trigger(...).aggregate(...)``.

Each method gives another windowed stream, so one may be used several times. The methods that name a function end the
chain; they all take

    uid, name, schema   as `KeyedStream.process`
    element_type        of the records, a serializer or type hint, where windows hold records and the input has no
                        schema that tells it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

from attrs import evolve, field, frozen

from statebackend.state.descriptors import as_serializer
from statebackend.state.states import AggregateFunction
from statebackend.streaming.errors import JobDefinitionError, format_value, shown_instance
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.time.timestamps import Duration, duration_ms
from statebackend.streaming.windows.assigners import WindowAssigner
from statebackend.streaming.windows.evictors import Evictor
from statebackend.streaming.windows.triggers import Trigger
from statebackend.streaming.windows.window_definition import (
    AggregatedContents,
    CoGroupedContents,
    ListedContents,
    ReducedContents,
    WindowContents,
    WindowDefinition,
)
from statebackend.streaming.windows.window_functions import AppliedWindowFunction, ProcessWindowFunction, WindowContext

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
    """How many records there are."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, left: int, right: int) -> int:
        return left + right


class KeyAndWindow(ProcessWindowFunction[Any, Any, Any, Any]):
    """Emits what was made of a window behind the key and the window's start and end, both in milliseconds.

    A key of several columns is as many values of the row.
    """

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> list[tuple[Any, ...]]:
        window = context.window
        parts = key if key.__class__ is tuple else (key,)
        return [(*parts, window.start, window.end, element) for element in elements]


S = TypeVar("S", covariant=True)


class AddWindows(Protocol[S]):
    """Adds the operation to the graph, and gives the stream that comes out."""

    def __call__(self, definition: WindowDefinition, *, uid: str, name: str, schema: Any) -> S: ...


@frozen(eq=False)
class WindowedStream(Generic[S]):
    """See the module."""

    _add: AddWindows[S] = field(repr=False)
    _assigner: WindowAssigner[Any]
    _trigger: Trigger[Any, Any] | None = None
    _evictor: Evictor[Any, Any] | None = None
    _lateness_ms: int = 0
    _late_tag: OutputTag[Any] | None = None

    @classmethod
    def of(cls, add: AddWindows[S], assigner: WindowAssigner[Any]) -> WindowedStream[S]:
        """Begins with an assigner; `JobDefinitionError` for what is none."""
        return cls(add, checked_assigner(assigner))

    def trigger(self, trigger: Trigger[Any, Any]) -> WindowedStream[S]:
        """Says when windows fire, in place of the assigner's own trigger."""
        return evolve(self, trigger=checked_trigger(trigger))

    def evictor(self, evictor: Evictor[Any, Any]) -> WindowedStream[S]:
        """Throws records out of a window when it fires; every record is kept one by one then."""
        return evolve(self, evictor=_instance(evictor, Evictor, "evictor()", "an Evictor"))

    def allowed_lateness(self, lateness: Duration) -> WindowedStream[S]:
        """Keeps windows of event time for so long behind their end; each record that comes meanwhile fires again."""
        return evolve(self, lateness_ms=checked_lateness_ms(lateness, self._assigner))

    def side_output_late_data(self, tag: OutputTag[Any]) -> WindowedStream[S]:
        """Sends records that are too late for all their windows to a side output; without it they are dropped."""
        return evolve(self, late_tag=_instance(tag, OutputTag, "side_output_late_data()", "an OutputTag"))

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        window_function: ProcessWindowFunction[Any, Any, Any, Any] | None = None,
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        element_type: Any = None,
    ) -> S:
        """Folds the records of a window into one by ``function(left, right)``, each as it comes.

        It is emitted when the window fires, or given to ``window_function``, as the only element.
        """
        return self._end(ReducedContents(function), window_function, function, uid, schema, name, element_type)

    def aggregate(
        self,
        function: AggregateFunction[Any, Any, Any],
        window_function: ProcessWindowFunction[Any, Any, Any, Any] | None = None,
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        accumulator_type: Any = None,
        element_type: Any = None,
    ) -> S:
        """Folds the records of a window into an accumulator, each as it comes.

        Its result is emitted when the window fires, or given to ``window_function``, as the only element.
        ``accumulator_type`` is a serializer or type hint; without, it is what ``create_accumulator`` says it returns.
        """
        contents = AggregatedContents.of(function, accumulator_type)
        return self._end(contents, window_function, function, uid, schema, name, element_type)

    def count(
        self,
        window_function: ProcessWindowFunction[Any, Any, Any, Any] | None = None,
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
    ) -> S:
        """Counts the records of a window, a batch at a time where they come in columns.

        A row is emitted when the window fires: the key, the start and the end of the window in milliseconds, and the
        count; or the count is given to ``window_function``, as the only element.
        """
        function = Count()
        contents = AggregatedContents.of(function, None)
        return self._end(contents, window_function or KeyAndWindow(), function, uid, schema, name, None)

    def process(
        self,
        function: ProcessWindowFunction[Any, Any, Any, Any],
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        element_type: Any = None,
    ) -> S:
        """Gives all records of a window to a function when it fires."""
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
        """As `process`, by a plain function of key, window and records that yields or returns a list."""
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
    """What `window` was given; `JobDefinitionError` for what is no assigner."""
    assigner: WindowAssigner[Any] = _instance(given, WindowAssigner, "window()", _SUCH_AS)
    return assigner


def checked_trigger(given: Any) -> Trigger[Any, Any]:
    """The trigger; raises `JobDefinitionError` for what is none."""
    trigger: Trigger[Any, Any] = _instance(given, Trigger, "trigger()", "a Trigger")
    return trigger


def checked_lateness_ms(lateness: Duration, assigner: WindowAssigner[Any]) -> int:
    """The lateness in milliseconds; raises `JobDefinitionError` where no record can be late."""
    lateness_ms = duration_ms(lateness, "allowed_lateness()", at_least_ms=0)
    if lateness_ms and not assigner.is_event_time:
        raise JobDefinitionError(
            f"allowed_lateness() is for windows of event time, and {type(assigner).__name__} makes others, "
            f"for which no record is late"
        )
    return lateness_ms


def _process_function(function: Any) -> ProcessWindowFunction[Any, Any, Any, Any]:
    if not isinstance(function, ProcessWindowFunction):
        raise JobDefinitionError(
            f"a function over windows is an instance of a ProcessWindowFunction, not {shown_instance(function)}"
        )
    return function


def _instance(given: Any, kind: type, method: str, what: str) -> Any:
    if not isinstance(given, kind):
        raise JobDefinitionError(f"{method} takes {what}, not {shown_instance(given)}")
    return given


CoGroup = Callable[[list[Any], list[Any]], "Iterable[Any] | None"]
PairFunction = Callable[[Callable[[Any, Any], Any]], ProcessWindowFunction[Any, Any, Any, Any]]
"""What makes the function of a window of a user's function of two: `JoinWindowFunction` or `CoGroupWindowFunction`."""


@frozen
class CoGroupWindowFunction(ProcessWindowFunction[Any, Any, Any, Any]):
    """Calls a function with both lists."""

    function: CoGroup

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterable[Any] | None:
        [(left, right)] = elements
        return self.function(left, right)


@frozen
class JoinWindowFunction(ProcessWindowFunction[Any, Any, Any, Any]):
    """Calls a function with every pair, and emits what it returns."""

    function: Callable[[Any, Any], Any]

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterator[Any]:
        [(lefts, rights)] = elements
        for left in lefts:
            for right in rights:
                yield self.function(left, right)


@frozen(eq=False)
class WindowedStreamPair(Generic[S]):
    """Two keyed streams with windows; each method gives another, and `apply` ends the chain."""

    _add: AddWindows[S] = field(repr=False)
    _assigner: WindowAssigner[Any]
    _kind: PairFunction
    _trigger: Trigger[Any, Any] | None = None
    _lateness_ms: int = 0

    @classmethod
    def of(cls, add: AddWindows[S], assigner: WindowAssigner[Any], kind: PairFunction) -> WindowedStreamPair[S]:
        """Begins with an assigner; `JobDefinitionError` for what is none."""
        return cls(add, checked_assigner(assigner), kind)

    def trigger(self, trigger: Trigger[Any, Any]) -> WindowedStreamPair[S]:
        """Says when windows fire, in place of the assigner's own trigger."""
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
        """Ends the chain with a function of two.

        A join emits what ``function(left, right)`` returns for every pair of a key and a window; a co-group what
        ``function(lefts, rights)`` yields, or returns in a list, of which one may be empty. ``left_type`` and
        ``right_type`` are serializers or type hints of the records, where an input has no schema.
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
