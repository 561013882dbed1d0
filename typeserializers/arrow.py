"""Arrow record batches, and single values of a struct type, as Arrow IPC messages.

    value := i32(length) encapsulated record batch message          a struct value is a batch of one row

The schema is in the snapshot, not in the value. Evolution is by field name
(`typeserializers.evolution.simple_evolution`). The bytes that are read are not trusted: compressed bodies are rejected,
because their claimed size has no bound, and every batch is validated in full. The snapshot has a format of this
library:

    content := i32(length) encapsulated schema message
"""

from __future__ import annotations

import copy
import itertools
import struct
from abc import abstractmethod
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyarrow import ipc

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError, SnapshotFormatError, format_value
from snapshots.type_serializer_snapshot import RuledTypeSerializerSnapshot
from typeserializers.kernel.compiled import MAX_EMPTY_ELEMENTS
from typeserializers.kernel.fixed_fields import lost_values
from typeserializers.kernel.type_serializer import Codec, TypeSerializer

T = TypeVar("T")

_HEADER_SLOT: Final = 2
_COMPRESSION_SLOT: Final = 3


class ArrowIpcSerializer(TypeSerializer[T], Generic[T]):
    """Base class for batches of one schema; raises `ValueError` for dictionary-encoded columns."""

    minimum_length = 4

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema.remove_metadata()
        encoded = [part.name for part in self.schema if _has_dictionary(part.type)]
        if encoded:
            raise ValueError(
                f"the columns {', '.join(encoded)} are dictionary-encoded, and a single message cannot carry the "
                f"dictionary; cast them to their value type"
            )
        if len(set(self.schema.names)) != len(self.schema.names):
            raise ValueError(f"the schema has two fields of the same name: {', '.join(self.schema.names)}")

    @abstractmethod
    def to_batch(self, value: T) -> pa.RecordBatch:
        """Returns a batch with the value; raises an exception if the value does not fit."""

    @abstractmethod
    def from_batch(self, batch: pa.RecordBatch) -> T:
        """Returns the value in a batch."""

    @property
    def may_reject_what_it_wrote(self) -> bool:
        # pyarrow creates casts and nulls, and only reading validates a batch in full.
        return True

    def configuration(self) -> Hashable:
        return str(self.schema), self.schema

    def serialize(self, value: T, out: DataOutputView) -> None:
        try:
            out.write(self._encode(value))
        except Exception as error:
            raise self.serialization_error(value, error) from error

    def deserialize(self, source: DataInputView) -> T:
        try:
            value, source.position = self._decode(source.data, source.position)
        except Exception as error:
            raise self.deserialization_error(source.data, error) from error
        return value

    def create_codec(self) -> Codec[T]:
        return Codec(self._encode, self._decode)

    def read_batch(self, data: bytes, position: int) -> tuple[pa.RecordBatch, int]:
        """Returns the batch at ``position``, validated in full, and the position after it."""
        source = DataInputView(data, position)
        message = source.read_sized_bytes()
        _reject_compression(message)
        batch = ipc.read_record_batch(pa.py_buffer(message), self.schema)
        batch.validate(full=True)
        _check_claims(batch, len(message))
        _check_nulls(batch)
        return batch, source.position

    def _encode(self, value: T) -> bytes:
        batch = self.to_batch(value)
        _check_nulls(batch)
        message: bytes = batch.serialize().to_pybytes()
        _check_claims(batch, len(message))
        return struct.pack(">i", len(message)) + message

    def _decode(self, data: bytes, position: int) -> tuple[T, int]:
        batch, position = self.read_batch(data, position)
        return self.from_batch(batch), position

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{part.name}: {part.type}' for part in self.schema)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "schema": self.schema}


class ArrowSerializer(ArrowIpcSerializer[pa.RecordBatch]):
    """Record batches of one schema; metadata of the schema does not count."""

    is_immutable_type = True

    def create_instance(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([], part.type) for part in self.schema], schema=self.schema)

    def to_batch(self, value: pa.RecordBatch) -> pa.RecordBatch:
        if not isinstance(value, pa.RecordBatch):
            raise TypeError(f"a record batch is needed, not {type(value).__name__}")
        if not value.schema.equals(self.schema, check_metadata=False):
            raise ValueError(f"the batch is of another schema: {value.schema.to_string(show_schema_metadata=False)}")
        return value.replace_schema_metadata(None)

    def from_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def snapshot_configuration(self) -> ArrowSerializerSnapshot:
        return ArrowSerializerSnapshot(self)


