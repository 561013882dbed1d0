"""Rows and their serializer, in Flink's layout.

A `Row` has values addressed by position or by name, and the kind of change that it represents.

    row  := mask (field unless null)*
    mask := bit(kind & 1) bit(kind >> 1) bit(field is null)*        most significant bit first, padded to whole bytes

Without row kinds (``supports_row_kind=False``), the mask has no bits for them. The kind of a row is then not written,
and every row is read as an INSERT, as in Flink.

The snapshot holds whether there are kinds. It has no field names, so fields can be renamed freely. Rows written before
kinds existed (outer version 2 and earlier), and any change of ``supports_row_kind``, need a migration.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import misfit
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter, indented
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import RUNTIME, nested_snapshot
from typeserializers.kernel.type_serializer import TypeSerializer


class RowKind(enum.IntEnum):
    """The kind of change that a row represents in a changelog; the number is Flink's byte."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def short_string(self) -> str:
        """``+I``, ``-U``, ``+U`` or ``-D``."""
        return ("+I", "-U", "+U", "-D")[self]


@frozen(init=False, repr=False)
class Row:
    """Field values, any of which may be None, with names if ``names`` is given, and a kind.

    ``Row(1, "a")`` is addressed by position, ``Row.named(id=1, name="a")`` by name and by position.
    Two rows are equal if their fields, names and kinds are. Raises `ValueError` for another number of names.
    """

    fields: tuple[Any, ...]
    kind: RowKind = field(default=RowKind.INSERT)
    names: tuple[str, ...] | None = field(default=None)

    def __init__(
        self, *fields: Any, kind: RowKind = RowKind.INSERT, names: tuple[str, ...] | list[str] | None = None
    ) -> None:
        if names is not None:
            names = tuple(names)
            if len(names) != len(fields) or len(set(names)) != len(names):
                raise ValueError(f"{len(fields)} fields cannot have the names {', '.join(names)}")
        self.__attrs_init__(fields, kind, names)

    @classmethod
    def named(cls, _fields: Mapping[str, Any] | None = None, /, kind: RowKind = RowKind.INSERT, **fields: Any) -> Row:
        """Creates a row with names, from a mapping (for names that are not identifiers) or keyword arguments."""
        every = {**(_fields or {}), **fields}
        return cls(*every.values(), kind=kind, names=tuple(every))

    @property
    def arity(self) -> int:
        """The number of fields."""
        return len(self.fields)

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields by name; raises `ValueError` for a row without names."""
        if self.names is None:
            raise ValueError("the row has no names")
        return dict(zip(self.names, self.fields, strict=True))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, int):
            return self.fields[key]
        if self.names is None or key not in self.names:
            raise KeyError(key)
        return self.fields[self.names.index(key)]

    def __len__(self) -> int:
        return len(self.fields)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fields)

    def __repr__(self) -> str:
        if self.names is None:
            inner = ", ".join(map(repr, self.fields))
        else:
            inner = ", ".join(f"{name}={item!r}" for name, item in zip(self.names, self.fields, strict=True))
        return f"{self.kind.short_string}[{inner}]"


KIND_BITS: Final = 2

_KIND_OF_BITS: Final = (RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.UPDATE_BEFORE, RowKind.DELETE)
"""The two bits of the kind, the lower one first."""

_BITS_OF_KIND: Final = {kind: bits for bits, kind in enumerate(_KIND_OF_BITS)}


class RowSerializer(CompiledTypeSerializer[Row]):
    """A `Row` with one serializer per field; any field may be None.

    With ``field_names``, rows are read with these names, and rows with names are accepted: their fields are matched by
    name, and missing fields become None. Without, only rows without names are accepted.
    """

    def __init__(
        self,
        field_serializers: Sequence[TypeSerializer[Any]],
        field_names: Sequence[str] | None = None,
        *,
        supports_row_kind: bool = True,
    ) -> None:
        self.field_serializers = tuple(field_serializers)
        self.field_names = None if field_names is None else tuple(field_names)
        self.supports_row_kind = supports_row_kind
        if self.field_names is not None:
            # The row checks that names and fields match.
            Row(*self.field_serializers, names=self.field_names)

    @property
    def mask_length(self) -> int:
        """The number of bytes of the mask."""
        return (self._first_bit + len(self.field_serializers) + 7) // 8

    @property
    def _first_bit(self) -> int:
        return KIND_BITS if self.supports_row_kind else 0

    def _bit(self, index: int) -> int:
        """Returns the bit of a field in the mask as a number."""
        return 1 << (self.mask_length * 8 - 1 - self._first_bit - index)

    @property
    def _kind_shift(self) -> int:
        return self.mask_length * 8 - KIND_BITS

    @property
    def minimum_length(self) -> int:
        return self.mask_length

    @property
    def is_immutable_type(self) -> bool:
        return all(part.is_immutable_type for part in self.field_serializers)

    def configuration(self) -> Hashable:
        return self.field_serializers, self.field_names, self.supports_row_kind

    def create_instance(self) -> Row:
        return self._row([None] * len(self.field_serializers), RowKind.INSERT)

    def copy(self, value: Row) -> Row:
        parts = zip(self.field_serializers, self.ordered_fields(value), strict=True)
        return self._row([None if item is None else part.copy(item) for part, item in parts], value.kind)

    def duplicate(self) -> RowSerializer:
        parts = [part.duplicate() for part in self.field_serializers]
        if all(new is old for new, old in zip(parts, self.field_serializers, strict=True)):
            return self
        return RowSerializer(parts, self.field_names, supports_row_kind=self.supports_row_kind)

    def ordered_fields(self, value: Any) -> tuple[Any, ...]:
        """Returns the fields in serializer order; raises `TypeError` or `ValueError` if they do not match."""
        if not isinstance(value, Row):
            raise TypeError("is not a Row")
        if value.names is not None and value.names != self.field_names:
            if self.field_names is None:
                raise ValueError("has names, but the serializer was made without field_names")
            unknown = [name for name in value.names if name not in self.field_names]
            if unknown:
                raise ValueError(f"has the fields {', '.join(unknown)}, known are {', '.join(self.field_names)}")
            by_name = value.as_dict()
            return tuple([by_name.get(name) for name in self.field_names])
        if len(value.fields) != len(self.field_serializers):
            raise ValueError(f"has {len(value.fields)} fields, not {len(self.field_serializers)}")
        return value.fields

    def _row(self, fields: Sequence[Any], kind: RowKind) -> Row:
        return Row(*fields, kind=kind, names=self.field_names)

    def write_to(self, value: Row, out: DataOutputView) -> None:
        fields = self.ordered_fields(value)
        mask = sum(self._bit(index) for index, item in enumerate(fields) if item is None)
        if self.supports_row_kind:
            mask |= _BITS_OF_KIND[value.kind] << self._kind_shift
        out.write(mask.to_bytes(self.mask_length, "big"))
        for part, item in zip(self.field_serializers, fields, strict=True):
            if item is not None:
                part.serialize(item, out)

    def read_from(self, source: DataInputView) -> Row:
        mask = int.from_bytes(source.read(self.mask_length), "big")
        kind = _KIND_OF_BITS[mask >> self._kind_shift] if self.supports_row_kind else RowKind.INSERT
        fields = [
            None if mask & self._bit(index) else part.deserialize(source)
            for index, part in enumerate(self.field_serializers)
        ]
        return self._row(fields, kind)

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        mask = function.fresh("mask")
        items = [function.fresh("x") for _ in self.field_serializers]
        ordered = f"{function.bind('ordered_fields', self.ordered_fields)}({value})"
        emitter.line(f"{', '.join(items)}, = {ordered}" if items else ordered)
        if self.supports_row_kind:
            emitter.line(f"{mask} = {function.bind('kinds', _BITS_OF_KIND)}[{value}.kind] << {self._kind_shift}")
        else:
            emitter.line(f"{mask} = 0")
        emitter.append(f"{mask}.to_bytes({self.mask_length}, 'big')")
        for index, (part, item) in enumerate(zip(self.field_serializers, items, strict=True)):
            encoded = function.fresh("b")
            present = emitter.child()
            part.emit_write(present, item)
            present.line(f"{encoded} = {present.expression()}")
            emitter.line(f"if {item} is None: {mask} |= {self._bit(index)}; {encoded} = b''")
            emitter.line("else:")
            emitter.lines += indented(present.lines)
            emitter.append(encoded)

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        mask, row = function.fresh("mask"), function.bind("row", self._row)
        # Unlike an unpacked number, a slice may be short at the end of the data.
        first = [emitter.fixed("B") for _ in range(self.mask_length)]
        shifted = " | ".join(f"{byte} << {8 * place}" for place, byte in enumerate(reversed(first)))
        emitter.line(f"{mask} = {shifted or 0}")
        items = []
        for index, part in enumerate(self.field_serializers):
            item = function.fresh("x")
            present = emitter.child()
            expression = part.emit_read(present)
            present.line(f"{item} = {expression}")
            emitter.line(f"if {mask} & {self._bit(index)}: {item} = None")
            emitter.block("else:", present)
            items.append(item)
        kind = function.bind("insert", RowKind.INSERT)
        if self.supports_row_kind:
            kind = f"{function.bind('kinds', _KIND_OF_BITS)}[{mask} >> {self._kind_shift}]"
        return f"{row}(({''.join(item + ', ' for item in items)}), {kind})"

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            fields = self.ordered_fields(value)
        except (TypeError, ValueError) as error:
            yield misfit(path, value, error)
            return
        if self.supports_row_kind and value.kind not in _BITS_OF_KIND:
            yield misfit(f"{path}.kind", value.kind, "is not a RowKind")
        for index, (part, item) in enumerate(zip(self.field_serializers, fields, strict=True)):
            if item is not None:
                where = f"[{index}]" if self.field_names is None else f".{self.field_names[index]}"
                yield from part.problems(item, path + where)

    def snapshot_configuration(self) -> RowSerializerSnapshot:
        return RowSerializerSnapshot(self)

    def __repr__(self) -> str:
        names = "" if self.field_names is None else f", field_names={list(self.field_names)!r}"
        kind = "" if self.supports_row_kind else ", supports_row_kind=False"
        return f"RowSerializer([{', '.join(map(repr, self.field_serializers))}]{names}{kind})"


@register_snapshot(nested_snapshot(RUNTIME, "RowSerializer"))
class RowSerializerSnapshot(CompositeTypeSerializerSnapshot[Row, RowSerializer]):
    """Outer configuration: whether rows have a kind. Version 3 always had one, earlier versions never."""

    current_outer_version = 4
    outer_serializer_class = RowSerializer

    FIRST_VERSION_WITH_KIND: Final = 3
    FIRST_VERSION_WITH_CHOICE: Final = 4

    supports_row_kind = True

    _field_names: tuple[str, ...] | None = None
    """Not stored; used so that a reconfigured serializer has the names of the new one."""

    def nested_serializers(self, outer: RowSerializer) -> Sequence[TypeSerializer[Any]]:
        return outer.field_serializers

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> RowSerializer:
        return RowSerializer(nested, self._field_names, supports_row_kind=self.supports_row_kind)

    def take_outer_snapshot(self, serializer: RowSerializer) -> None:
        self.supports_row_kind = serializer.supports_row_kind
        self._field_names = serializer.field_names

    def write_outer_snapshot(self, out: DataOutputView) -> None:
        out.write_boolean(self.supports_row_kind)

    def read_outer_snapshot(self, read_outer_version: int, source: DataInputView) -> None:
        if read_outer_version >= self.FIRST_VERSION_WITH_CHOICE:
            self.supports_row_kind = source.read_boolean()
        else:
            self.supports_row_kind = read_outer_version >= self.FIRST_VERSION_WITH_KIND

    def resolve_outer_schema_compatibility(self, new_serializer: RowSerializer) -> Sequence[CompatibilityIssue]:
        if new_serializer.supports_row_kind == self.supports_row_kind:
            return ()
        if new_serializer.supports_row_kind:
            reason = "old rows have no kind; each becomes an INSERT"
            return (CompatibilityIssue("", FieldCompatibility.MIGRATE, "row-kind-added", reason),)
        reason = "rows no longer have a kind, so deletions and updates become indistinguishable from insertions"
        fix = "Keep supports_row_kind=True if the state holds a changelog"
        return (CompatibilityIssue("", FieldCompatibility.LOSSY, "row-kind-removed", reason, fix),)
