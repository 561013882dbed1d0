"""Reducing and aggregating state with time-to-live, over those of any backend.

The state beneath folds `TtlValue`s with functions that are wrapped around the user's: an operand whose time is over
counts as absent, and the result is accessed now, also when namespaces are merged. So a backend may fold in whatever way
it likes. The aggregate function gives its accumulator out as the result, for the handle to look at the time and to make
the user's result of it; a read that renews the life of the accumulator adds `_TOUCH`, which changes only the time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

from statebackend.api.aggregate_function import AggregateFunction, ReduceFunction
from statebackend.kinds.folding_states import folded, note_function, refusal
from statebackend.kinds.internal_states import InternalAggregatingState, InternalReducingState
from statebackend.ttl.lifetime import Lifetime
from statebackend.ttl.states import TtlState
from typeserializers.containers.ttl import TtlValue

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
O = TypeVar("O")  # noqa: E741

_TOUCH: Final[Any] = object()


class TtlReduceFunction(Generic[T]):
    """Reduces what is still alive."""

    def __init__(self, function: ReduceFunction[T], lifetime: Lifetime, name: str) -> None:
        self._function = function
        self._lifetime = lifetime
        self._name = name

    def __call__(self, left: TtlValue[T], right: TtlValue[T]) -> TtlValue[T]:
        if not self._lifetime.is_visible(left):
            return right
        if not self._lifetime.is_visible(right):
            return left
        result = folded(self._function(left.value, right.value), self._name, "the reduce function")
        return self._lifetime.stamped(result)


class TtlAggregateFunction(AggregateFunction[I, "TtlValue[A]", "TtlValue[A]"]):
    """Aggregates into what is still alive."""

    def __init__(self, function: AggregateFunction[I, A, Any], lifetime: Lifetime, name: str) -> None:
        self._function = function
        self._lifetime = lifetime
        self._name = name

    def create_accumulator(self) -> TtlValue[A]:
        return self._lifetime.stamped(self._function.create_accumulator())

    def add(self, value: I, accumulator: TtlValue[A]) -> TtlValue[A]:
        if value is _TOUCH:
            return self._lifetime.stamped(accumulator.value)
        if not self._lifetime.is_visible(accumulator):
            accumulator = self.create_accumulator()
        added = self._function.add(value, accumulator.value)
        return self._lifetime.stamped(folded(added, self._name, "add() of the aggregate function"))

    def get_result(self, accumulator: TtlValue[A]) -> TtlValue[A]:
        return accumulator

    def merge(self, left: TtlValue[A], right: TtlValue[A]) -> TtlValue[A]:
        if not self._lifetime.is_visible(left):
            return right
        if not self._lifetime.is_visible(right):
            return left
        merged = self._function.merge(left.value, right.value)
        return self._lifetime.stamped(folded(merged, self._name, "merge() of the aggregate function"))


class _TtlFoldingState(TtlState):
    """What both kinds share; the state beneath gives out its `TtlValue`."""

    __slots__ = ("_name",)

    def __init__(self, stored: Any, lifetime: Lifetime, name: str) -> None:
        super().__init__(stored, lifetime)
        self._name = name

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        self._clean_up()
        self._stored.merge_namespaces(target, sources)

    def remove_expired(self) -> None:
        stored: TtlValue[Any] | None = self._stored.get()
        if stored is not None and self.lifetime.is_expired(stored):
            self._stored.clear()

    def _visible(self) -> TtlValue[Any] | None:
        """What was folded, if it may be seen; removes it if its time is over."""
        self._clean_up()
        stored: TtlValue[Any] | None = self._stored.get()
        if stored is None:
            return None
        if self.lifetime.is_expired(stored):
            self._stored.clear()
            return stored if self.lifetime.returns_expired else None
        if self.lifetime.renews_on_read and stored.last_access_timestamp < self.lifetime.clock():
            self._renew(stored)
        return stored

    @abstractmethod
    def _renew(self, stored: TtlValue[Any]) -> None:
        """Makes the time of what was folded that of this access."""


class TtlReducingState(_TtlFoldingState, InternalReducingState[T]):
    """See the module."""

    __slots__ = ()

    def get(self) -> T | None:
        stored = self._visible()
        return None if stored is None else stored.value

    def add(self, value: T) -> None:
        if value is None:
            raise refusal(self._name, "None cannot be added to a reducing state")
        self._clean_up()
        self._stored.add(self.lifetime.stamped(value))

    def _renew(self, stored: TtlValue[T]) -> None:
        # Reducing with itself would change it, so it is put in anew.
        self._stored.clear()
        self._stored.add(self.lifetime.stamped(stored.value))


class TtlAggregatingState(_TtlFoldingState, InternalAggregatingState[I, O]):
    """See the module."""

    __slots__ = ("_function",)

    def __init__(self, stored: Any, lifetime: Lifetime, name: str, function: AggregateFunction[I, Any, O]) -> None:
        super().__init__(stored, lifetime, name)
        self._function = function

    def get(self) -> O | None:
        stored = self._visible()
        if stored is None:
            return None
        try:
            return self._function.get_result(stored.value)
        except Exception as error:
            note_function(error, self._name, "get_result() of the aggregate function")
            raise

    def add(self, value: I) -> None:
        if value is None:
            raise refusal(self._name, "None cannot be added to an aggregating state")
        self._clean_up()
        self._stored.add(value)

    def _renew(self, stored: TtlValue[Any]) -> None:
        self._stored.add(_TOUCH)
