"""The plan by which stored entries are migrated, also where a state gets a time-to-live or loses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snapshots.plans import AS_IS, PartsPlan, Plan
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, resolve_compatibility
from statebackend.api.descriptors import StateKind
from statebackend.ttl.stored_form import TIMED_ROLES, expiring_part, expiring_part_snapshot
from typeserializers.containers.ttl import TtlSerializer, TtlSerializerSnapshot
from typeserializers.evolution.evolution_plans import (
    BecameOptionalPlan,
    NeverNullPlan,
    TimestampPlan,
    TimestampRemovalPlan,
)
from typeserializers.kernel.type_serializer import TypeSerializer


def storage_plan(
    kind: StateKind,
    old: Mapping[str, TypeSerializerSnapshot[Any]],
    new: Mapping[str, TypeSerializer[Any]],
    now_ms: int,
) -> Plan:
    """From the storage serializer of the ``old`` snapshots to that of the ``new`` serializers, both by role.

    Values that get a time-to-live count as accessed at ``now_ms``; those that lose it stay, expired or not. The plan is
    that of the verdict on exactly these snapshots; raises `ValueError` if that is a refusal.
    """
    role = TIMED_ROLES.get(kind)
    if role is None:
        return AS_IS
    old_snapshot, new_serializer = old[role], new[role]
    had_ttl, has_ttl = isinstance(old_snapshot, TtlSerializerSnapshot), False
    part = expiring_part(kind, new_serializer)
    if isinstance(new_serializer, TtlSerializer):
        has_ttl, part = True, new_serializer.value_serializer
    value = resolve_compatibility(expiring_part_snapshot(kind, old_snapshot), part).plan
    is_map = kind is StateKind.MAP
    if had_ttl and has_ttl:
        timed = PartsPlan((AS_IS, value))
        value = PartsPlan((timed,)) if is_map else timed
    elif has_ttl:
        # A map flags its nulls before the time; with a time-to-live it has none there.
        stamped = TimestampPlan(value, now_ms)
        value = BecameOptionalPlan(stamped) if is_map else stamped
    elif had_ttl:
        value = NeverNullPlan(TimestampRemovalPlan(value)) if is_map else TimestampRemovalPlan(value)
    return PartsPlan((value,)) if kind is StateKind.LIST else value
