"""The versioned envelope around a snapshot, Flink's ``writeVersionedSnapshot``, and the names in it.

    envelope := UTF(stable name of the snapshot class) i32(version) content

Example, a long: ``0050 "org.apache.flink...LongSerializer$LongSerializerSnapshot" 00000003``, no content.

A registered class is known by a frozen name and any number of aliases, so it may move or be renamed. A class that is
not registered is written as ``module:qualified.name`` and found if this process has defined a class of that name; what
may be imported for it is in `snapshots.permitted_modules`. Where a serializer is one of Flink's, its stable name is the
name of Flink's snapshot class, so that the bytes are Flink's too. Names are one table for the process, because bytes
mean the same to all of it; it is filled by decorators while modules are imported. Only subclasses of
`TypeSerializerSnapshot` are ever instantiated, and nothing is unpickled.

A snapshot that is carried on unread, because this process does not know its class.

A program that has dropped a state, and with it the serializer that it had written for it, must still be able to carry
the state to its next savepoint, where another program may know what to do with it. So the envelope stays as it is. Only
who asks what is in it learns that it cannot be known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import SnapshotFormatError, StateFormatError, UnknownSnapshotError, UnresolvableSerializerError
from snapshots.permitted_modules import import_class_of
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, defined_snapshot_classes, location_of

if TYPE_CHECKING:
    from typeserializers.kernel.type_serializer import TypeSerializer


class UnopenedSnapshot(TypeSerializerSnapshot[Any]):
    """``envelope`` are the bytes as they were found, ``reason`` says which class is missing."""

    def __init__(self, envelope: bytes, reason: UnknownSnapshotError) -> None:
        self.envelope = envelope
        self.reason = reason

    @property
    def current_version(self) -> int:
        raise SnapshotFormatError(f"a snapshot that is carried on unread has no version here: {self.reason}")

    def write_snapshot(self, out: DataOutputView) -> NoReturn:
        raise SnapshotFormatError(f"a snapshot that is carried on unread is written as an envelope: {self.reason}")

    def read_snapshot(self, read_version: int, source: DataInputView) -> NoReturn:
        raise SnapshotFormatError(f"a snapshot that is carried on unread is not read: {self.reason}")

    def restore_serializer(self) -> NoReturn:
        raise UnresolvableSerializerError(str(self.reason)) from self.reason

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[Any]
    ) -> TypeSerializerSchemaCompatibility[Any]:
        rejection = CompatibilityIssue(
            "",
            FieldCompatibility.REJECT,
            "unknown-snapshot",
            f"the serializer that wrote it is not known here: {self.reason}",
            "Make its snapshot class importable again, or register the state under another name",
        )
        return TypeSerializerSchemaCompatibility.incompatible(rejection)


SnapshotClass = TypeVar("SnapshotClass", bound=type[TypeSerializerSnapshot[Any]])

_class_by_name: dict[str, type[TypeSerializerSnapshot[Any]]] = {}
_name_by_class: dict[type[TypeSerializerSnapshot[Any]], str] = {}

MAX_NESTING = 64
"""How deep snapshots may be nested in one another; deeper bytes are rejected as hostile."""


def register_snapshot(name: str, *, aliases: tuple[str, ...] = ()) -> Callable[[SnapshotClass], SnapshotClass]:
    """Class decorator: gives a snapshot class its frozen name, and the former names it must stay readable under.

    Raises `ValueError` when a name already belongs to another class.
    """

    def register(snapshot_class: SnapshotClass) -> SnapshotClass:
        for known in (name, *aliases):
            owner = _class_by_name.get(known)
            if owner is not None and location_of(owner) != location_of(snapshot_class):
                raise ValueError(
                    f"the snapshot name {known!r} belongs to {location_of(owner)}; "
                    f"choose another name for {location_of(snapshot_class)}"
                )
        for known in (name, *aliases):
            _class_by_name[known] = snapshot_class
        _name_by_class[snapshot_class] = name
        return snapshot_class

    return register


def registered_names() -> dict[str, type[TypeSerializerSnapshot[Any]]]:
    """All registered names and aliases with their classes, as a copy."""
    return dict(_class_by_name)


def known_snapshot_classes() -> dict[type[TypeSerializerSnapshot[Any]], tuple[str, ...]]:
    """All snapshot classes of this process that can be found, each with its name and then its aliases.

    Of a class that was defined again, as by a cell of a notebook that was run again, that is the last one.
    """
    registered = [one for one, name in _name_by_class.items() if _class_by_name[name] is one]
    known: dict[type[TypeSerializerSnapshot[Any]], tuple[str, ...]] = {
        snapshot_class: (snapshot_class_name(snapshot_class),)
        for snapshot_class in (*defined_snapshot_classes().values(), *registered)
    }
    for name, snapshot_class in _class_by_name.items():
        if name not in known[snapshot_class]:
            known[snapshot_class] = (*known[snapshot_class], name)
    return known


def snapshot_class_name(snapshot_class: type[TypeSerializerSnapshot[Any]]) -> str:
    """The name to write for a snapshot class; rejects a class that could not be found again."""
    name = _name_by_class.get(snapshot_class)
    if name is not None:
        return name
    if "<locals>" in snapshot_class.__qualname__:
        raise SnapshotFormatError(
            f"the snapshot class {location_of(snapshot_class)} is local to a function and could not be found again: "
            f"move it to the top of its module or give it a name with @register_snapshot"
        )
    return location_of(snapshot_class)


def snapshot_class_for(name: str) -> type[TypeSerializerSnapshot[Any]]:
    """The snapshot class of a written name; raises `UnknownSnapshotError` when there is none."""
    known = _class_by_name.get(name) or defined_snapshot_classes().get(name)
    if known is not None:
        return known
    import_class_of(name)
    found = _class_by_name.get(name) or defined_snapshot_classes().get(name)
    if found is None:
        raise UnknownSnapshotError(
            f"the module of the serializer snapshot {name!r} does not define it any more: "
            f"register the name as an alias of the class that replaced it"
        )
    return found


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
    """The snapshot in an envelope; rejects trailing bytes."""
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
