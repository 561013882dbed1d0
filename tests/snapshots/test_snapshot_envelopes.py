"""The versioned envelope and the names in it: moved classes are found, anything else is refused."""

from __future__ import annotations

import uuid

import pytest

import typeserializers as ts
from snapshots import (
    DataOutputView,
    SimpleTypeSerializerSnapshot,
    SnapshotFormatError,
    StateFormatError,
    register_snapshot,
    registered_names,
    snapshot_class_for,
    snapshot_class_name,
    snapshot_from_bytes,
    snapshot_to_bytes,
)

LONG = snapshot_to_bytes(ts.LongSerializer().snapshot_configuration())


class UnregisteredSnapshot(SimpleTypeSerializerSnapshot[int]):
    def create_serializer(self) -> ts.LongSerializer:
        return ts.LongSerializer()


def envelope(name: str, version: int, content: bytes = b"") -> bytes:
    out = DataOutputView()
    out.write_utf(name)
    out.write_int(version)
    out.write(content)
    return out.to_bytes()


def test_a_registered_class_is_written_under_its_stable_name() -> None:
    name = "org.apache.flink.api.common.typeutils.base.LongSerializer$LongSerializerSnapshot"
    assert envelope(name, 3) == LONG
    assert type(snapshot_from_bytes(LONG)) is registered_names()[name]


def test_a_class_that_moved_is_found_by_its_alias() -> None:
    name = f"tests.{uuid.uuid4()}"

    @register_snapshot(name, aliases=(name + ".old",))
    class Moved(UnregisteredSnapshot):
        pass

    for known in (name, name + ".old"):
        assert type(snapshot_from_bytes(envelope(known, 3))) is Moved
    assert snapshot_to_bytes(snapshot_from_bytes(envelope(name + ".old", 3))) == envelope(name, 3)
    with pytest.raises(ValueError, match="belongs to"):
        register_snapshot(name)(UnregisteredSnapshot)


def test_a_class_without_a_name_is_found_by_its_module() -> None:
    assert snapshot_class_name(UnregisteredSnapshot) == f"{__name__}:UnregisteredSnapshot"
    data = snapshot_to_bytes(UnregisteredSnapshot())
    assert isinstance(snapshot_from_bytes(data), UnregisteredSnapshot)


def test_a_local_class_without_a_name_cannot_be_written() -> None:
    class Local(UnregisteredSnapshot):
        pass

    with pytest.raises(SnapshotFormatError, match="local to a function"):
        snapshot_class_name(Local)


@pytest.mark.parametrize(
    "name",
    ["nothing.known", "os:system", "builtins:int", "no_such_module:X", f"{__name__}:missing", ":x", "os:", "a:b:c"],
)
def test_whatever_is_no_snapshot_class_is_refused(name: str) -> None:
    with pytest.raises(SnapshotFormatError):
        snapshot_class_for(name)
    with pytest.raises(SnapshotFormatError):
        snapshot_from_bytes(envelope(name, 1))


@pytest.mark.parametrize("version", [0, -1, 4, 1 << 30])
def test_unknown_versions_are_refused_with_both_versions(version: int) -> None:
    name = snapshot_class_name(type(snapshot_from_bytes(LONG)))
    with pytest.raises(SnapshotFormatError, match=f"version {version} .*newest known: 3"):
        snapshot_from_bytes(envelope(name, version))


def test_older_versions_of_a_simple_snapshot_are_read() -> None:
    name = snapshot_class_name(type(snapshot_from_bytes(LONG)))
    assert snapshot_to_bytes(snapshot_from_bytes(envelope(name, 2, b"\0\1x"))) == LONG
    assert snapshot_to_bytes(snapshot_from_bytes(envelope(name, 1))) == LONG


def test_trailing_and_missing_bytes_are_refused() -> None:
    with pytest.raises(SnapshotFormatError, match="1 bytes follow"):
        snapshot_from_bytes(LONG + b"\0")
    for length in range(len(LONG)):
        with pytest.raises(StateFormatError):
            snapshot_from_bytes(LONG[:length])


def test_snapshots_nested_too_deep_are_refused() -> None:
    serializer: ts.TypeSerializer = ts.LongSerializer()
    for _ in range(70):
        serializer = ts.ListSerializer(serializer)
    data = snapshot_to_bytes(serializer.snapshot_configuration())
    with pytest.raises(SnapshotFormatError, match="nested deeper than 64"):
        snapshot_from_bytes(data)
