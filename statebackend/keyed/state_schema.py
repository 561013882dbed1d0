"""What a state is just now, which its table is told: as it was restored, or under what it is registered.

Registering a state is not the same moment as having brought its entries to the new schema: until a store has done so
(`StateStore.take_over`, `StateStore.rewrite`), its table keeps the schema that its entries are in.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from attrs import evolve, frozen

from statebackend.api.clock import Clock
from statebackend.api.time_to_live import StateTtlConfig
from statebackend.keyed.state_meta import StateMeta
from statebackend.kinds.state_kind import RowFilter, StateKind
from statebackend.ttl.expiry import Expiry
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.type_serializer import TypeSerializer

NAMESPACE_ROLE: Final = "namespace"
"""The role of the serializer of namespaces, beside those of a descriptor."""


@frozen(eq=False)
class StateSchema:
    """One state: ``serializers`` are by role, with that of the namespaces; none while nobody has registered it.

    ``expiry`` is that of a registered state with a time-to-live. ``is_released`` says that the serializers are those of
    an epoch that is over: they tell the form that entries are held in, and ``meta`` alone what the state is.
    """

    meta: StateMeta
    serializers: Mapping[str, TypeSerializer[Any]] = MappingProxyType({})
    expiry: Expiry | None = None
    is_released: bool = False

    def meta_now(self) -> StateMeta:
        """What the state is after all that its serializers have written: they may learn while they write."""
        is_written = self.serializers and not self.is_released
        return self.meta.as_written_by(self.serializers) if is_written else self.meta

    def expired_filter(self) -> RowFilter | None:
        """A filter of what has expired by now, or None."""
        return None if self.expiry is None else self.expiry.filter_now()

    def snapshot_filter(self) -> RowFilter | None:
        """What is left out, as of now, where the state is written whole; None for nothing.

        To be called in the synchronous part of a snapshot, once per snapshot.
        """
        return self.expired_filter() if self.expiry is not None and self.expiry.config.cleanup_full_snapshot else None

    def expiring(self, ttl: StateTtlConfig, clock: Clock) -> StateSchema:
        """The same with a time-to-live that is known though nobody registers it, if its entries have their times."""
        kind = self.meta.kind
        if not isinstance(kind, StateKind):
            return self
        serializer = self.meta.role_snapshots[kind.timed_role].restore_serializer()
        if not isinstance(serializer, TtlSerializer):
            return self
        return evolve(self, expiry=Expiry(kind, serializer, ttl, clock))

    def unregistered(self) -> StateSchema:
        """The same of a state that nobody has registered yet in another epoch; what wrote its entries is remembered."""
        return evolve(self, meta=self.meta_now(), expiry=None, is_released=True)
