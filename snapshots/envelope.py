"""The versioned envelope around a snapshot: Flink's ``writeVersionedSnapshot``.

    envelope := UTF(stable name of the snapshot class) i32(version) content

Example, a long: ``0050 "org.apache.flink...LongSerializer$LongSerializerSnapshot" 00000003``, no content.
"""

from __future__ import annotations

from typing import Any

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import SnapshotFormatError, StateFormatError, UnknownSnapshotError
from snapshots.registry import snapshot_class_for, snapshot_class_name
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from snapshots.unopened import UnopenedSnapshot

MAX_NESTING = 64
"""How deep snapshots may be nested in one another; deeper bytes are refused as hostile."""


def write_versioned_snapshot(out: DataOutputView, snapshot: TypeSerializerSnapshot[Any]) -> None:
    """Writes name, version and content of the snapshot; one that was carried on unread as it was found.

    Raises `SnapshotFormatError` for one that is nested deeper than `MAX_NESTING`, which could never be read again.
    """
    if isinstance(snapshot, UnopenedSnapshot):
        out.write(snapshot.envelope)
        return
    if out.nesting >= MAX_NESTING:
        raise SnapshotFormatError(
            f"the type is nested deeper than {MAX_NESTING} serializers in one another and could not be read again: "
            f"make it flatter, or use a record that contains itself, which counts once"
        )
    out.nesting += 1
    try:
        out.write_utf(snapshot_class_name(type(snapshot)))
        out.write_int(snapshot.current_version)
        snapshot.write_snapshot(out)
    finally:
        out.nesting -= 1


def read_versioned_snapshot(source: DataInputView) -> TypeSerializerSnapshot[Any]:
    """Reads one envelope; raises `SnapshotFormatError` with the class and position when it cannot."""
    position = source.position
    name = ""
    if source.nesting >= MAX_NESTING:
        raise SnapshotFormatError(f"serializer snapshots nested deeper than {MAX_NESTING} at byte {position}")
    source.nesting += 1
    try:
        name = source.read_utf()
        version = source.read_int()
        snapshot = _empty_snapshot(name)
        if not 0 < version <= snapshot.current_version:
            raise SnapshotFormatError(
                f"version {version} of {name} is not known here (newest known: {snapshot.current_version}): "
                f"it was written by a newer release, or the bytes are damaged"
            )
        snapshot.read_snapshot(version, source)
    except SnapshotFormatError:
        raise
    except Exception as error:
        # A snapshot class may be anybody's: whatever it makes of damaged bytes, one kind of error comes out.
        reason = str(error) if isinstance(error, StateFormatError) else f"{type(error).__name__}: {error}"
        raise SnapshotFormatError(
            f"unreadable serializer snapshot {name or '(no name)'} at byte {position}: {reason}"
        ) from error
    finally:
        source.nesting -= 1
    return snapshot


def _empty_snapshot(name: str) -> TypeSerializerSnapshot[Any]:
    snapshot_class = snapshot_class_for(name)
    try:
        return snapshot_class()
    except TypeError as error:
        raise SnapshotFormatError(f"{name!r} cannot be made without arguments and read: {error}") from error


def snapshot_to_bytes(snapshot: TypeSerializerSnapshot[Any], *, nesting: int = 0) -> bytes:
    """The envelope of a snapshot as bytes; ``nesting`` is how many others it stands in already."""
    out = DataOutputView()
    out.nesting = nesting
    write_versioned_snapshot(out, snapshot)
    return out.to_bytes()


def snapshot_from_bytes(data: bytes) -> TypeSerializerSnapshot[Any]:
    """The snapshot in an envelope; refuses trailing bytes."""
    source = DataInputView(data)
    snapshot = read_versioned_snapshot(source)
    if source.remaining:
        raise SnapshotFormatError(f"{source.remaining} bytes follow the serializer snapshot at byte {source.position}")
    return snapshot


def snapshot_or_unopened(data: bytes) -> TypeSerializerSnapshot[Any]:
    """As `snapshot_from_bytes`, but an `UnopenedSnapshot` if it, or one nested in it, is of an unknown class."""
    try:
        return snapshot_from_bytes(data)
    except UnknownSnapshotError as error:
        return UnopenedSnapshot(data, error)
