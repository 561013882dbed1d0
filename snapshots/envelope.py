"""The versioned envelope around a snapshot (Flink's ``writeVersionedSnapshot``), and the names in it.

    envelope := UTF(stable name of the snapshot class) i32(version) content

Example, a long: ``0050 "org.apache.flink...LongSerializer$LongSerializerSnapshot" 00000003``, no content.

A registered class has one fixed name and any number of aliases, so the class may move or be renamed. An unregistered
class is written as ``module:qualified.name`` and is found if this process has defined a class of that name;
`snapshots.permitted_modules` controls which modules may be imported for it. If a serializer exists in Flink, its stable
name is the name of Flink's snapshot class, so that the bytes equal Flink's. The table of names is global in the process
and is filled by decorators at import. Only subclasses of `TypeSerializerSnapshot` are instantiated, and nothing is
unpickled.

A program may no longer have the serializer of a state that it dropped, but it must still copy that state to its next
savepoint. An `UnopenedSnapshot` therefore keeps the envelope unread and raises only if its content is needed.
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
    """A snapshot whose class is unknown in this process.

    Args:
        envelope: The bytes as they were read.
        reason: Names the missing class.
    """

    def __init__(self, envelope: bytes, reason: UnknownSnapshotError) -> None:
        self.envelope = envelope
        self.reason = reason

    @property
    def current_version(self) -> int:
        raise SnapshotFormatError(f"the version of an unread snapshot is unknown: {self.reason}")

    def write_snapshot(self, out: DataOutputView) -> NoReturn:
        raise SnapshotFormatError(f"an unread snapshot can only be written with its envelope: {self.reason}")

    def read_snapshot(self, read_version: int, source: DataInputView) -> NoReturn:
        raise SnapshotFormatError(f"an unread snapshot cannot be read: {self.reason}")

    def restore_serializer(self) -> NoReturn:
        raise UnresolvableSerializerError(str(self.reason)) from self.reason

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[Any]
    ) -> TypeSerializerSchemaCompatibility[Any]:
        rejection = CompatibilityIssue(
            "",
            FieldCompatibility.REJECT,
            "unknown-snapshot",
            f"the serializer that wrote the state is unknown: {self.reason}",
            "Make its snapshot class importable again, or register the state under another name",
        )
        return TypeSerializerSchemaCompatibility.incompatible(rejection)


SnapshotClass = TypeVar("SnapshotClass", bound=type[TypeSerializerSnapshot[Any]])

_class_by_name: dict[str, type[TypeSerializerSnapshot[Any]]] = {}
_name_by_class: dict[type[TypeSerializerSnapshot[Any]], str] = {}

MAX_NESTING = 64
"""The maximum depth of nested snapshots; deeper bytes are rejected as hostile."""


def register_snapshot(name: str, *, aliases: tuple[str, ...] = ()) -> Callable[[SnapshotClass], SnapshotClass]:
    """Class decorator: registers a snapshot class under a fixed name.

    Args:
        name: The name in stored envelopes. It must never change.
        aliases: Former names that stored envelopes may contain.

    Raises:
        ValueError: A name already belongs to another class.
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
    """Returns a copy of all registered names and aliases with their classes."""
    return dict(_class_by_name)


def known_snapshot_classes() -> dict[type[TypeSerializerSnapshot[Any]], tuple[str, ...]]:
    """Returns all snapshot classes that names can refer to, each with its name and then its aliases.

    If a class was defined twice (a notebook cell that ran again), this is the latest definition.
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
    """Returns the stored name of a snapshot class; raises `SnapshotFormatError` for a class local to a function."""
    name = _name_by_class.get(snapshot_class)
    if name is not None:
        return name
    if "<locals>" in snapshot_class.__qualname__:
        raise SnapshotFormatError(
            f"the snapshot class {location_of(snapshot_class)} is local to a function, so no process can find it: "
            f"move it to the top of its module or give it a name with @register_snapshot"
        )
    return location_of(snapshot_class)


def snapshot_class_for(name: str) -> type[TypeSerializerSnapshot[Any]]:
    """Returns the snapshot class of a stored name; raises `UnknownSnapshotError` if there is none."""
    known = _class_by_name.get(name) or defined_snapshot_classes().get(name)
    if known is not None:
        return known
    import_class_of(name)
    found = _class_by_name.get(name) or defined_snapshot_classes().get(name)
    if found is None:
        raise UnknownSnapshotError(
            f"the module of the serializer snapshot {name!r} no longer defines it: "
            f"register the name as an alias of the class that replaced it"
        )
    return found


def write_versioned_snapshot(out: DataOutputView, snapshot: TypeSerializerSnapshot[Any]) -> None:
    """Writes name, version and content of the snapshot; an unread snapshot is copied unchanged.

    Raises:
        SnapshotFormatError: The snapshot is nested deeper than `MAX_NESTING`, so it could not be read.
    """
    if isinstance(snapshot, UnopenedSnapshot):
        out.write(snapshot.envelope)
        return
    if out.nesting >= MAX_NESTING:
        raise SnapshotFormatError(
            f"the type is nested deeper than {MAX_NESTING} serializers and could not be read: "
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
    """Reads one envelope; raises `SnapshotFormatError` with the class and the position if it cannot be read."""
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
                f"version {version} of {name} is not supported (newest supported: {snapshot.current_version}): "
                f"a newer release wrote it, or the bytes are damaged"
            )
        snapshot.read_snapshot(version, source)
    except SnapshotFormatError:
        raise
    except Exception as error:
        # A custom snapshot class may raise anything on damaged bytes; callers catch one class of error.
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
        raise SnapshotFormatError(
            f"{name!r} cannot be created without arguments: {error}. Give every parameter of its constructor a default"
        ) from error


def snapshot_to_bytes(snapshot: TypeSerializerSnapshot[Any], *, nesting: int = 0) -> bytes:
    """Returns the envelope of a snapshot as bytes; ``nesting`` is the number of snapshots around it."""
    out = DataOutputView()
    out.nesting = nesting
    write_versioned_snapshot(out, snapshot)
    return out.to_bytes()


def snapshot_from_bytes(data: bytes) -> TypeSerializerSnapshot[Any]:
    """Returns the snapshot in an envelope; rejects trailing bytes."""
    source = DataInputView(data)
    snapshot = read_versioned_snapshot(source)
    if source.remaining:
        raise SnapshotFormatError(f"{source.remaining} bytes follow the serializer snapshot at byte {source.position}")
    return snapshot


def snapshot_or_unopened(data: bytes) -> TypeSerializerSnapshot[Any]:
    """Like `snapshot_from_bytes`; returns an `UnopenedSnapshot` if its class, or a nested one, is unknown."""
    try:
        return snapshot_from_bytes(data)
    except UnknownSnapshotError as error:
        return UnopenedSnapshot(data, error)
