"""State that gets or loses a time-to-live at a restore: its compatibility result and its migration.

With and without the time of the last access, a value has two different types in the serializers' snapshots. But every
value can be rewritten. So the compatibility result is resolved for the values without times
(`TimeToLiveChange.values_before`, `values_after`), and then translated to the stored form. The plan of the migration
adds or removes the time around the plan of the values (`RowPlan`).

Values that get a time-to-live count as accessed now. Values that lose it stay for good, expired or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from snapshots.compatibility import AS_IS, CompatibilityIssue, CompatibilityKind, PartsPlan, Plan
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.state.state_kind import StateKind
from typeserializers.containers.ttl import TtlSerializer, TtlSerializerSnapshot
from typeserializers.evolution.plans import BecameOptionalPlan, NeverNullPlan, TimestampPlan, TimestampRemovalPlan
from typeserializers.evolution.ttl_awareness import TTL_DISABLED, TTL_ENABLED
from typeserializers.kernel.type_serializer import TypeSerializer

Serializers = Mapping[str, TypeSerializer[Any]]
Snapshots = Mapping[str, TypeSerializerSnapshot[Any]]


@frozen
class TimeToLiveChange:
    """Whether state of a kind had a time-to-live, and whether it has one now."""

    kind: StateKind
    had: bool
    has: bool

    @classmethod
    def between(cls, kind: StateKind, old: Snapshots, has_time_to_live: bool) -> TimeToLiveChange:
        """The change from the restored snapshots, by role."""
        return cls(kind, isinstance(old[kind.timed_role], TtlSerializerSnapshot), has_time_to_live)

    def values_before(self, old: Snapshots) -> Snapshots:
        """The snapshots by role, of the values without access times."""
        if not (self.had or self.has):
            return old
        role = self.kind.timed_role
        return {**old, role: self.kind.expiring_part_snapshot(old[role])}

    def values_after(self, serializers: Serializers) -> Serializers:
        """The user's serializers by role, in the form that `values_before` is compared with."""
        if not (self.had or self.has):
            return serializers
        role = self.kind.timed_role
        return {**serializers, role: self.kind.expiring_part(serializers[role])}

    def of_stored_form(
        self,
        compatibility: CompatibilityKind,
        issues: tuple[CompatibilityIssue, ...],
        compared: Serializers,
        given: Serializers,
    ) -> tuple[CompatibilityKind, tuple[CompatibilityIssue, ...], Serializers]:
        """Translate compatibility result and serializers from values to the stored form; ``given`` are the user's."""
        if not (self.had or self.has):
            return compatibility, issues, compared
        role, serializers = self.kind.timed_role, dict(compared)
        if self.has != self.had:
            # Everything is rewritten, so no serializer needs the old form.
            serializers[role] = self.kind.expiring_part(given[role]) if self.has else given[role]
            if compatibility is not CompatibilityKind.INCOMPATIBLE:
                compatibility = CompatibilityKind.AFTER_MIGRATION
                issues = (TTL_ENABLED if self.has else TTL_DISABLED, *issues)
        if self.has:
            serializers[role] = TtlSerializer(serializers[role])
        return compatibility, issues, serializers

    def row_plan(self, values: Plan, old: Snapshots, given: Serializers) -> RowPlan:
        """The plan of a migration, from the plan for the values; ``given`` are the user's serializers."""
        role = self.kind.timed_role
        if not (self.had or self.has):
            values = self.kind.expiring_part_plan(values, old[role], given[role])
        return RowPlan(self, values)


@frozen
class RowPlan:
    """The migration of a state's rows: the plan of the expiring part, and the change of its time-to-live."""

    change: TimeToLiveChange
    part: Plan

    def at(self, now_ms: int) -> Plan:
        """The plan from the old storage serializer to the new one, for a migration at this time.

        Values that get a time-to-live count as accessed at ``now_ms``.
        """
        kind, had, has, plan = self.change.kind, self.change.had, self.change.has, self.part
        # A flag before the time marks a null entry. With a time-to-live the entry is never null.
        is_flagged = kind.timestamp_offset > 0
        if had and has:
            timed = PartsPlan((AS_IS, plan))
            plan = PartsPlan((timed,)) if is_flagged else timed
        elif has:
            stamped = TimestampPlan(plan, now_ms)
            plan = BecameOptionalPlan(stamped) if is_flagged else stamped
        elif had:
            plan = NeverNullPlan(TimestampRemovalPlan(plan)) if is_flagged else TimestampRemovalPlan(plan)
        return kind.row_plan(plan)
