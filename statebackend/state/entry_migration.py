"""The migration of one restored state, from the stored bytes to the bytes of its descriptor.

`StateStore.rewrite` runs it over all entries, right after the state is registered. The errors name the entry that
cannot be migrated. A store that migrates lazily would keep the migration with the entries in the old schema
(`statebackend.state.state_meta.SchemaPart`).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from migration.conversion import ConversionTable
from migration.conversion_table import CONVERSIONS
from migration.schema_migration import MigrationError, SchemaMigration
from snapshots.compatibility import Plan
from snapshots.errors import format_value
from statebackend.state.canonical import Address
from statebackend.state.descriptors import USER_KEY_ROLE
from statebackend.state.errors import StateMigrationException
from statebackend.state.key_context import has_namespaces
from statebackend.state.progress import Operation, ProgressListener, StateProgress
from statebackend.state.state_kind import StateDescriptor, TableForm
from statebackend.state.state_meta import NAMESPACE_ROLE, StateMeta
from statebackend.state.ttl_change import RowPlan
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer

EntryRow = tuple[int, bytes, bytes, Any, bytes]
"""Key group, key, namespace, user key (or what orders the rows of an address), value."""


class EntryMigration:
    """Converts the values of the rows of a state.

    ``stored`` is the descriptor of the stored form, and ``plan`` the plan of the compatibility result. ``now_ms`` is
    the time of the backend's clock: if the state gets a time-to-live, all entries count as accessed at this time.
    ``progress`` is called with the progress. ``conversions`` carry out the plan. ``keys`` holds plan and new serializer
    by role for namespaces and user keys that must be rewritten because some of them become equal.
    """

    def __init__(
        self,
        operator_uid: str,
        old: StateMeta,
        stored: StateDescriptor,
        plan: RowPlan,
        key_serializer: TypeSerializer[Any],
        now_ms: int,
        progress: ProgressListener,
        conversions: ConversionTable = CONVERSIONS,
        keys: Mapping[str, tuple[Plan, TypeSerializer[Any]]] = MappingProxyType({}),
    ) -> None:
        kind, serializers = stored.kind, stored.serializers
        known = serializers.values()
        old_serializers = {role: restored_with(snapshot, *known) for role, snapshot in old.role_snapshots.items()}
        self.conversion: SchemaMigration[Any] = SchemaMigration(
            kind.storage_serializer(old_serializers),
            kind.storage_serializer(serializers),
            plan.at(now_ms),
            conversions,
        )
        """Converts old bytes to new bytes, and to objects."""
        snapshots = {**old.role_snapshots, NAMESPACE_ROLE: old.namespace_snapshot}
        self._keys: dict[str, SchemaMigration[Any]] = {
            role: SchemaMigration(restored_with(snapshots[role], new), new, key_plan, conversions)
            for role, (key_plan, new) in keys.items()
        }
        self._operator_uid = operator_uid
        self._old = old
        self._key_serializer = key_serializer
        self._progress = StateProgress(progress, Operation.MIGRATION, operator_uid, old.name)

    def migrated(self, address: Address, user_key: bytes | None, value: bytes) -> bytes:
        """Return the migrated value of a row; raise `StateMigrationException` with the entry.

        ``address`` is key group, key and namespace. ``user_key`` is set for a map entry.
        """
        cause: Exception | None = None
        try:
            migrated, end = self.conversion.transcode(value, 0)
        except Exception as error:
            migrated, end, cause = b"", -1, error
        if end != len(value):
            raise self.failure(address, user_key, self.conversion.failure(value, cause)) from cause
        return migrated

    @property
    def rewrites_keys(self) -> bool:
        """Whether rows may get another namespace or user key, and so must pass through `with_new_keys`."""
        return bool(self._keys)

    def with_new_keys(self, rows: Iterable[EntryRow]) -> Iterator[EntryRow]:
        """Rewrite the namespaces and user keys of rows; rows are unchanged if these stay.

        Rows are key group, key, namespace, user key and value. They are sorted by the first four, which are unique. A
        state that is not a map may have another ordering value instead of the user key. The result has the same form.
        Memory holds the rows of one key. Raises `StateMigrationException`, naming both, if two user keys of a map or
        two namespaces of a key become equal.
        """
        if not self.rewrites_keys:
            yield from rows
            return
        is_map = self._old.form is TableForm.MAP
        for _, rows_of_key in itertools.groupby(rows, key=operator.itemgetter(0, 1)):
            moved: list[EntryRow] = []
            namespaces: dict[bytes, bytes] = {}
            user_keys: dict[tuple[bytes, Any], Any] = {}
            for key_group, key, namespace, part, value in rows_of_key:
                new_namespace = self._new_key(NAMESPACE_ROLE, namespace)
                new_part = self._new_key(USER_KEY_ROLE, part) if is_map else part
                first = namespaces.setdefault(new_namespace, namespace)
                if first != namespace:
                    raise self._collision((key_group, key, namespace), NAMESPACE_ROLE, first, namespace)
                first_part: Any = user_keys.setdefault((new_namespace, new_part), part) if is_map else part
                if first_part != part:
                    raise self._collision((key_group, key, namespace), USER_KEY_ROLE, first_part, part)
                moved.append((key_group, key, new_namespace, new_part, value))
            moved.sort(key=lambda row: (row[2], row[3] or b""))
            yield from moved

    def _new_key(self, role: str, data: bytes) -> bytes:
        migration = self._keys.get(role)
        return data if migration is None else migration.to_bytes(data)

    def _collision(self, address: Address, role: str, one: bytes, other: bytes) -> StateMigrationException:
        what = "user key" if role == USER_KEY_ROLE else role
        old = self._old.namespace_snapshot if role == NAMESPACE_ROLE else self._old.role_snapshots[role]
        serializer = old.restore_serializer()
        return self.failure(
            address,
            None,
            MigrationError(
                f"the {what}s {_decoded(serializer, one)} and {_decoded(serializer, other)} become equal, and one of "
                f"the entries would be lost; keep them apart, or let the program that wrote the state first remove or "
                f"merge these entries"
            ),
        )

    def failure(self, address: Address, user_key: bytes | None, error: Exception) -> StateMigrationException:
        """The error for an entry that cannot be migrated, which shows its key as the user knows it.

        The error is usually a `MigrationError` (`SchemaMigration.failure`), with the path in the value and the reason.
        """
        key_group, key, namespace = address
        old = self._old
        where = f"key {_decoded(self._key_serializer, key)}"
        namespace_serializer = old.namespace_snapshot.restore_serializer()
        if has_namespaces(namespace_serializer):
            where += f" in namespace {_decoded(namespace_serializer, namespace)}"
        if user_key is not None and USER_KEY_ROLE in old.role_snapshots:
            user_key_serializer = old.role_snapshots[USER_KEY_ROLE].restore_serializer()
            where += f", the entry of {_decoded(user_key_serializer, user_key)}"
        return StateMigrationException(
            f"operator {self._operator_uid!r}, state {old.name!r}, {where} (key group {key_group}) cannot be migrated: "
            f"{error}. The restored checkpoint or savepoint is unchanged"
        )

    def progress(self, entries: int, size_bytes: int = 0) -> None:
        """Report how many entries were migrated so far, and the bytes of their values if they were counted."""
        self._progress.reach(entries, size_bytes)

    def done(self) -> None:
        """Report the end of the migration."""
        self._progress.done()


def _decoded(serializer: TypeSerializer[Any], data: bytes) -> str:
    try:
        return format_value(serializer.from_bytes(data))
    except Exception:
        return f"of the bytes {data.hex()}"
