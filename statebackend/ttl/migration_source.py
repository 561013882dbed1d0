"""What a migration reads when state gets a time-to-live, or loses it: the old entries as the new kind has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from migration.ttl_conversion import StampedSerializer, UnstampedSerializer
from statebackend.api.descriptors import StateKind, storage_serializer
from statebackend.ttl.stored_form import TIMED_ROLES, expiring_part
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.type_serializer import TypeSerializer

_TIMESTAMP_BYTES: Final = 8

_NULL_FLAG_BYTES: Final = 1
"""Stands before the time in a map, whose stored values may be null; with a time-to-live they never are."""


def migrated_storage_serializer(
    kind: StateKind,
    old: Mapping[str, TypeSerializer[Any]],
    new: Mapping[str, TypeSerializer[Any]],
    now_ms: int,
) -> TypeSerializer[Any]:
    """The storage serializer that ``old`` had, by role, as one that `SchemaMigration` leads to that of ``new``.

    Values that get a time-to-live count as accessed at ``now_ms``; those that lose it stay, expired or not.
    """
    role = TIMED_ROLES[kind]
    had_ttl, has_ttl = isinstance(old[role], TtlSerializer), isinstance(new[role], TtlSerializer)
    if had_ttl == has_ttl:
        return storage_serializer(kind, old)
    entry = _stamped(kind, old[role], now_ms) if has_ttl else _unstamped(kind, old[role])
    return ListSerializer(entry) if kind is StateKind.LIST else entry


def _stamped(kind: StateKind, old: TypeSerializer[Any], now_ms: int) -> TypeSerializer[Any]:
    return StampedSerializer(expiring_part(kind, old), now_ms)


def _unstamped(kind: StateKind, old: Any) -> TypeSerializer[Any]:
    skipped = _TIMESTAMP_BYTES + (_NULL_FLAG_BYTES if kind is StateKind.MAP else 0)
    return UnstampedSerializer(old.value_serializer, skipped)
