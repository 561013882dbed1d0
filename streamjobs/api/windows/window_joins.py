"""Two streams that are brought together by key and window.

All records of a key and a window, of both streams, are given to one function: as two lists (*co-group*), or as all
pairs of a left and a right record, the left ones in the outer loop (*join*), so that a record without a partner gives
nothing. The windows fire and are given up as those of one stream, by the watermark of both; a record that is late for
them is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from attrs import evolve, field, frozen

from statebackend.api.descriptors import as_serializer
from streamjobs.api.windows.triggers import Trigger
from streamjobs.api.windows.window_assigners import WindowAssigner
from streamjobs.api.windows.window_definition import CoGroupedContents, WindowDefinition
from streamjobs.api.windows.window_functions import ProcessWindowFunction, WindowContext
from streamjobs.api.windows.windowed_stream import AddWindows, checked_assigner, checked_lateness_ms, checked_trigger
from streamjobs.errors import JobDefinitionError
from streamjobs.time.durations import Duration
from streamjobs.user_errors import cited

__all__ = ["CoGroupWindowFunction", "JoinWindowFunction", "PairFunction", "WindowedStreamPair"]

S = TypeVar("S", covariant=True)

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
            raise JobDefinitionError(f"apply() takes a function of two, not {cited(function, 80)}")
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
