"""The validated settings of a windowed operation, as pickled for the subtasks.

The contents of a window depend on its function: all records for a window function, one value for a reduce function, one
accumulator for an aggregate function. With an evictor they are always all records. Contents are state per key and
window, written by the serializer of the records (by default that of the input's schema) or of the accumulators.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from attrs import Attribute, evolve, field, frozen

from snapshots.errors import format_value
from statebackend.state.descriptors import as_serializer
from statebackend.state.states import AggregateFunction
from statebackend.streaming.aggregates import NamedAggregates, bound_aggregates, in_utc
from statebackend.streaming.errors import JobDefinitionError, format_instance
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.windows.assigners import GlobalWindows, WindowAssigner
from statebackend.streaming.windows.evictors import Evictor
from statebackend.streaming.windows.triggers import Trigger
from statebackend.streaming.windows.window_functions import ProcessWindowFunction, WindowContext
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.times.timers import TimeWindow

__all__ = [
    "AggregatedContents",
    "CoGroupedContents",
    "ColumnAggregates",
    "ListedContents",
    "ReducedContents",
    "WindowContents",
    "WindowDefinition",
]


def _check_callable(contents: Any, attribute: Attribute[Any], function: object) -> None:
    if not callable(function):
        raise JobDefinitionError(f"reduce() takes a function of two records, not {format_value(function, 80)}")


@frozen
class ReducedContents:
    """One value, into which a function of two records folds all records."""

    function: Callable[[Any, Any], Any] = field(validator=_check_callable)


def _check_aggregate(contents: Any, attribute: Attribute[Any], function: object) -> None:
    if not isinstance(function, AggregateFunction):
        raise JobDefinitionError(
            f"aggregate() takes an instance of an AggregateFunction, not {format_instance(function)}"
        )


@frozen
class AggregatedContents:
    """One accumulator. The serializer is None if it is never stored."""

    function: AggregateFunction[Any, Any, Any] = field(validator=_check_aggregate)
    accumulator_serializer: TypeSerializer[Any] | None

    @classmethod
    def of(cls, function: AggregateFunction[Any, Any, Any], accumulator_type: Any) -> AggregatedContents:
        """Create it. ``accumulator_type`` defaults to the return type of `create_accumulator`."""
        contents = cls(function, None)
        if accumulator_type is None:
            hints = typing.get_type_hints(type(function).create_accumulator)
            accumulator_type = hints.get("return")
        if accumulator_type is None or isinstance(accumulator_type, typing.TypeVar):
            return contents
        return cls(function, as_serializer(accumulator_type))


@frozen
class ColumnAggregates:
    """The accumulators of built-in aggregates. Their types follow from the schema of the input."""

    aggregates: NamedAggregates


@frozen
class ListedContents:
    """All records."""


@frozen
class CoGroupedContents:
    """All records of two inputs, separately, with the serializers that the job sets, if any.

    The window function receives one element: the pair of both lists.
    """

    serializers: tuple[TypeSerializer[Any] | None, TypeSerializer[Any] | None] = (None, None)


WindowContents = ReducedContents | AggregatedContents | ColumnAggregates | ListedContents | CoGroupedContents


class KeyWindowAndAggregates(ProcessWindowFunction[Any, Any, Any, Any]):
    """Emits the key, start and end of the window, and the aggregates. A global window has no start and end."""

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> list[tuple[Any, ...]]:
        [results] = elements
        window, parts = context.window, key if key.__class__ is tuple else (key,)
        if window.__class__ is not TimeWindow:
            return [(*parts, *results)]
        return [(*parts, (in_utc(window.start), in_utc(window.end)), *results)]


@frozen(kw_only=True)
class WindowDefinition:
    """A windowed operation. Raises `JobDefinitionError` for settings that do not fit together."""

    assigner: WindowAssigner[Any]
    trigger: Trigger[Any, Any]
    contents: WindowContents
    window_function: ProcessWindowFunction[Any, Any, Any, Any] | None = None
    evictor: Evictor[Any, Any] | None = None
    allowed_lateness_ms: int = 0
    late_data_tag: OutputTag[Any] | None = None
    element_serializer: TypeSerializer[Any] | None = None
    """The serializer of the records. If None, it follows from the schema of the input."""
    key_names: tuple[str, ...] = ()
    """The names of the key columns in the rows of built-in aggregates."""

    @property
    def needs_timestamps(self) -> bool:
        """Whether records without a timestamp have no window."""
        return self.assigner.is_event_time

    @property
    def ends_in_event_time(self) -> bool | None:
        """Whether windows end in event time or in processing time. None for windows without an end."""
        return None if isinstance(self.assigner, GlobalWindows) else self.assigner.is_event_time

    def bound(self, schema: DeclaredSchema | None, where: str) -> WindowDefinition:
        """Return the operation with built-in aggregates replaced by an aggregate function for this schema."""
        if not isinstance(self.contents, ColumnAggregates):
            return self
        aggregates = bound_aggregates(self.contents.aggregates, schema, where)
        contents = AggregatedContents(aggregates, aggregates.serializer)
        return evolve(self, contents=contents, window_function=self.window_function or KeyWindowAndAggregates())

    def __attrs_post_init__(self) -> None:
        if self.assigner.merges_windows and not self.trigger.can_merge():
            raise JobDefinitionError(
                f"{type(self.trigger).__name__} cannot merge windows, but the windows of "
                f"{type(self.assigner).__name__} merge; implement can_merge() and on_merge(), or use another trigger"
            )
        contents = self.contents
        if self.evictor is None and isinstance(contents, AggregatedContents) and not contents.accumulator_serializer:
            raise JobDefinitionError(
                f"the type of the accumulators of {type(contents.function).__name__} is unknown: pass a type hint or "
                f"serializer with aggregate(..., accumulator_type=...), or annotate the return type of "
                f"create_accumulator()"
            )
        if self.evictor is not None and isinstance(contents, CoGroupedContents):
            raise JobDefinitionError("windows of two inputs do not support evictors; evict in their function")
        if self.window_function is None and isinstance(contents, (ListedContents, CoGroupedContents)):
            raise JobDefinitionError("a window that holds every record needs a window function")

    @property
    def user_functions(self) -> tuple[Any, ...]:
        """The functions that may override setup()."""
        return () if self.window_function is None else (self.window_function,)

    @property
    def element_serializers(self) -> tuple[TypeSerializer[Any] | None, ...]:
        """The serializers of the records of each input, or None. Empty if records are not stored."""
        if isinstance(self.contents, CoGroupedContents):
            return self.contents.serializers
        if self.evictor is None and isinstance(self.contents, (AggregatedContents, ColumnAggregates)):
            return ()
        return (self.element_serializer,)