class ArrowStructSerializer(ArrowIpcSerializer[dict[str, Any]]):
    """Values of an Arrow struct type as dicts with exactly the fields of the type.

    Values have the types that Arrow returns: a map is a list of pairs, and a timestamp with a zone has a zone.
    A value that would be read back as another value is rejected (`typeserializers.kernel.fixed_fields`).
    """

    def __init__(self, struct_type: pa.StructType | pa.Schema) -> None:
        super().__init__(struct_type if isinstance(struct_type, pa.Schema) else pa.schema(list(struct_type)))
        self.struct_type = pa.struct(list(self.schema))

    def create_instance(self) -> dict[str, Any]:
        return {part.name: None for part in self.schema}

    def copy(self, value: dict[str, Any]) -> dict[str, Any]:
        return copy.deepcopy(value)

    def to_batch(self, value: dict[str, Any]) -> pa.RecordBatch:
        found = list(_struct_problems(value, self.struct_type, ""))
        if found:
            raise ValueError("; ".join(found))
        batch = self._as_batch(value)
        read = self.from_batch(batch)
        if read != value:
            lost = list(lost_values(value, read, ""))
            if lost:
                raise ValueError("; ".join(lost))
        return batch

    def from_batch(self, batch: pa.RecordBatch) -> dict[str, Any]:
        if batch.num_rows != 1:
            raise MalformedDataError(f"a struct value is one row, found {batch.num_rows}")
        value: dict[str, Any] = batch.to_pylist()[0]
        return value

    def problems(self, value: Any, path: str) -> Iterator[str]:
        found = list(_struct_problems(value, self.struct_type, path))
        yield from found
        if not found:
            yield from lost_values(value, self.from_batch(self._as_batch(value)), path)

    def _as_batch(self, value: dict[str, Any]) -> pa.RecordBatch:
        array = pa.array([value], self.struct_type)
        return pa.RecordBatch.from_arrays(array.flatten(), schema=self.schema)

    def snapshot_configuration(self) -> ArrowStructSerializerSnapshot:
        return ArrowStructSerializerSnapshot(self)


class ArrowIpcSerializerSnapshot(RuledTypeSerializerSnapshot[T], Generic[T]):
    """The schema of the batches."""

    serializer_class: ClassVar[type[ArrowIpcSerializer[Any]]]
    current_version = 1

    def __init__(self, serializer: ArrowIpcSerializer[T] | None = None) -> None:
        self.schema: pa.Schema = pa.schema([]) if serializer is None else serializer.schema

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_sized_bytes(self.schema.serialize().to_pybytes())

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        try:
            self.schema = ipc.read_schema(pa.py_buffer(source.read_sized_bytes()))
            # Arrow decodes names and time zones on access, so invalid text must be found here.
            for part in self.schema:
                _look_at_texts(part)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise SnapshotFormatError(f"the Arrow schema in the snapshot cannot be read: {error}") from error

    def restore_serializer(self) -> ArrowIpcSerializer[T]:
        try:
            return self.serializer_class(self.schema)
        except ValueError as error:
            raise SnapshotFormatError(f"the Arrow schema in the snapshot is not of Statebackend: {error}") from error


@register_snapshot("statebackend.ArrowSerializerSnapshot")
class ArrowSerializerSnapshot(ArrowIpcSerializerSnapshot[pa.RecordBatch]):
    serializer_class = ArrowSerializer


@register_snapshot("statebackend.ArrowStructSerializerSnapshot")
class ArrowStructSerializerSnapshot(ArrowIpcSerializerSnapshot[dict[str, Any]]):
    serializer_class = ArrowStructSerializer


def _look_at_texts(part: pa.Field) -> None:
    """Raises `UnicodeDecodeError` for a name or a time zone that is not valid text."""
    str(part.name)
    if pat.is_timestamp(part.type):
        str(part.type.tz)
    for index in range(part.type.num_fields):
        _look_at_texts(part.type.field(index))


def _has_dictionary(kind: pa.DataType) -> bool:
    if pat.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(index).type) for index in range(kind.num_fields))


