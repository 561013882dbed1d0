"""Two keyed streams that are joined by a distance in time, as a program says it.

A left and a right record of one key are a pair if the right one is at a time within the interval around the left one:

    left + lower  <=  right  <=  left + upper        either side may be exclusive

Neither record has to wait for a window to end: the pair is there when its second record is.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Protocol, TypeVar

from attrs import evolve, field, frozen

from statebackend.api.descriptors import as_serializer
from streamjobs.api.join_functions import ProcessJoinFunction
from streamjobs.api.output_tag import OutputTag
from streamjobs.errors import JobDefinitionError
from streamjobs.time.durations import Duration, duration_ms
from streamjobs.user_errors import cited, shown_instance
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["AddIntervalJoin", "IntervalJoin", "IntervalJoinDefinition"]

S = TypeVar("S", covariant=True)


def _check_function(definition: Any, attribute: Any, function: Any) -> None:
    if not isinstance(function, ProcessJoinFunction):
        raise JobDefinitionError(
            f"process() of an interval join takes an instance of a ProcessJoinFunction, not {shown_instance(function)}"
        )


def _check_tag(definition: Any, attribute: Any, tag: object) -> None:
    if tag is not None and not isinstance(tag, OutputTag):
        raise JobDefinitionError(f"late records of an interval join go to an OutputTag, not to {cited(tag, 80)}")


@frozen(kw_only=True)
class IntervalJoinDefinition:
    """What a node of the graph holds for an interval join; picklable. Input 0 is the left one, input 1 the right one.

    Bounds are in milliseconds. The serializers are those of the records; where they are None, the schema of the input
    says it. Raises `JobDefinitionError` for a lower bound above the upper one.
    """

    needs_timestamps: ClassVar[bool] = True

    function: ProcessJoinFunction[Any, Any, Any, Any] = field(validator=_check_function)
    lower_ms: int
    upper_ms: int
    is_lower_inclusive: bool = True
    is_upper_inclusive: bool = True
    late_left_tag: OutputTag[Any] | None = field(default=None, validator=_check_tag)
    late_right_tag: OutputTag[Any] | None = field(default=None, validator=_check_tag)
    serializers: tuple[TypeSerializer[Any] | None, TypeSerializer[Any] | None] = (None, None)

    def __attrs_post_init__(self) -> None:
        if self.lower_ms > self.upper_ms:
            raise JobDefinitionError(
                f"the lower bound of an interval join is {self.lower_ms} ms and its upper bound {self.upper_ms} ms; "
                f"between() takes the lower one first"
            )

    @property
    def user_functions(self) -> tuple[Any, ...]:
        """The function."""
        return (self.function,)


class AddIntervalJoin(Protocol[S]):
    """Adds the join to the graph, and gives the stream that comes out."""

    def __call__(self, definition: IntervalJoinDefinition, *, uid: str, name: str, schema: Any) -> S: ...


@frozen(eq=False)
class IntervalJoin(Generic[S]):
    """Two keyed streams; each method gives another, and `process` ends the chain."""

    _add: AddIntervalJoin[S] = field(repr=False)
    _bounds_ms: tuple[int, int] | None = None
    _is_lower_inclusive: bool = True
    _is_upper_inclusive: bool = True
    _late_left_tag: OutputTag[Any] | None = None
    _late_right_tag: OutputTag[Any] | None = None

    def between(self, lower_bound: Duration, upper_bound: Duration) -> IntervalJoin[S]:
        """Says from when to when, seen from a left record, a right record may be; both may be negative."""
        bounds = duration_ms(lower_bound, "the lower bound"), duration_ms(upper_bound, "the upper bound")
        return evolve(self, bounds_ms=bounds)

    def lower_bound_exclusive(self) -> IntervalJoin[S]:
        """Leaves out a right record that is exactly at the lower bound."""
        return evolve(self, is_lower_inclusive=False)

    def upper_bound_exclusive(self) -> IntervalJoin[S]:
        """Leaves out a right record that is exactly at the upper bound."""
        return evolve(self, is_upper_inclusive=False)

    def side_output_left_late_data(self, tag: OutputTag[Any]) -> IntervalJoin[S]:
        """Sends left records that are behind the watermark to a side output; they are dropped without."""
        return evolve(self, late_left_tag=tag)

    def side_output_right_late_data(self, tag: OutputTag[Any]) -> IntervalJoin[S]:
        """Sends right records that are behind the watermark to a side output; they are dropped without."""
        return evolve(self, late_right_tag=tag)

    def process(
        self,
        function: ProcessJoinFunction[Any, Any, Any, Any],
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        left_type: Any = None,
        right_type: Any = None,
    ) -> S:
        """Gives each pair to a function.

        ``left_type`` and ``right_type`` are serializers or type hints of the records, where an input has no schema.
        Raises `JobDefinitionError` without `between`, and for what does not go together.
        """
        if self._bounds_ms is None:
            raise JobDefinitionError(
                "an interval join needs its interval: chain between('-5 minutes', '5 minutes') before process()"
            )
        left, right = (None if one is None else as_serializer(one) for one in (left_type, right_type))
        definition = IntervalJoinDefinition(
            function=function,
            lower_ms=self._bounds_ms[0],
            upper_ms=self._bounds_ms[1],
            is_lower_inclusive=self._is_lower_inclusive,
            is_upper_inclusive=self._is_upper_inclusive,
            late_left_tag=self._late_left_tag,
            late_right_tag=self._late_right_tag,
            serializers=(left, right),
        )
        return self._add(definition, uid=uid, name=name or type(function).__name__, schema=schema)
