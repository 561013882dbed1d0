"""Pickled values, and that nothing is unpickled without permission of the program."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pytest
from record_versions import compatibility_of, written

import typeserializers as ts
from snapshots import (
    DataInputView,
    DataOutputView,
    TypeSerializerSnapshot,
    UnresolvableSerializerError,
    register_snapshot,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from statebackend.testing.upgrades import migration_between
from typeserializers.opaque import ALLOW_VARIABLE, PickledSerializerSnapshot


class Basket:
    def __init__(self, *items: str) -> None:
        self.items = list(items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Basket) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]


class Other:
    """Another class."""


ran: list[str] = []


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return ran.append, ("trap",)


def named_snapshot(name: str) -> TypeSerializerSnapshot[Any]:
    """The snapshot of a pickle serializer of a class that this program has not allowed."""
    data = snapshot_to_bytes(ts.PickleSerializer(Basket).snapshot_configuration())
    return snapshot_from_bytes(data.replace(f"{Basket.__module__}:Basket".encode(), name.encode()))


def test_a_pickled_value_round_trips_and_the_class_must_stay() -> None:
    serializer = ts.PickleSerializer(Basket)
    assert serializer.from_bytes(serializer.to_bytes(Basket("a"))) == Basket("a")
    assert compatibility_of(serializer, ts.PickleSerializer(Basket)).is_as_is
    assert compatibility_of(serializer, ts.PickleSerializer(Other)).is_incompatible
    assert compatibility_of(serializer, ts.StringSerializer()).is_incompatible
    assert written(serializer).is_evolvable is False
    with pytest.raises(ts.SerializationError, match="Basket"):
        serializer.to_bytes(Other())  # type: ignore[arg-type]


def test_a_snapshot_alone_is_not_permission_to_unpickle() -> None:
    name = f"{Basket.__module__}:Bomber"
    assert len(name) == len(f"{Basket.__module__}:Basket")
    restored = named_snapshot(name).restore_serializer()
    trap = pickle.dumps(Trap())
    with pytest.raises(UnresolvableSerializerError, match="Bomber"):
        restored.from_bytes(len(trap).to_bytes(4, "big") + trap)
    assert ran == []


def test_a_converting_serializer_replaces_pickle() -> None:
    old = ts.PickleSerializer(Basket)
    new = ts.ConvertingSerializer(ts.ListSerializer(ts.StringSerializer()), {old: lambda basket: basket.items})
    assert compatibility_of(old, new).is_after_migration
    migration = migration_between(written(old), new)
    assert migration.to_value(old.to_bytes(Basket("a", "b"))) == ["a", "b"]
    assert migration.to_bytes(old.to_bytes(Basket("a"))) == ts.ListSerializer(ts.StringSerializer()).to_bytes(["a"])


def legacy(serializer: Any) -> bytes:
    return snapshot_to_bytes(PickledSerializerSnapshot(serializer))


def test_a_java_serialized_serializer_is_kept_but_not_unpickled() -> None:
    data = legacy(ts.LongSerializer())
    snapshot = snapshot_from_bytes(data)
    assert snapshot_to_bytes(snapshot) == data
    compatibility = resolve_compatibility(snapshot, ts.LongSerializer())
    assert compatibility.is_incompatible
    assert "allow_legacy_serializers" in str(compatibility)
    with pytest.raises(UnresolvableSerializerError, match="allow_legacy_serializers"):
        snapshot.restore_serializer()


def test_reading_a_hostile_legacy_snapshot_runs_nothing() -> None:
    snapshot: Any = PickledSerializerSnapshot()
    snapshot.pickled = pickle.dumps(Trap())
    read = snapshot_from_bytes(snapshot_to_bytes(snapshot))
    assert resolve_compatibility(read, ts.LongSerializer()).is_incompatible
    assert ran == []


def test_when_allowed_it_is_checked_in_its_new_form_and_then_stored_in_it() -> None:
    snapshot = snapshot_from_bytes(legacy(ts.ListSerializer(ts.LongSerializer())))
    new = ts.ListSerializer(ts.LongSerializer())
    with ts.allow_legacy_serializers():
        assert resolve_compatibility(snapshot, new).is_as_is
        assert resolve_compatibility(snapshot, ts.LongSerializer()).is_incompatible
        restored = snapshot.restore_serializer()
        assert restored.from_bytes(new.to_bytes([1, 2])) == [1, 2]
    with pytest.raises(UnresolvableSerializerError):
        snapshot.restore_serializer()
    assert b"pickle" not in snapshot_to_bytes(new.snapshot_configuration())
    assert compatibility_of(new, new).is_as_is


def test_the_environment_variable_allows_it_for_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ALLOW_VARIABLE not in os.environ
    monkeypatch.setenv(ALLOW_VARIABLE, "1")
    snapshot = snapshot_from_bytes(legacy(ts.LongSerializer()))
    assert resolve_compatibility(snapshot, ts.LongSerializer()).is_as_is


def test_other_objects_are_rejected_even_if_allowed() -> None:
    snapshot: Any = PickledSerializerSnapshot()
    for pickled, message in ((pickle.dumps([1]), "not a serializer"), (b"\x80nonsense", "unpickled")):
        snapshot.pickled = pickled
        with ts.allow_legacy_serializers(), pytest.raises(UnresolvableSerializerError, match=message):
            snapshot.restore_serializer()


@register_snapshot("tests.ScaledConfigSnapshot")
class ScaledConfigSnapshot(ts.TypeSerializerConfigSnapshot[int]):
    """A custom snapshot of the deprecated kind."""

    configuration_version = 2
    scale = 7

    def write_configuration(self, out: DataOutputView) -> None:
        out.write_int(self.scale)

    def read_configuration(self, read_version: int, source: DataInputView) -> None:
        self.scale = source.read_int()


def test_a_deprecated_config_snapshot_is_read_with_its_configuration() -> None:
    snapshot = ScaledConfigSnapshot(ts.LongSerializer())
    snapshot.scale = 12
    data = snapshot_to_bytes(snapshot)
    read: Any = snapshot_from_bytes(data)
    assert read.scale == 12
    assert snapshot_to_bytes(read) == data
    assert resolve_compatibility(read, ts.LongSerializer()).is_incompatible
    with ts.allow_legacy_serializers():
        assert resolve_compatibility(read, ts.LongSerializer()).is_as_is


def test_a_config_snapshot_without_its_own_class_keeps_its_configuration() -> None:
    out = DataOutputView()
    out.write_utf("statebackend.TypeSerializerConfigSnapshot")
    out.write_int(1)
    out.write_sized_bytes(pickle.dumps(ts.LongSerializer()))
    out.write_sized_bytes(b"old configuration")
    data = out.to_bytes()
    assert snapshot_to_bytes(snapshot_from_bytes(data)) == data
