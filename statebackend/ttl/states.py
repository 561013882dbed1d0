"""The handles of value, list and map state with time-to-live, over the handles of any backend.

The state beneath holds `TtlValue`s (see `statebackend.ttl.stored_form`) and knows nothing of time: it checks, copies,
caches and stores them as it does all values, so that what holds for state without time-to-live holds here. A handle
adds the time on the way in, and on the way out looks whether it is over; what has expired is removed as soon as it is
met, and then either not returned, or, if it may be seen until it is removed, returned for this last time.

Each list element and each map entry has a time of its own; a list is rewritten without its expired elements. Merging
namespaces moves elements with the times they have.

``cleanup``, called at the beginning of every access, is the incremental clean-up of the state, or None.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from statebackend.api.descriptors import ValueStateDescriptor
from statebackend.api.errors import null_element
from statebackend.keyed.key_context import AnyKeyContext
from statebackend.kinds.internal_states import (
    InternalListState,
    InternalMapState,
    InternalState,
    InternalValueState,
    fold_namespaces,
)
from statebackend.ttl.lifetime import Lifetime
from typeserializers.containers.ttl import TtlValue

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


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
    def key_context(self) -> AnyKeyContext:
        context: AnyKeyContext = self._stored.key_context
        return context

    @abstractmethod
    def remove_expired(self) -> None:
        """Removes what has expired under the current key and namespace; renews nothing."""

    def clear(self) -> None:
        self._clean_up()
        self._stored.clear()

    def _clean_up(self) -> None:
        if self.cleanup is not None:
            self.cleanup()


class TtlValueState(TtlState, InternalValueState[T]):
    """A value expires whole; then the default applies."""

    __slots__ = ("_clock", "_default", "_encoded_default", "_read_default", "_ttl_ms")

    def __init__(
        self, stored: InternalValueState[TtlValue[T]], lifetime: Lifetime, descriptor: ValueStateDescriptor[T]
    ) -> None:
        super().__init__(stored, lifetime)
        self._clock, self._ttl_ms = lifetime.clock, lifetime.ttl_ms
        serializer = descriptor.serializer
        self._default = descriptor.default
        self._encoded_default: bytes | None = None
        if descriptor.default is not None and not serializer.is_immutable_type:
            # A caller owns what it is given, so each gets a copy.
            self._encoded_default = serializer.to_bytes(descriptor.default)
        self._read_default = serializer.from_bytes

    def value(self) -> T | None:
        now_ms = self._clock()
        cleanup = self.cleanup
        if cleanup is not None and cleanup.due_ms <= now_ms:
            cleanup()
        stored: TtlValue[T] | None = self._stored.value()
        if stored is None:
            return self._default_value()
        if stored.last_access_timestamp + self._ttl_ms <= now_ms:
            self._stored.clear()
            return stored.value if self.lifetime.returns_expired else self._default_value()
        if self.lifetime.renews_on_read and stored.last_access_timestamp < now_ms:
            self._stored.update(TtlValue(stored.value, now_ms))
        return stored.value

    def update(self, value: T | None) -> None:
        now_ms = self._clock()
        cleanup = self.cleanup
        if cleanup is not None and cleanup.due_ms <= now_ms:
            cleanup()
        if value is None:
            self._stored.clear()
        else:
            self._stored.update(TtlValue(value, now_ms))

    def remove_expired(self) -> None:
        stored: TtlValue[T] | None = self._stored.value()
        if stored is not None and self.lifetime.is_expired(stored):
            self._stored.clear()

    def _default_value(self) -> T | None:
        return self._default if self._encoded_default is None else self._read_default(self._encoded_default)


class TtlListState(TtlState, InternalListState[T]):
    """Each element expires by itself."""

    __slots__ = ("_name",)

    def __init__(self, stored: InternalListState[TtlValue[T]], lifetime: Lifetime, name: str) -> None:
        super().__init__(stored, lifetime)
        self._name = name

    def get(self) -> list[T]:
        self._clean_up()
        lifetime = self.lifetime
        stored = self._stored.get()
        fresh = self._fresh(stored)
        now_ms = lifetime.clock()
        if fresh and lifetime.renews_on_read and any(element.last_access_timestamp < now_ms for element in fresh):
            self._stored.update(
                [TtlValue(element.value, max(now_ms, element.last_access_timestamp)) for element in fresh]
            )
        elif len(fresh) < len(stored):
            self._stored.update(fresh)
        return [element.value for element in (stored if lifetime.returns_expired else fresh)]

    def add(self, element: T) -> None:
        self.add_all((element,))

    def add_all(self, elements: Iterable[T]) -> None:
        self._clean_up()
        self._stored.add_all(self._stamped(elements))

    def update(self, elements: Iterable[T]) -> None:
        self._clean_up()
        self._stored.update(self._stamped(elements))

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        self._clean_up()
        # What expired in a source is removed when the source is read.
        fold_namespaces(self, target, sources, self._fresh_or_none, self._add_stored)

    def remove_expired(self) -> None:
        stored = self._stored.get()
        fresh = self._fresh(stored)
        if len(fresh) < len(stored):
            self._stored.update(fresh)

    def _fresh(self, stored: list[TtlValue[T]]) -> list[TtlValue[T]]:
        last_expired_ms = self.lifetime.clock() - self.lifetime.ttl_ms
        return [element for element in stored if element.last_access_timestamp > last_expired_ms]

    def _fresh_or_none(self) -> list[TtlValue[T]] | None:
        self.remove_expired()
        return self._stored.get() or None

    def _add_stored(self, lists: list[list[TtlValue[T]]]) -> None:
        self.remove_expired()
        self._stored.add_all([element for elements in lists for element in elements])

    def _stamped(self, elements: Iterable[T]) -> list[TtlValue[T]]:
        now_ms = self.lifetime.clock()
        stamped = [TtlValue(element, now_ms) for element in elements]
        for position, element in enumerate(stamped):
            if element.value is None:
                raise null_element(f"state {self._name!r}", position)
        return stamped


class TtlMapState(TtlState, InternalMapState[K, V]):
    """Each entry expires by itself, one whose value is null too."""

    __slots__ = ()

    def get(self, key: K) -> V | None:
        stored = self._visible(key)
        return None if stored is None else stored.value

    def contains(self, key: K) -> bool:
        return self._visible(key) is not None

    def put(self, key: K, value: V | None) -> None:
        self._clean_up()
        self._stored.put(key, self.lifetime.stamped(value))

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        self._clean_up()
        now_ms = self.lifetime.clock()
        self._stored.put_all({key: TtlValue(value, now_ms) for key, value in entries.items()})

    def remove(self, key: K) -> None:
        self._clean_up()
        self._stored.remove(key)

    def items(self) -> Iterator[tuple[K, V | None]]:
        self._clean_up()
        context = self.key_context
        return self._visible_items((context.key, context.key_group), self._stored.items())

    def is_empty(self) -> bool:
        self._clean_up()
        is_visible = self.lifetime.is_visible
        for key, stored in self._stored.items():
            if is_visible(stored):
                return False
            self._stored.remove(key)
        return True

    def remove_expired(self) -> None:
        is_expired = self.lifetime.is_expired
        for key, stored in self._stored.items():
            if is_expired(stored):
                self._stored.remove(key)

    def _visible(self, key: K) -> TtlValue[V | None] | None:
        self._clean_up()
        stored: TtlValue[V | None] | None = self._stored.get(key)
        return None if stored is None else self._accessed(key, stored)

    def _visible_items(
        self, begun_at: tuple[Any, int], items: Iterator[tuple[K, TtlValue[V | None]]]
    ) -> Iterator[tuple[K, V | None]]:
        context, lifetime = self.key_context, self.lifetime
        for key, stored in items:
            if (context.key, context.key_group) == begun_at:
                visible = self._accessed(key, stored)
            else:
                # Another key has become current, whose map must not be touched.
                visible = stored if lifetime.is_visible(stored) else None
            if visible is not None:
                yield key, visible.value

    def _accessed(self, key: K, stored: TtlValue[V | None]) -> TtlValue[V | None] | None:
        """The entry if it may be seen; removes it if its time is over, renews it if reading does so."""
        lifetime = self.lifetime
        now_ms = lifetime.clock()
        if stored.last_access_timestamp + lifetime.ttl_ms <= now_ms:
            self._stored.remove(key)
            return stored if lifetime.returns_expired else None
        if lifetime.renews_on_read and stored.last_access_timestamp < now_ms:
            self._stored.put(key, TtlValue(stored.value, now_ms))
        return stored
