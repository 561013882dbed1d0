"""State with time-to-live on any backend: handles that look at the times, clean-up, and what snapshots leave out."""

from __future__ import annotations

import bisect
import functools
import itertools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from snapshots.errors import SerializationError
from statebackend.api.descriptors import StateDescriptor
from statebackend.api.time_to_live import LONGEST_TTL_MS, StateTtlConfig
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters
from statebackend.keyed.key_enumeration import Address, KeyEnumeration
from statebackend.keyed.schema_resolution import StateVerdict
from statebackend.keyed.state_meta import StateMeta
from statebackend.kinds.internal_states import InternalState
from statebackend.ttl.expiry_sweep import ExpirySweep, Pass, Place
from statebackend.ttl.registration import TtlRegistration
from statebackend.ttl.row_filter import RowFilter, expired_row_filter
from statebackend.ttl.states import TtlState
from statebackend.ttl.stored_form import TIMED_ROLES
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VoidNamespaceSerializer


class ExpiringStates(KeyEnumeration):
    """What a backend knows of the time-to-live of its states."""

    def __init__(self, parameters: KeyedStateBackendParameters) -> None:
        super().__init__(parameters)
        self._key_is_its_own_entry_key = parameters.key_serializer.equal_values_have_equal_bytes
        self._ttl_by_state: dict[str, StateTtlConfig | None] = {}
        self._record_sweeps: dict[str, Callable[[], None]] = {}

    @abstractmethod
    def create_state(
        self,
        descriptor: StateDescriptor,
        namespace_serializer: TypeSerializer[Any],
        restored: StateMeta | None,
        verdict: StateVerdict | None,
    ) -> tuple[InternalState, int]:
        """Makes the handle, migrating what was restored if the verdict says so; returns it and the entries migrated.

        The handle sees the current key through `key_context_for`.
        """

    def create_with_ttl(
        self,
        descriptor: StateDescriptor,
        namespace_serializer: TypeSerializer[Any],
        restored: StateMeta | None,
        verdict: StateVerdict | None,
    ) -> tuple[Any, int]:
        """Any backend's state of the stored form, under a handle that looks at the times."""
        serializers = None if verdict is None else verdict.serializers
        registration = TtlRegistration(descriptor, serializers, self.parameters.clock)
        stored, entries = self.create_state(registration.stored_descriptor, namespace_serializer, restored, verdict)
        handle = registration.handle(stored)
        self.declare_ttl(descriptor.name, descriptor.ttl)
        self._begin_cleanup(descriptor, handle)
        return handle, entries

    def _begin_cleanup(self, descriptor: StateDescriptor, handle: TtlState) -> None:
        cleanup = None if descriptor.ttl is None else descriptor.ttl.incremental_cleanup
        if cleanup is None:
            return
        begin_pass = functools.partial(self.cleanup_pass, descriptor.name)
        handle.cleanup = ExpirySweep(self.context, handle, begin_pass, cleanup.entries_per_access)
        if cleanup.for_every_record:
            self._record_sweeps[descriptor.name] = handle.cleanup

    def declare_ttl(self, name: str, ttl: StateTtlConfig | None) -> None:
        """Says how long the entries of a state live, which snapshots must know though nobody registers it."""
        self._ttl_by_state[name] = ttl

    def ttl_ms(self, name: str) -> int:
        """How long the entries of a state live, in milliseconds; for ever if it has no time-to-live."""
        ttl = self._ttl_by_state.get(name)
        return LONGEST_TTL_MS if ttl is None else ttl.ttl_ms

    def row_filter(self, name: str) -> RowFilter | None:
        """What a snapshot that writes the state whole leaves out as of now; None for nothing.

        To be called in the synchronous part of a snapshot, once per snapshot and state.
        """
        ttl = self._ttl_by_state.get(name)
        filters = self.expired_filters(name) if ttl is not None and ttl.cleanup_full_snapshot else None
        return None if filters is None else filters()

    def expired_filters(self, name: str) -> Callable[[], RowFilter] | None:
        """Makes filters of what has expired, each as of when it is made; None for a state without time-to-live."""
        ttl, meta = self._ttl_by_state.get(name), self.state_meta(name)
        if ttl is None or meta is None:
            return None
        serializer = meta.role_snapshots[TIMED_ROLES[meta.kind]].restore_serializer()
        if not isinstance(serializer, TtlSerializer):
            return None
        kind, ttl_ms, clock = meta.kind, ttl.ttl_ms, self.parameters.clock
        return lambda: expired_row_filter(kind, serializer, ttl_ms, clock())

    def cleanup_pass(self, name: str) -> Pass:
        """One pass of the incremental clean-up over a state (`statebackend.ttl.expiry_sweep`), from the current key on.

        It must be cheap to begin and to go on with, and bear whatever happens to the state meanwhile. This one lists
        all addresses when it begins; a backend that can do better overrides it.
        """
        addresses = list(self.stored_addresses(name))
        start = bisect.bisect_left(addresses, (self.context.key_group, self.current_key_bytes(), b""))
        place_of = self.place_decoder(name)
        return (place_of(address) for address in itertools.chain(addresses[start:], addresses[:start]))

    def place_decoder(self, name: str) -> Callable[[Address], Place]:
        """From the address of an entry to key group, key and namespace as the contexts of handles hold them."""
        namespaces = self.stored_namespace_serializer(name)
        assert namespaces is not None
        read_key = self.key_serializer.from_bytes if self._key_is_its_own_entry_key else _itself
        keeps_namespace = isinstance(namespaces, VoidNamespaceSerializer) or namespaces.equal_values_have_equal_bytes
        read_namespace = namespaces.from_bytes if keeps_namespace else _itself
        return lambda address: (address[0], read_key(address[1]), read_namespace(address[2]))

    def current_key_bytes(self) -> bytes:
        """The bytes of the current key; empty if there is none, or none that fits."""
        key = self.context.key
        if not self._key_is_its_own_entry_key:
            return key if isinstance(key, bytes) else b""
        try:
            return self.key_serializer.to_bytes(key)
        except SerializationError:
            return b""


def _itself(data: bytes) -> bytes:
    return data
