"""The content of a record snapshot: names, former names, defaults and the snapshots of the field serializers.

    content := record                             version 1, whose schema version is 1
    content := i32(schema version) record         version 2, for every other schema version
    record  := UTF(record name) i32(fields) field*
    field   := UTF(name) i32(former names) UTF* default envelope(serializer)
    default := 00 none | 01 value: i32(length) bytes | 02 factory: i32(length) bytes of one value from it

A record is written in the lowest version that can hold it. If a factory returns different values (a clock, a random
id), the snapshot holds the value of an empty field instead, because the same serializer must always have the same
snapshot.
"""

from __future__ import annotations

import keyword
import unicodedata
from typing import Any, Final

from attrs import evolve, field, frozen

from snapshots.composite import merge_all
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import read_versioned_snapshot, write_versioned_snapshot
from snapshots.errors import SerializationError, SnapshotFormatError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.kernel.record_families import ABSENT
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_shape import RecordField, RecordShape

NEWEST_VERSION: Final = 2

# A field takes at least a name length, a count of former names, a default flag and an envelope.
_MINIMUM_FIELD_BYTES: Final = 13


@frozen
class WrittenField:
    """A field as stored in a snapshot."""

    name: str
    snapshot: TypeSerializerSnapshot[Any] = field(eq=False)
    former_names: tuple[str, ...] = ()
    default_is_made: bool = False
    default: bytes | None = None


@frozen
class WrittenRecord:
    """A record as stored in a snapshot."""

    name: str
    fields: tuple[WrittenField, ...]
    schema_version: int = 1


def written_record(shape: RecordShape) -> WrittenRecord:
    """Returns the stored form of a shape."""
    return WrittenRecord(
        shape.name,
        tuple(
            WrittenField(
                part.name,
                part.serializer.snapshot_configuration(),
                part.former_names,
                part.default_factory is not None,
                encoded_default(part),
            )
            for part in shape.fields
        ),
        shape.schema_version,
    )


def version_for(record: WrittenRecord) -> int:
    """Returns the format version in which this record is written."""
    return 1 if record.schema_version == 1 else NEWEST_VERSION


def write_record(record: WrittenRecord, out: DataOutputView) -> None:
    """Writes the content in the version of `version_for`."""
    if version_for(record) >= 2:
        out.write_int(record.schema_version)
    out.write_utf(record.name)
    out.write_int(len(record.fields))
    for part in record.fields:
        out.write_utf(part.name)
        out.write_int(len(part.former_names))
        for name in part.former_names:
            out.write_utf(name)
        if part.default is None:
            out.write_byte(0)
        else:
            out.write_byte(2 if part.default_is_made else 1)
            out.write_sized_bytes(part.default)
        write_versioned_snapshot(out, part.snapshot)


def read_record(read_version: int, source: DataInputView) -> WrittenRecord:
    """Reads the content of any version; raises `SnapshotFormatError` for invalid content."""
    schema_version = source.read_int() if read_version >= 2 else 1
    name = source.read_utf()
    fields = tuple(_read_field(source) for _ in range(source.read_count(_MINIMUM_FIELD_BYTES)))
    names = [part.name for part in fields]
    if len(set(names)) != len(names):
        raise SnapshotFormatError(f"the record {name} has a field twice: {', '.join(names)}; the bytes are damaged")
    # Names become part of generated code, so they must be identifiers.
    strange = [part for part in names if not is_field_name(part)]
    if strange:
        raise SnapshotFormatError(f"the record {name} has fields without a name: {strange!r}; the bytes are damaged")
    if schema_version < 1:
        raise SnapshotFormatError(f"the record {name} has schema version {schema_version}; the bytes are damaged")
    return WrittenRecord(name, fields, schema_version)


def merged_record(one: WrittenRecord, other: WrittenRecord) -> WrittenRecord | None:
    """Merges two records that differ only in what their field serializers learned; None for others."""
    # Equality of fields ignores their snapshots.
    snapshots = merge_all(tuple(part.snapshot for part in one.fields), tuple(part.snapshot for part in other.fields))
    if one != other or snapshots is None:
        return None
    fields = tuple(evolve(part, snapshot=snapshot) for part, snapshot in zip(one.fields, snapshots, strict=True))
    return evolve(one, fields=fields)


def is_field_name(name: str) -> bool:
    """Whether generated code can use the name for this field.

    Python normalises identifiers (NFKC), and names with two underscores on both sides have special meanings.
    """
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and not (name.startswith("__") and name.endswith("__"))
        and unicodedata.normalize("NFKC", name) == name
    )


def encoded_default(part: RecordField) -> bytes | None:
    """Returns the bytes of a field's default; raises `SerializationError` if its serializer rejects it."""
    if not part.has_default:
        return None
    try:
        encoded = part.serializer.to_bytes(part.make_default())
        if part.default_factory is not None and part.serializer.to_bytes(part.make_default()) != encoded:
            return part.serializer.to_bytes(part.serializer.create_instance())
        return encoded
    except Exception as error:
        raise SerializationError(
            f"field {part.name}", (f".{part.name}: its default cannot be written: {error}",)
        ) from error


def decoded_default(part: WrittenField, serializer: TypeSerializer[Any]) -> tuple[Any, Any]:
    """Returns default and default factory of a field whose class is missing."""
    if part.default is None:
        return ABSENT, None
    encoded = part.default
    if part.default_is_made:
        return ABSENT, lambda: serializer.from_bytes(encoded)
    return serializer.from_bytes(encoded), None


def _read_field(source: DataInputView) -> WrittenField:
    name = source.read_utf()
    former = tuple(source.read_utf() for _ in range(source.read_count(minimum_item_bytes=2)))
    flag = source.read_byte()
    if flag not in (0, 1, 2):
        raise SnapshotFormatError(f"field {name}: the default has kind {flag}, known are 0 to 2; the bytes are damaged")
    default = source.read_sized_bytes() if flag else None
    return WrittenField(name, read_versioned_snapshot(source), former, flag == 2, default)
