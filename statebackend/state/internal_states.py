"""State handles as operators use them: with a current namespace, namespaces that can be merged, and a time-to-live.

A user's function sees the interfaces of `statebackend.state.states`. A window operator stores its panes in namespaces:
it sets them one after the other, and merges them when sessions merge. The names are Flink's. The internal handle of
each kind is in the file of the kind.

With a time-to-live the inner state holds pairs of a value and a time, and does not know about time: it checks, copies,
caches and stores them like any value. The handle adds the time on a write, and checks it on a read. A read removes an
expired entry, and then hides it, or returns it a last time if the configuration allows that.

An entry expires ``ttl_ms`` after its last access; it is already expired in that millisecond. Python's integers do not
overflow, so the longest time-to-live never ends. If the clock goes backwards, entries live longer: a read never sets
the last access to an earlier time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from statebackend.state.clock import Clock
from statebackend.state.key_batch import KeyBatch
from statebackend.state.states import State
from statebackend.state.ttl_config import StateTtlConfig, TtlStateVisibility, TtlUpdateType
from typeserializers.kernel.code_generation import GeneratedFunction

C = TypeVar("C")


class HandleContext(Protocol):
    """The current key and namespace as a handle uses them, in the form of entry keys."""

    @property
    def key(self) -> Any:
        """The entry key of the key, together with the namespace in a state that has namespaces."""

    @property
    def key_group(self) -> int:
        """The key group of the key."""

    @property
    def namespace(self) -> Any:
        """The entry key of the current namespace."""

    def entry_key(self, key: Any) -> Any:
        """The entry key of a key, given in its own form, in the current namespace."""

    def entry_namespace(self, namespace: Any) -> Any:
        """The entry key of a namespace; raises `SerializationError` for an invalid one."""

    def enter(self, entry_namespace: Any) -> None:
        """Make a namespace current, by its entry key."""


class InternalState(State):
    """A handle with a current namespace. Every access uses the current key and that namespace."""

    __slots__ = ()

    @property
    @abstractmethod
    def key_context(self) -> HandleContext:
        """The current key and namespace of this handle."""

    def set_current_namespace(self, namespace: Any) -> None:
        """Make a namespace current, for all keys, until the next call; other handles are not affected.

        Raises `SerializationError`, changing nothing, if it is None or the namespace serializer rejects it.
        """
        context = self.key_context
        context.enter(context.entry_namespace(namespace))

    exact_value: ClassVar[str | None] = None
    """The expression of what to keep of ``value`` with ``now_ms``, if the lines of `emit_write_stored` do not check."""

    @classmethod
    def emit_read_stored(cls, function: GeneratedFunction) -> list[str]:
        """Lines that set ``stored`` to what the current key has (of a map: the user key ``key``), or None.

        ``self`` is the handle. State with a time-to-live is made of these lines (`statebackend.state.timed_access`).
        """
        raise NotImplementedError(f"{cls.__name__} cannot have a time-to-live")

    @classmethod
    def emit_write_stored(cls, function: GeneratedFunction) -> list[str]:
        """Lines that replace the same by ``stored``, which is not None."""
        raise NotImplementedError(f"{cls.__name__} cannot have a time-to-live")

    def read_ahead(self, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        """Announce the keys whose entries in the current namespace are accessed next.

        This is a hint without visible effect: a store that reads many entries faster together reads them now.
        """


class MergingState(InternalState):
    """A kind of state whose namespaces can be merged."""

    __slots__ = ()

    @abstractmethod
    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Fold the sources, in order, into the target of the current key, and delete them.

        Sources without content, and the target among the sources, change nothing. The current namespace stays the same.
        Raises `SerializationError` for an invalid namespace or None. If this or the folding fails, nothing has changed.
        """


class FoldingState(MergingState, Generic[C]):
    """A kind of state that folds added values into one, with access to the folded value for bulk operations."""

    __slots__ = ()

    @abstractmethod
    def get_internal(self) -> C | None:
        """Return the folded value in its stored form, None if there is none. The caller owns it."""

    @abstractmethod
    def update_internal(self, folded: C) -> None:
        """Replace the folded value; raise `SerializationError`, changing nothing, for None or an invalid value.

        The state then owns it, as with `ValueState.update`.
        """

    def get_internal_many(self, keys: KeyBatch) -> list[C | None]:
        """Return the folded value of each key, as `get_internal` does. Afterwards any key may be current."""
        self.read_ahead(keys.keys, keys.key_groups)
        return [self.get_internal() for _ in keys.each()]

    def update_internal_many(self, keys: KeyBatch, folded: Sequence[C | None]) -> None:
        """Set the folded value of each key, as `update_internal` does. None clears."""
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
    """Implement `MergingState.merge_namespaces`.

    ``read()`` returns the content of the current namespace or None. ``fold(contents)`` folds contents into it. All
    sources are read and folded before anything is deleted.
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


Timed = tuple[T, int]
"""A value and the time of its last access: a `TtlValue`, or a plain tuple."""


class Lifetime:
    """The time-to-live of one state, and its clock."""

    __slots__ = ("cleanup", "clock", "renews_on_read", "returns_expired", "ttl_ms")

    def __init__(self, config: StateTtlConfig, clock: Clock) -> None:
        self.clock = clock
        self.cleanup = config.incremental_cleanup
        self.ttl_ms = config.ttl_ms
        self.renews_on_read = config.update_type is TtlUpdateType.ON_READ_AND_WRITE
        self.returns_expired = config.visibility is TtlStateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP

    def stamped(self, value: T) -> Timed[T]:
        """The value with the current time as its last access."""
        return value, self.clock()

    def is_expired(self, stored: Timed[Any]) -> bool:
        """Whether an entry has expired."""
        return stored[1] + self.ttl_ms <= self.clock()

    def is_visible(self, stored: Timed[Any]) -> bool:
        """Whether a read may return an entry that still exists."""
        return self.returns_expired or not self.is_expired(stored)


class Cleanup(Protocol):
    """The incremental clean-up; a call before ``due_ms`` would do nothing."""

    due_ms: int

    def __call__(self) -> None: ...


class TtlState(InternalState):
    """The common part of all kinds: the inner state, and the clean-up. The hot accessors are generated."""

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
        """Remove what has expired for the current key and namespace; renew nothing."""

    def read_ahead(self, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        self._stored.read_ahead(keys, key_groups)

    def clear(self) -> None:
        self._clean_up()
        self._stored.clear()

    def clean_up_with(self, cleanup: Cleanup) -> None:
        """Set the incremental clean-up."""
        self.cleanup = cleanup
        self.set_methods()

    @abstractmethod
    def set_methods(self) -> None:
        """Generate the accessors, with the clean-up if there is one."""

    def _clean_up(self) -> None:
        if self.cleanup is not None:
            self.cleanup()
