"""The states that were registered in one life of a backend, and what became of what was restored.

Registering goes in steps, each of which leaves everything as it was if it fails:

    registered   the verdict is taken, and what may not be taken over is refused; nothing has been touched
    migrated     the entries are in the schema of the descriptor (`Registrations.bring_to_schema`)
    opened       the handle is there

Today the second follows right upon the first, over the whole state. A lazy migration would open the handle over what is
registered, and leave it to the store when an entry is migrated; the record says by itself in which schema it is to be.
"""

from __future__ import annotations

import time
from typing import Any

from attrs import define

from snapshots.compatibility import CompatibilityKind
from snapshots.value_text import shown
from statebackend.api.descriptors import Descriptor
from statebackend.api.errors import StateMigrationException, StateRegistrationError
from statebackend.keyed.backend_parameters import StateRestoreReport
from statebackend.keyed.entry_migration import EntryMigration
from statebackend.keyed.state_meta import meta_of_descriptor
from statebackend.keyed.state_schema import NAMESPACE_ROLE, StateSchema
from statebackend.keyed.state_store import StateStore, StateTable
from statebackend.keyed.state_verdicts import RESTORED_AS_IT_WAS, StateVerdict, incompatibility_message, judge_state
from statebackend.kinds.state_kind import StateDescriptor
from statebackend.kinds.timed_states import Lifetime
from statebackend.ttl.expiry import Expiry
from typeserializers.kernel.type_serializer import TypeSerializer


@define(eq=False)
class Registration:
    """One registered state: ``descriptor`` and ``namespace_serializer`` as they were given, and what follows from them.

    ``verdict`` is that on what was restored, None for a new state. ``stored`` is what the store keeps: the descriptor
    with the serializers in use, or the one of the timed form. ``schema`` is what the entries are to be in, ``in_use``
    the user's descriptor for the handle, which is there once the state is opened.
    """

    descriptor: Any
    namespace_serializer: TypeSerializer[Any]
    verdict: StateVerdict | None
    stored: Any
    in_use: Any
    schema: StateSchema
    lifetime: Lifetime | None = None
    handle: Any = None


class Registrations:
    """See the module; ``reports`` tell of every restored state that was registered."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._registered: dict[str, Registration] = {}
        self.reports: list[StateRestoreReport] = []

    def handles(self) -> dict[str, Any]:
        """The handles by name."""
        return {name: registration.handle for name, registration in self._registered.items()}

    def find(self, descriptor: Descriptor, namespace_serializer: TypeSerializer[Any]) -> Registration | None:
        """What was registered under that name; raises `StateRegistrationError` if that was something else."""
        known = self._registered.get(descriptor.name)
        if known is None:
            return None
        if known.descriptor != descriptor or known.namespace_serializer != namespace_serializer:
            raise StateRegistrationError(
                f"state {descriptor.name!r} of operator {self._store.parameters.operator_uid!r} is registered twice, "
                f"with different descriptors or namespaces; give one of them another name"
            )
        return known

    def register(self, descriptor: Descriptor, namespace_serializer: Any) -> Registration:
        """The record of a state that is not registered; changes nothing.

        Raises `StateMigrationException` if what was restored under that name cannot be taken over.
        """
        uid = self._store.parameters.operator_uid
        if not isinstance(namespace_serializer, TypeSerializer):
            raise StateRegistrationError(
                f"state {descriptor.name!r} of operator {uid!r} needs a serializer of its namespaces, not "
                f"{shown(namespace_serializer)}"
            )
        restored, verdict = self._store.state_meta_now(descriptor.name), None
        if restored is not None:
            verdict = judge_state(restored, descriptor, namespace_serializer, self._store.parameters.rules)
            if verdict.kind is CompatibilityKind.INCOMPATIBLE:
                raise StateMigrationException(incompatibility_message(uid, [verdict], RESTORED_AS_IT_WAS))
        if isinstance(descriptor, StateDescriptor) and descriptor.ttl is not None:
            return self._with_time_to_live(descriptor, namespace_serializer, verdict)
        stored: Any = descriptor if verdict is None else descriptor.with_serializers(verdict.serializers)
        schema = self._schema(stored, namespace_serializer, verdict)
        return Registration(descriptor, namespace_serializer, verdict, stored, stored, schema)

    def bring_to_schema(self, registration: Registration) -> StateTable:
        """Brings the entries of a registered state, if there are any, to its schema; returns their table.

        Raises `StateMigrationException`, naming the entry and with nothing changed, for one that cannot be migrated.
        """
        store, schema, verdict = self._store, registration.schema, registration.verdict
        table = store.tables.get(schema.meta.name)
        if table is None or verdict is None:
            return store.create_table(schema)
        known: StateTable = table
        started, entries = time.monotonic(), 0
        if verdict.kind is CompatibilityKind.AFTER_MIGRATION:
            assert verdict.row_plan is not None, "only a queue has none, and the elements of a queue never migrate"
            migration = self._migration(known, registration, verdict)
            # Before the first entry: that a state is migrated is worth telling.
            migration.progress(0)
            entries = store.rewrite(known, schema, migration)
            migration.done()
        else:
            store.take_over(known, schema)
        self.reports.append(StateRestoreReport(known.name, verdict, entries, time.monotonic() - started))
        return known

    def open(self, registration: Registration, handle: Any) -> None:
        """Notes the handle, whose state counts as registered from then on."""
        registration.handle = handle
        self._registered[registration.descriptor.name] = registration

    def _with_time_to_live(
        self, descriptor: StateDescriptor, namespace_serializer: TypeSerializer[Any], verdict: StateVerdict | None
    ) -> Registration:
        kind, config, clock = descriptor.kind, descriptor.ttl, self._store.parameters.clock
        assert config is not None
        serializers = kind.timed_serializers(descriptor.serializers) if verdict is None else verdict.serializers
        in_use, lifetime = kind.descriptor_in_use(descriptor, serializers), Lifetime(config, clock)
        stored = kind.timed_descriptor(in_use, serializers, lifetime)
        timed: Any = serializers[kind.timed_role]
        schema = self._schema(stored, namespace_serializer, verdict, Expiry(kind, timed, config, clock))
        return Registration(descriptor, namespace_serializer, verdict, stored, in_use, schema, lifetime)

    def _schema(
        self,
        stored: Descriptor,
        namespace_serializer: TypeSerializer[Any],
        verdict: StateVerdict | None,
        expiry: Expiry | None = None,
    ) -> StateSchema:
        namespaces = namespace_serializer if verdict is None else verdict.serializers[NAMESPACE_ROLE]
        serializers = {**stored.serializers, NAMESPACE_ROLE: namespaces}
        return StateSchema(meta_of_descriptor(stored, namespaces), serializers, expiry)

    def _migration(self, table: StateTable, registration: Registration, verdict: StateVerdict) -> EntryMigration:
        parameters = self._store.parameters
        assert verdict.row_plan is not None
        keys = {role: (plan, verdict.serializers[role]) for role, plan in verdict.key_plans.items()}
        return EntryMigration(
            parameters.operator_uid,
            table.schema.meta_now(),
            registration.stored,
            verdict.row_plan,
            self._store.key_serializer,
            parameters.clock(),
            parameters.progress,
            parameters.conversions,
            keys,
        )
