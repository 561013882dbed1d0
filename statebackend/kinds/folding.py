"""What reducing and aggregating state share: both fold into a value that any store's table of values keeps.

So they have its cache, its checks and its ownership of mutable values: a function may change the accumulator it is
given, which is its own. A fold is a read, the user's function, and an update; whatever fails, fails before the update.
An exception of the function goes on as it is, with a note (PEP 678) that names the state.

With a time-to-live the state beneath folds `TtlValue`s with functions that are wrapped around the user's: an operand
whose time is over counts as absent, and the result is accessed now, also when namespaces are merged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, TypeVar

from snapshots.errors import SerializationError, StateFormatError
from statebackend.api.errors import StateBackendError
from statebackend.kinds.timed_states import Lifetime, TtlState
from typeserializers.containers.ttl import TtlValue

T = TypeVar("T")


def folded(result: T | None, name: str, function: str) -> T:
    """What a user's function has folded; raises `SerializationError` if that is None."""
    if result is None:
        raise refusal(name, f"{function} returned None; it must return what it has folded")
    return result


def note_function(error: Exception, name: str, function: str) -> None:
    """Notes on an exception of a user's function which one it was; an error that names its state is left alone."""
    if isinstance(error, (StateFormatError, StateBackendError)):
        return
    # Python 3.10 has no add_note().
    error.__notes__ = [*getattr(error, "__notes__", ()), f"in {function} of state {name!r}"]  # type: ignore[attr-defined]


def refusal(name: str, problem: str) -> SerializationError:
    """The error for a value that a folding state does not take."""
    return SerializationError(f"state {name!r}", (problem,))


class TtlFoldingState(TtlState):
    """What both kinds share; the state beneath gives out its `TtlValue`."""

    __slots__ = ("name",)

    def __init__(self, stored: Any, lifetime: Lifetime, name: str) -> None:
        super().__init__(stored, lifetime)
        self.name = name

    def update_internal(self, folded: Any) -> None:
        if folded is None:
            raise refusal(self.name, "None cannot be what was folded")
        self._clean_up()
        self._stored.update_internal(self.lifetime.stamped(folded))

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        self._clean_up()
        self._stored.merge_namespaces(target, sources)

    def remove_expired(self) -> None:
        stored: TtlValue[Any] | None = self._stored.get()
        if stored is not None and self.lifetime.is_expired(stored):
            self._stored.clear()

    def visible(self) -> TtlValue[Any] | None:
        """What was folded, if it may be seen; removes it if its time is over."""
        self._clean_up()
        stored: TtlValue[Any] | None = self._stored.get()
        if stored is None:
            return None
        if self.lifetime.is_expired(stored):
            self._stored.clear()
            return stored if self.lifetime.returns_expired else None
        if self.lifetime.renews_on_read and stored.last_access_timestamp < self.lifetime.clock():
            self.renew(stored)
        return stored

    @abstractmethod
    def renew(self, stored: TtlValue[Any]) -> None:
        """Makes the time of what was folded that of this access."""