def _check_nulls(batch: pa.RecordBatch) -> None:
    for part, column in zip(batch.schema, batch.columns, strict=True):
        if not part.nullable and column.null_count:
            raise ValueError(f".{part.name} has nulls, but is not nullable")


def _check_claims(batch: pa.RecordBatch, message_bytes: int) -> None:
    """Raises `MalformedDataError` for an array that claims more values than its message has bits.

    Nulls, views and runs take almost no bytes, but a reader expands them to any number of values.
    """
    limit = 8 * message_bytes + MAX_EMPTY_ELEMENTS
    if batch.num_rows > limit or any(count > limit for column in batch.columns for count in _claims(column)):
        raise MalformedDataError(f"an Arrow message of {message_bytes} bytes claims more than {limit} values")


def _claims(array: pa.Array) -> Iterator[int]:
    """Yields the number of values of the array and of each nested array; for views, the number of bytes."""
    kind = array.type
    yield len(array)
    if pat.is_run_end_encoded(kind):
        ends = array.run_ends.to_pylist()
        runs = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        yield from (max(runs, default=0) * count for count in _claims(array.values))
        if pat.is_string(array.values.type) or pat.is_binary(array.values.type):
            yield sum(
                run * (size or 0) for run, size in zip(runs, pc.binary_length(array.values).to_pylist(), strict=True)
            )
    elif pat.is_string_view(kind) or pat.is_binary_view(kind):
        lengths = memoryview(array.buffers()[1]).cast("i")[4 * array.offset : 4 * (array.offset + len(array))]
        yield sum(lengths[::4].tolist())
    elif pat.is_list_view(kind) or pat.is_large_list_view(kind):
        views = sorted(zip(array.offsets.to_pylist(), array.sizes.to_pylist(), strict=True))
        filled = [(start, start + size) for start, size in views if size]
        if any(end > start for (_, end), (start, _) in itertools.pairwise(filled)):
            raise MalformedDataError("two views of a list share elements, which cannot be read")
        yield from _claims(array.values)
    elif pat.is_map(kind):
        yield from _claims(array.keys)
        yield from _claims(array.items)
    elif pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        yield from _claims(array.values)
    else:
        for index in range(kind.num_fields):
            yield from _claims(array.field(index))


def _struct_problems(value: Any, kind: pa.DataType, path: str) -> Iterator[str]:
    if pat.is_struct(kind):
        if not isinstance(value, dict):
            yield f"{path or 'value'}: {format_value(value)} is not a dict"
            return
        names = [part.name for part in kind]
        for name in value:
            if name not in names:
                yield f"{path}.{name}: the struct has no such field"
        for part in kind:
            if part.name not in value:
                yield f"{path}.{part.name}: the field is missing"
            elif value[part.name] is not None:
                yield from _struct_problems(value[part.name], part.type, f"{path}.{part.name}")
            elif not part.nullable:
                yield f"{path}.{part.name}: None, but the field is not nullable"
        return
    if (pat.is_list(kind) or pat.is_large_list(kind)) and isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if item is not None:
                yield from _struct_problems(item, kind.value_type, f"{path}[{index}]")
        return
    try:
        pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        yield f"{path}: {error}"


def _reject_compression(message: bytes) -> None:
    """Rejects a message with a compressed body; reads only that part of its flatbuffer."""
    try:
        metadata = 8 if message[:4] == b"\xff\xff\xff\xff" else 4
        table = metadata + struct.unpack_from("<I", message, metadata)[0]
        header = _slot(message, table, _HEADER_SLOT)
        if header is None:
            raise MalformedDataError("the Arrow message has no header")
        header += struct.unpack_from("<I", message, header)[0]
        compressed = _slot(message, header, _COMPRESSION_SLOT) is not None
    except struct.error as error:
        raise MalformedDataError(f"the Arrow message is damaged: {error}") from error
    if compressed:
        raise MalformedDataError(
            "the body of the Arrow message is compressed, and only uncompressed bodies are written and read"
        )


def _slot(message: bytes, table: int, slot: int) -> int | None:
    """Returns the position of a field of a flatbuffer table, or None if it is absent."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    if vtable < 0 or 4 + 2 * slot + 2 > struct.unpack_from("<H", message, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", message, vtable + 4 + 2 * slot)[0]
    return table + offset if offset else None
