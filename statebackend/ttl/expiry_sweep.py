"""The incremental clean-up: each access looks at a few further entries, of whatever keys, and removes the expired.

A sweep goes over the state in *passes*, one after the other, which a store lays out
(`StateTable.cleanup_pass`): it gives the places of entries one by one. A place may be out of date when it is
visited, because entries come and go meanwhile; so a visit goes through the state's handle, which sees what is there,
and the worst that can happen is that there is nothing. Removing is an ordinary write of the current epoch, whether a
snapshot is being written or not.

After a pass the sweep rests until a quarter of the time-to-live has gone by since that pass began. So an entry is
looked at some four times in its life, however often the state is accessed, and what has expired stays for a quarter
longer at most, beside the time that a pass takes. If the clock goes backwards, it rests for as much longer.

A pass begins near the current key. Where a backend lives for one epoch, a sweep that always began at the same place
would never get beyond what an epoch covers; begun where the epoch begins to work, it starts somewhere else each time.
Whatever it passes over is alive, and will either be accessed, so that a pass begins there, or expire, and be removed
by the next pass that comes along.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from attrs import frozen

from statebackend.canonical.canonical_entries import Address
from statebackend.kinds.timed_states import TtlState
from statebackend.ttl.expiry import Expiry

PASSES_PER_LIFE: Final = 4
"""How many passes are begun within one time-to-live."""

ALWAYS_DUE: Final = -(1 << 64)

Place = tuple[int, Any, Any]
"""A key group, and key and namespace as the contexts of handles hold them."""

Pass = Iterator["Place | None"]
"""The places of a state; None for an entry that has been looked at already and is alive."""


@frozen(eq=False)
class PassStart:
    """Where a pass begins, and what tells the expired from the living.

    ``key_group`` and ``key``, as bytes, are the current ones: -1 and nothing if there is no current key.
    """

    key_group: int
    key: bytes
    expiry: Expiry
    place_of: Callable[[Address], Place]


class CurrentKey(Protocol):
    """The key that is current, as what stands for it, and its key group."""

    key: Any
    key_group: int

    @property
    def has_key(self) -> bool:
        """Whether a key is current."""


class ExpirySweep:
    """The clean-up of one state; a call looks at the next ``entries`` entries, and begins a pass when there is none.

    Before ``due_ms`` a call does nothing, and a hot path may leave it out.
    """

    __slots__ = (
        "_begin_pass",
        "_begun_ms",
        "_clock",
        "_context",
        "_entries",
        "_places",
        "_rest_ms",
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
        self._begun_ms = 0
        self.due_ms = ALWAYS_DUE

    def __call__(self) -> None:
        context = self._context
        now_ms = self._clock()
        if now_ms < self.due_ms or not context.has_key:
            return
        places = self._places
        if places is None:
            self._begun_ms = now_ms
            self.due_ms = ALWAYS_DUE
            places = self._places = self._begin_pass()
        found = list(itertools.islice(places, self._entries))
        if len(found) < self._entries:
            self._places = None
            self.due_ms = self._begun_ms + self._rest_ms
        if any(found):
            self._visit(found)

    def _visit(self, places: list[Place | None]) -> None:
        """Removes what has expired at the places; key and namespace are afterwards what they were."""
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
