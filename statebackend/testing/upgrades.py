"""The contract of an upgrade from one serializer to another, as a pytest class to derive from.

    class TestAddingAField(UpgradeContract):
        expected = CompatibilityKind.AFTER_MIGRATION
        golden_directory = Path(__file__).parent / "golden" / "point"       # optional

        def old_serializer(self): return AttrsSerializer(PointV1, name="Point")
        def new_serializer(self): return AttrsSerializer(PointV2, name="Point")
        def values(self): return [(PointV1(1, 2), PointV2(1, 2, 0))]        # old value, migrated value

The assertions are those of Flink's ``TypeSerializerUpgradeTestBase``: the restored serializer reads the old bytes, and
the compatibility result is the expected one. Depending on the result, the migrated bytes are valid for the new
serializer, or the reconfigured serializer reads the old bytes, or the new serializer reads them. Bytes are *valid* for
a serializer if three serializers read and rewrite the value: this one, the one restored from its snapshot, and a
duplicate of that.

With ``golden_directory`` the golden files of all releases are also tested. Call `generate` once per release.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from migration.schema_migration import SchemaMigration
from snapshots.compatibility import CompatibilityKind
from snapshots.envelope import snapshot_from_bytes, snapshot_to_bytes
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, resolve_compatibility
from statebackend.testing.serializers import GoldenFiles
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer

Equal = Callable[[Any, Any], bool]


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right) or (left != left and right != right)


def migration_between(
    old: TypeSerializer[Any] | TypeSerializerSnapshot[Any], new: TypeSerializer[Any]
) -> SchemaMigration[Any]:
    """Return the migration of values that ``old`` wrote. Raises an error if the serializers are incompatible."""
    snapshot = old if isinstance(old, TypeSerializerSnapshot) else old.snapshot_configuration()
    snapshot = snapshot_from_bytes(snapshot_to_bytes(snapshot))
    return SchemaMigration.of_compatibility(snapshot, new, resolve_compatibility(snapshot, new))


def assert_valid(serializer: TypeSerializer[Any], data: bytes, expected: Any, equal: Equal = _equal) -> None:
    """Assert that the serializer, the one restored from its snapshot, and its duplicate read and rewrite the value."""
    snapshot = snapshot_from_bytes(snapshot_to_bytes(serializer.snapshot_configuration()))
    restored = restored_with(snapshot, serializer)
    for one in (serializer, restored, restored.duplicate()):
        value = one.from_bytes(data)
        assert equal(value, expected), f"{one!r} read {value!r} for {expected!r}"
        assert equal(one.from_bytes(one.to_bytes(value)), expected)


def check_upgrade(
    snapshot: TypeSerializerSnapshot[Any],
    new: TypeSerializer[Any],
    expected: CompatibilityKind,
    encoded_and_new_values: Sequence[tuple[bytes, Any]],
    equal: Equal = _equal,
    known: Sequence[TypeSerializer[Any]] = (),
) -> None:
    """Assert the upgrade of old bytes to new values, from an old snapshot to a new serializer.

    ``known`` are further serializers; the old serializer is restored with their classes.
    """
    compatibility = resolve_compatibility(snapshot, new)
    assert compatibility.kind is expected, f"expected {expected.label}, found {compatibility}"
    if expected is CompatibilityKind.INCOMPATIBLE:
        assert any(issue.reason for issue in compatibility.issues), (
            "an incompatible result must have an issue with a reason"
        )
        return
    restored = restored_with(snapshot, new, *known)
    for data, value in encoded_and_new_values:
        old_value = restored.from_bytes(data)
        assert restored.to_bytes(old_value) == data
        if expected is CompatibilityKind.AFTER_MIGRATION:
            migration = SchemaMigration(restored, new, compatibility.plan)
            migrated = migration.to_bytes(data)
            assert_valid(new, migrated, value, equal)
            assert equal(migration.to_value(data), value)
            assert equal(new.from_bytes(migrated), migration.to_value(data))
        elif expected is CompatibilityKind.WITH_RECONFIGURED_SERIALIZER:
            assert_valid(compatibility.reconfigured_serializer, data, value, equal)
        else:
            assert_valid(new, data, value, equal)


class UpgradeContract:
    """The tests of an upgrade. Derive a class ``Test...`` and implement both serializers and `values`."""

    expected: ClassVar[CompatibilityKind]
    golden_directory: ClassVar[Path | None] = None

    def old_serializer(self) -> TypeSerializer[Any]:
        """Return the serializer of the old version."""
        raise NotImplementedError

    def new_serializer(self) -> TypeSerializer[Any]:
        """Return the new serializer."""
        raise NotImplementedError

    def values(self) -> Sequence[tuple[Any, Any]]:
        """Return old values with the expected new values. New values are ignored if the upgrade is incompatible."""
        raise NotImplementedError

    def equal(self, left: Any, right: Any) -> bool:
        """Return whether two new values are equal."""
        return _equal(left, right)

    def generate(self, version: str) -> None:
        """Write the golden files of a version, before its release."""
        assert self.golden_directory is not None, "set golden_directory to the directory of the golden files"
        old_values = [old for old, _ in self.values()]
        GoldenFiles(self.golden_directory).generate(version, self.old_serializer(), old_values)

    def test_the_old_state_has_the_expected_compatibility(self) -> None:
        old = self.old_serializer()
        encoded = [(old.to_bytes(before), after) for before, after in self.values()]
        snapshot = snapshot_from_bytes(snapshot_to_bytes(old.snapshot_configuration()))
        check_upgrade(snapshot, self.new_serializer(), self.expected, encoded, self.equal, [old])

    def test_files_of_released_versions_have_the_expected_compatibility(self) -> None:
        if self.golden_directory is None:
            pytest.skip("golden_directory is not set")
        new_values = [after for _, after in self.values()]
        versions = list(GoldenFiles(self.golden_directory).versions())
        assert versions, f"no golden files in {self.golden_directory}; call generate() to write them"
        for golden in versions:
            pairs = list(zip(golden.encoded_values, new_values, strict=True))
            check_upgrade(
                golden.snapshot, self.new_serializer(), self.expected, pairs, self.equal, [self.old_serializer()]
            )
