"""State handles as operators use them: with a current namespace, namespaces that can be merged, and a time-to-live.

A user's function sees the interfaces of `statebackend.state.states`. A window operator stores its panes in namespaces:
it sets them one after the other, and merges them when sessions merge. The names are Flink's. The internal handle of
each kind is in the file of the kind.

With a time-to-live the state below holds `TtlValue`s and does not know about time: it checks, copies, caches and stores
them like any value. The handle adds the time on a write, and checks it on a read. It removes an expired entry when it
meets it. Then it hides the entry, or returns it this last time, if the configuration allows that.

An entry expires ``ttl_ms`` after its last access; it is already expired in that millisecond. Python's integers do not
overflow, so the longest time-to-live never ends. If the clock goes backwards, entries live longer: a read never sets
the last access to an earlier time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from statebackend.state.clock import Clock
from statebackend.state.key_batch import KeyBatch
from statebackend.state.states import State
from statebackend.state.ttl_config import StateTtlConfig, TtlStateVisibility, TtlUpdateType
from typeserializers.containers.ttl import TtlValue

C = TypeVar("C")


class HandleContext(Protocol):
    """What a handle sees of the current key and namespace, as what stands for them in caches."""

    @property
    def key(self) -> Any:
        """What stands for the key, and for the namespace too in a state that has some."""

    @property
    def key_group(self) -> int:
        """The key group of the key."""

    @property
    def namespace(self) -> Any:
        """What stands for the current namespace."""

    def entry_key(self, key: Any) -> Any:
        """What stands for a key that stands for itself, in the current namespace."""

    def entry_namespace(self, namespace: Any) -> Any:
        """What stands for a namespace; raises `SerializationError` for one that does not fit."""

    def enter(self, entry_namespace: Any) -> None:
        """Makes a namespace current, given what stands for it."""


class InternalState(State):
    """A handle that has a current namespace; every access is to the current key and that namespace."""

    __slots__ = ()

    @property
    @abstractmethod
    def key_context(self) -> HandleContext:
        """The current key and namespace of this handle."""

    def set_current_namespace(self, namespace: Any) -> None:
        """Makes a namespace current, for this handle alone and until the next call, whatever the key.

        Raises `SerializationError`, changing nothing, if it is None or does not fit the namespace serializer.
        """
        context = self.key_context
        context.enter(context.entry_namespace(namespace))

    def read_ahead(self, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        """A hint: the entries of these keys in the current namespace are what is accessed next.

        A store that reads many entries at once in less time than one by one does so; nothing else can be seen of it.
        """


class MergingState(InternalState):
    """A kind of state whose namespaces can be merged."""

    __slots__ = ()

    @abstractmethod
    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Folds the sources, in their order, into the target of the current key, and deletes them.

        Sources without content, and the target among the sources, change nothing. The current namespace stays what it
        was. Raises `SerializationError` for a namespace that is None or does not fit; if that or the folding fails,
        nothing has changed.
        """


class FoldingState(MergingState, Generic[C]):
    """A kind of state that folds what is added into one value; that value itself, for who folds many at once."""

    __slots__ = ()

    @abstractmethod
    def get_internal(self) -> C | None:
        """What was folded so far, as it is stored; None if nothing was. It is the caller's own."""

    @abstractmethod
    def update_internal(self, folded: C) -> None:
        """Puts another in its place; raises `SerializationError`, changing nothing, for None and for what does not fit.

        It is the state's own from here on, as with `ValueState.update`.
        """

    def get_internal_many(self, keys: KeyBatch) -> list[C | None]:
        """Return what is folded for each key, as `get_internal` does. Afterwards any key may be current."""
        self.read_ahead(keys.keys, keys.key_groups)
        return [self.get_internal() for _ in keys.each()]

    def update_internal_many(self, keys: KeyBatch, folded: Sequence[C | None]) -> None:
        """Set what is folded for each key, as `update_internal` does. None clears."""
        for _, one in zip(keys.each(), folded, strict=True):
            if one is None:
                self.clear()
            else:
                self.update_internal(one)


def fold_namespaces(
    state: InternalState,
    target: Any,
    sources: Iterable[Any],
    read: Callable[[], C | None],
    fold: Callable[[list[C]], None],
) -> None:
    """Implements `MergingState.merge_namespaces`.

    ``read()`` gives the content of the current namespace or None, ``fold(contents)`` folds contents into it. All is
    read and folded before anything is deleted.
    """
    context = state.key_context
    target_form = context.entry_namespace(target)
    forms = dict.fromkeys(context.entry_namespace(source) for source in sources)
    forms.pop(target_form, None)
    current = context.namespace
    try:
        contents: list[C] = []
        filled: list[Any] = []
        for form in forms:
            context.enter(form)
            content = read()
            if content is not None:
                contents.append(content)
                filled.append(form)
        if not filled:
            return
        context.enter(target_form)
        fold(contents)
        for form in filled:
            context.enter(form)
            state.clear()
    finally:
        context.enter(current)


T = TypeVar("T")


class Lifetime:
    """How long the entries of one state live, by which clock."""

    __slots__ = ("cleanup", "clock", "renews_on_read", "returns_expired", "ttl_ms")

    def __init__(self, config: StateTtlConfig, clock: Clock) -> None:
        self.clock = clock
        self.cleanup = config.incremental_cleanup
        self.ttl_ms = config.ttl_ms
        self.renews_on_read = config.update_type is TtlUpdateType.ON_READ_AND_WRITE
        self.returns_expired = config.visibility is TtlStateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP

    def stamped(self, value: T) -> TtlValue[T]:
        """The value as accessed now."""
        return TtlValue(value, self.clock())

    def is_expired(self, stored: TtlValue[Any]) -> bool:
        """Whether the time of an entry is over."""
        return stored.last_access_timestamp + self.ttl_ms <= self.clock()

    def is_visible(self, stored: TtlValue[Any]) -> bool:
        """Whether an entry that is still there may be seen."""
        return self.returns_expired or not self.is_expired(stored)


class Cleanup(Protocol):
    """The incremental clean-up; a call before ``due_ms`` would do nothing."""

    due_ms: int

    def __call__(self) -> None: ...


class TtlState(InternalState):
    """What all kinds share: the state beneath, and the clean-up."""

    __slots__ = ("_stored", "cleanup", "lifetime")

    def __init__(self, stored: Any, lifetime: Lifetime) -> None:
        self._stored: Any = stored
        self.lifetime = lifetime
        self.cleanup: Cleanup | None = None

    @property
    def key_context(self) -> HandleContext:
        context: HandleContext = self._stored.key_context
        return context

    @abstractmethod
    def remove_expired(self) -> None:
        """Removes what has expired under the current key and namespace; renews nothing."""

    def read_ahead(self, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        self._stored.read_ahead(keys, key_groups)

    def clear(self) -> None:
        self._clean_up()
        self._stored.clear()

    def _clean_up(self) -> None:
        if self.cleanup is not None:
            self.cleanup()
