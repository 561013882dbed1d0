"""The content of Flink's PojoSerializerSnapshot, version 2.

    content    := UTF(class name) fields registered unregistered          each an optional map
    fields     := field name -> UTF(declaring class) UTF(field name), envelope(serializer)
    registered := class name -> (no bytes), envelope(PojoSerializerSnapshot)        in the order of their tags
    unregistered := as registered: subclasses that the serializer met

An unknown nested serializer does not make the snapshot unreadable: its bytes are kept with the reason, and it is
rejected by name when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import field, frozen

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import read_versioned_snapshot, snapshot_to_bytes
from snapshots.errors import MalformedDataError, SnapshotFormatError, StateFormatError, UnresolvableSerializerError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.containers.maps import OptionalEntry, read_optional_map, write_optional_map
from typeserializers.kernel.type_serializer import TypeSerializer

CURRENT_VERSION: Final = 2


class UnreadableSnapshot(TypeSerializerSnapshot[Any]):
    """The bytes of an unknown serializer, and why they could not be read."""

    current_version = 1

    def __init__(self, data: bytes | None = None, reason: str = "it was not written") -> None:
        self.data = data
        self.reason = reason

    def write_snapshot(self, out: DataOutputView) -> None:
        raise SnapshotFormatError(f"a serializer that is not known here cannot be rewritten: {self.reason}")

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        raise SnapshotFormatError("the bytes of an unknown serializer are copied, not written")

    def restore_serializer(self) -> TypeSerializer[Any]:
        raise UnresolvableSerializerError(f"the serializer cannot be rebuilt: {self.reason}")

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[Any]
    ) -> TypeSerializerSchemaCompatibility[Any]:
        return TypeSerializerSchemaCompatibility.incompatible(
            CompatibilityIssue(
                "",
                FieldCompatibility.REJECT,
                "serializer-unreadable",
                f"the serializer that wrote the state here cannot be loaded: {self.reason}",
                "Register a snapshot class under that name, or rewrite the state without it",
            )
        )


@frozen
class WrittenPart:
    """A field or subclass: its name, the declaring class of a field, and the snapshot of its serializer."""

    name: str
    snapshot: TypeSerializerSnapshot[Any] = field(eq=False)
    declaring_class: str | None = None
    former_names: tuple[str, ...] = ()


@frozen
class WrittenPojo:
    """A POJO as stored in a snapshot."""

    name: str
    fields: tuple[WrittenPart, ...]
    registered: tuple[WrittenPart, ...] = ()
    unregistered: tuple[WrittenPart, ...] = ()


def write_pojo(pojo: WrittenPojo, out: DataOutputView) -> None:
    """Writes the content."""
    out.write_utf(pojo.name)
    level = out.nesting
    fields = [OptionalEntry(part.name, _field_key(part), _snapshot_bytes(part, level)) for part in pojo.fields]
    write_optional_map(out, fields)
    for parts in (pojo.registered, pojo.unregistered):
        write_optional_map(out, [OptionalEntry(part.name, b"", _snapshot_bytes(part, level)) for part in parts])


def read_pojo(source: DataInputView) -> WrittenPojo:
    """Reads the content; raises `SnapshotFormatError` if the frame is damaged."""
    name = source.read_utf()
    fields = tuple(
        WrittenPart(entry.name, _read_snapshot(entry.value, source.nesting), _declaring_class(entry))
        for entry in read_optional_map(source)
    )
    return WrittenPojo(name, fields, _read_subclasses(source), _read_subclasses(source))


def _read_subclasses(source: DataInputView) -> tuple[WrittenPart, ...]:
    return tuple(
        WrittenPart(entry.name, _read_snapshot(entry.value, source.nesting)) for entry in read_optional_map(source)
    )


def _field_key(part: WrittenPart) -> bytes | None:
    if part.declaring_class is None:
        return None
    key = DataOutputView()
    key.write_utf(part.declaring_class)
    key.write_utf(part.name)
    return key.to_bytes()


def _declaring_class(entry: OptionalEntry) -> str | None:
    if entry.key is None:
        return None
    key = DataInputView(entry.key)
    try:
        declaring, name = key.read_utf(), key.read_utf()
    except StateFormatError as error:
        raise SnapshotFormatError(f"the field {entry.name} has a damaged key: {error}") from error
    if name != entry.name or key.remaining:
        raise SnapshotFormatError(f"the field {entry.name} has a key for {name!r}: the bytes are damaged")
    return declaring


def _snapshot_bytes(part: WrittenPart, nesting: int) -> bytes | None:
    if isinstance(part.snapshot, UnreadableSnapshot):
        return part.snapshot.data
    return snapshot_to_bytes(part.snapshot, nesting=nesting)


def _read_snapshot(data: bytes | None, nesting: int) -> TypeSerializerSnapshot[Any]:
    if data is None:
        return UnreadableSnapshot()
    source = DataInputView(data)
    source.nesting = nesting
    try:
        snapshot = read_versioned_snapshot(source)
        if source.remaining:
            raise MalformedDataError(f"{source.remaining} bytes follow it")
    except StateFormatError as error:
        return UnreadableSnapshot(data, str(error))
    return snapshot


def parts_of(named: Sequence[tuple[str, TypeSerializer[Any]]]) -> tuple[WrittenPart, ...]:
    """Returns the parts of a snapshot for subclasses."""
    return tuple(WrittenPart(name, serializer.snapshot_configuration()) for name, serializer in named)
