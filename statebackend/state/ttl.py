"""Removes expired entries: the incremental clean-up, and the row filter of savepoints and base files.

Each access visits a few further entries, of any key, and removes the expired ones. A read of an entry that was written
at the same time may skip this, since its write did it. A sweep goes over the state in *passes*, which the store lays
out as a sequence of places (`StateTable.cleanup_pass`). A place may be out of date when it is visited. So a visit goes
through the state's handle, which sees the current entry, if there is one. A removal is an ordinary write of the current
epoch, also while a snapshot is being written.

After a pass the sweep rests until a quarter of the time-to-live has passed since the pass started. So an entry is
visited about four times in its life, and an expired entry stays for a quarter longer, plus the time of a pass. If the
clock goes backwards, the sweep rests longer by the same time.

A pass starts near the current key. A backend may live for only one epoch, so passes with a fixed start would never
visit more than one epoch covers.

A row filter drops expired entries when a state is written whole. It works on the canonical bytes of a row's value
(`statebackend.state.canonical`), so it is the same for every store. It is immutable and made for one snapshot, with the
start time of the snapshot. The kind of the state defines where in a row the time is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol, TypeVar

from attrs import frozen

from statebackend.state.canonical import Address, CanonicalBatch
from statebackend.state.clock import Clock
from statebackend.state.errors import StateRestoreError
from statebackend.state.internal_states import TtlState
from statebackend.state.state_kind import RowFilter, StateKind
from statebackend.state.ttl_config import StateTtlConfig
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.stepping_over import stepping_over

AnyRow = TypeVar("AnyRow", bound=tuple[Any, ...])


def expired_row_filter(kind: StateKind, serializer: TtlSerializer[Any], ttl_ms: int, now_ms: int) -> RowFilter:
    """The filter of rows that have expired at ``now_ms``; ``serializer`` is that of values, elements or accumulators.

    It raises `StateRestoreError` for bytes that cannot be such a value.
    """
    expires = kind.expired_rows(serializer, now_ms - ttl_ms)

    def row_filter(value: bytes) -> bytes | None:
        try:
            return expires(value)
        except Exception as error:
            raise StateRestoreError(f"a stored value cannot be read by {serializer!r}: {error}") from error

    return row_filter


def kept_rows(row_filter: RowFilter | None, rows: Iterable[AnyRow]) -> Iterable[AnyRow]:
    """The rows to write: tuples of any length whose last item is the value."""
    return rows if row_filter is None else _kept_rows(row_filter, rows)


def _kept_rows(row_filter: RowFilter, rows: Iterable[AnyRow]) -> Iterator[AnyRow]:
    for row in rows:
        value = row_filter(row[-1])
        if value is row[-1]:
            yield row
        elif value is not None:
            changed: Any = (*row[:-1], value)
            yield changed


def kept_batches(row_filter: RowFilter | None, batches: Iterable[CanonicalBatch]) -> Iterable[CanonicalBatch]:
    """Like `kept_rows`, for batches of canonical rows; empty batches are dropped."""
    return batches if row_filter is None else _kept_batches(row_filter, batches)


def _kept_batches(row_filter: RowFilter, batches: Iterable[CanonicalBatch]) -> Iterator[CanonicalBatch]:
    for batch in batches:
        rows = list(_kept_rows(row_filter, zip(*batch, strict=True)))
        if rows:
            yield CanonicalBatch(*(list(column) for column in zip(*rows, strict=True)))


@frozen(eq=False)
class Expiry:
    """The time-to-live of a registered state; ``serializer`` is the one that the handle uses for the timed role."""

    kind: StateKind
    serializer: TtlSerializer[object]
    config: StateTtlConfig
    clock: Clock

    def filters(self) -> Callable[[], RowFilter]:
        """Return a function that makes filters of rows that have expired by then. They share nothing with the handle.

        Values are not decoded; only their ends are found.
        """
        restored = restored_with(self.serializer.snapshot_configuration(), self.serializer)
        assert isinstance(restored, TtlSerializer)
        serializer: TtlSerializer[object] = TtlSerializer(stepping_over(restored.value_serializer))
        kind, ttl_ms, clock = self.kind, self.config.ttl_ms, self.clock
        return lambda: expired_row_filter(kind, serializer, ttl_ms, clock())

    def filter_now(self) -> RowFilter:
        """A filter of rows that have expired by now."""
        return self.filters()()


PASSES_PER_LIFE: Final = 4
"""How many passes start within one time-to-live."""

ALWAYS_DUE: Final = -(1 << 64)

Place = tuple[int, Any, Any]
"""A key group, with key and namespace as entry keys."""

Pass = Iterator["Place | None"]
"""The places of a state; None for an entry that was checked already and has not expired."""


@frozen(eq=False)
class PassStart:
    """The start of a pass, and how to recognise expired entries.

    ``key_group`` and ``key`` (bytes) are the current ones; -1 and empty without a current key.
    """

    key_group: int
    key: bytes
    expiry: Expiry
    place_of: Callable[[Address], Place]


class CurrentKey(Protocol):
    """The entry key of the current key, and its key group."""

    key: Any
    key_group: int

    @property
    def has_key(self) -> bool:
        """Whether a key is current."""


class ExpirySweep:
    """The clean-up of one state. A call checks the next ``entries`` entries, and starts a pass if there is none.

    Before ``due_ms`` a call does nothing, so a hot path may skip it.
    """

    __slots__ = (
        "_begin_pass",
        "_clock",
        "_context",
        "_entries",
        "_places",
        "_rest_ms",
        "_started_ms",
        "_state",
        "due_ms",
    )

    def __init__(self, context: CurrentKey, state: TtlState, begin_pass: Callable[[], Pass], entries: int) -> None:
        lifetime = state.lifetime
        self._clock = lifetime.clock
        self._rest_ms = max(1, lifetime.ttl_ms // PASSES_PER_LIFE)
        self._context = context
        self._state = state
        self._begin_pass = begin_pass
        self._entries = entries
        self._places: Pass | None = None
        self._started_ms = 0
        self.due_ms = ALWAYS_DUE

    def __call__(self) -> None:
        context = self._context
        now_ms = self._clock()
        if now_ms < self.due_ms or not context.has_key:
            return
        places = self._places
        if places is None:
            self._started_ms = now_ms
            self.due_ms = ALWAYS_DUE
            places = self._places = self._begin_pass()
        found = list(itertools.islice(places, self._entries))
        if len(found) < self._entries:
            self._places = None
            self.due_ms = self._started_ms + self._rest_ms
        if any(found):
            self._visit(found)

    def _visit(self, places: list[Place | None]) -> None:
        """Remove expired entries at the places; afterwards restore the current key and namespace."""
        context, handle_context, remove_expired = self._context, self._state.key_context, self._state.remove_expired
        key, key_group, namespace = context.key, context.key_group, handle_context.namespace
        try:
            for place in places:
                if place is not None:
                    context.key_group, context.key, entry_namespace = place
                    handle_context.enter(entry_namespace)
                    remove_expired()
        finally:
            context.key, context.key_group = key, key_group
            handle_context.enter(namespace)
