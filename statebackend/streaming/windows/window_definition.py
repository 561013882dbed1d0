"""A windowed operation as a whole, checked, as it travels to the subtasks.

What a window *holds* depends on its function: every record for a function that sees all, one value for a reduce
function, one accumulator for an aggregate function; with an evictor it is always every record. What is held is state
under the key and the window, written by the serializer of the records (that of the input's schema, if it has one) or of
the accumulators.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from attrs import Attribute, field, frozen

from statebackend.state.descriptors import as_serializer
from statebackend.state.states import AggregateFunction
from statebackend.streaming.errors import JobDefinitionError, format_value, shown_instance
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.windows.assigners import WindowAssigner
from statebackend.streaming.windows.evictors import Evictor
from statebackend.streaming.windows.triggers import Trigger
from statebackend.streaming.windows.window_functions import ProcessWindowFunction
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = [
    "AggregatedContents",
    "CoGroupedContents",
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
    """One value, into which a function of two folds each record."""

    function: Callable[[Any, Any], Any] = field(validator=_check_callable)


def _check_aggregate(contents: Any, attribute: Attribute[Any], function: object) -> None:
    if not isinstance(function, AggregateFunction):
        raise JobDefinitionError(
            f"aggregate() takes an instance of an AggregateFunction, not {shown_instance(function)}"
        )


@frozen
class AggregatedContents:
    """One accumulator, and its serializer unless it is never stored."""

    function: AggregateFunction[Any, Any, Any] = field(validator=_check_aggregate)
    accumulator_serializer: TypeSerializer[Any] | None

    @classmethod
    def of(cls, function: AggregateFunction[Any, Any, Any], accumulator_type: Any) -> AggregatedContents:
        """With a serializer or type hint of the accumulators; without, as the function's `create_accumulator` says."""
        contents = cls(function, None)
        if accumulator_type is None:
            hints = typing.get_type_hints(type(function).create_accumulator)
            accumulator_type = hints.get("return")
        if accumulator_type is None or isinstance(accumulator_type, typing.TypeVar):
            return contents
        return cls(function, as_serializer(accumulator_type))


@frozen
class ListedContents:
    """Every record."""


@frozen
class CoGroupedContents:
    """Every record of two inputs, each input's by itself; the serializers are those of both, as far as they are given.

    The function of the windows is given one element: the pair of both lists.
    """

    serializers: tuple[TypeSerializer[Any] | None, TypeSerializer[Any] | None] = (None, None)


WindowContents = ReducedContents | AggregatedContents | ListedContents | CoGroupedContents


@frozen(kw_only=True)
class WindowDefinition:
    """See the module. Raises `JobDefinitionError` for parts that do not go together."""

    assigner: WindowAssigner[Any]
    trigger: Trigger[Any, Any]
    contents: WindowContents
    window_function: ProcessWindowFunction[Any, Any, Any, Any] | None = None
    evictor: Evictor[Any, Any] | None = None
    allowed_lateness_ms: int = 0
    late_data_tag: OutputTag[Any] | None = None
    element_serializer: TypeSerializer[Any] | None = None
    """The serializer of the records; without one it follows from the schema of the input."""

    @property
    def needs_timestamps(self) -> bool:
        """Whether a record without a timestamp has no window."""
        return self.assigner.is_event_time

    def __attrs_post_init__(self) -> None:
        if self.assigner.merges_windows and not self.trigger.can_merge():
            raise JobDefinitionError(
                f"{type(self.trigger).__name__} cannot merge windows, and {type(self.assigner).__name__} makes windows "
                f"that merge; give the trigger can_merge() and on_merge(), or take another"
            )
        contents = self.contents
        if self.evictor is None and isinstance(contents, AggregatedContents) and not contents.accumulator_serializer:
            raise JobDefinitionError(
                f"the type of the accumulators of {type(contents.function).__name__} is not known: pass "
                f"aggregate(..., accumulator_type=...) as a type hint or serializer, or give its create_accumulator() "
                f"a return type"
            )
        if self.evictor is not None and isinstance(contents, CoGroupedContents):
            raise JobDefinitionError("windows of two inputs take no evictor; evict in their function")
        if self.window_function is None and isinstance(contents, (ListedContents, CoGroupedContents)):
            raise JobDefinitionError("a window that holds every record needs a function that makes something of them")

    @property
    def user_functions(self) -> tuple[Any, ...]:
        """The functions that may have a setup() of their own."""
        return () if self.window_function is None else (self.window_function,)

    @property
    def element_serializers(self) -> tuple[TypeSerializer[Any] | None, ...]:
        """The serializers of the records of each input, where they are given; none if records are not stored."""
        if isinstance(self.contents, CoGroupedContents):
            return self.contents.serializers
        if self.evictor is None and isinstance(self.contents, AggregatedContents):
            return ()
        return (self.element_serializer,)
