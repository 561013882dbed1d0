"""The conversion of POJOs: the kind of object first, then field by field, and each subclass by its own name.

An old subclass is converted to the new serializer's subclass of the same Java name. One that the new serializer does
not know keeps its old form, and is written as an unregistered subclass.

A user's converter inside a migration: what it raises and what it returns is told with its name.

A record through the converters of its class: from the schema version it was written under to the present one.

Each converter gets the values of the fields by name, in a dict of its own, and returns those of the next version.
Records inside are objects with the attributes they had; they need not be of any class that still exists. What comes
out of the last converter is completed by the rules:

* a value that no converter replaced, under its old name or one that declares it as former, is converted as it would
  have been without converters (widened, nested records evolved);
* a value that a converter made must fit the new field as it is;
* an absent field gets its default;
* a name that the record has not, and that was no field of the old record either, is a mistake and rejected.

The conversion into a `ConvertingSerializer`: to its inner serializer, by the rules or through a converter.

The conversion of a record inside itself: a call of the conversion of the record, looked up when it runs.

Each record that is converted is known by its name to what is inside it (`ConversionScope.inside`), as one migration, to
which its own generated code refers.

The conversion of records: field by field, or through the converters of the class.

Each old field is converted to the new one that the plan says goes on from it; removed fields are stepped over; added
ones get their default, from the factory for each record again. Where the class has converters between the two schema
versions, the whole record goes through `migration.record_conversions` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import frozen

from migration.conversion import (
    AsIsConversion,
    Conversion,
    ConversionScope,
    Part,
    Read,
    RequiredPartSerializer,
    Write,
    compile_transcoding,
    compile_value,
    emit_part_value,
    passed_through,
)
from snapshots.compatibility import AS_IS, Plan
from snapshots.data_views import DataInputView
from snapshots.errors import MalformedDataError, shown
from typeserializers.containers.converting import ConvertingSerializer
from typeserializers.evolution.plans import (
    ConverterPlan,
    FieldConverterPlan,
    InnerPlan,
    PojoPlan,
    RecordConvertersPlan,
    RecordPlan,
    ReferencePlan,
)
from typeserializers.evolution.record_evolution import ambiguous_rename, match_fields
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.record_families import name_of
from typeserializers.kernel.stepping_over import stepping_over
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojo_serializer import (
    EXACT_CLASS,
    NULL,
    REGISTERED_SUBCLASS,
    UNREGISTERED_SUBCLASS,
    PojoSerializer,
)
from typeserializers.pojos.pojo_shape import PojoField
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.records.record_shape import RecordField


def fitted_by(
    converter: Callable[[Any], Any], serializer: TypeSerializer[Any], *, is_required: bool = False
) -> Callable[[Any], Any]:
    """The converter, followed by the serializer that its result must fit.

    With ``is_required`` None does not fit, although the serializer would write it. Raises `MalformedDataError` with the
    name of the converter, the old value, and what it returned or raised.
    """
    fitted = passed_through(serializer)

    def convert(value: Any) -> Any:
        try:
            converted = converter(value)
        except Exception as error:
            raise MalformedDataError(
                f"the converter {name_of(converter)} raised {type(error).__name__}: {error}"
            ) from error
        if converted is None and is_required:
            raise MalformedDataError(f"the converter {name_of(converter)} returned None, but it is not optional")
        try:
            return fitted(converted)
        except Exception as error:
            raise MalformedDataError(
                f"the converter {name_of(converter)} returned {shown(converted)}, which does not fit: {error}"
            ) from error

    return convert


@frozen
class _Returned:
    """A name that the old record does not have."""

    name: str
    former_names: tuple[str, ...] = ()


class ConverterChain:
    """The converters between the schema versions of two record serializers, and the rules behind them."""

    def __init__(
        self,
        scope: ConversionScope,
        plan: RecordConvertersPlan,
        old: AttrsSerializer[Any],
        new: AttrsSerializer[Any],
    ) -> None:
        self._scope = scope
        self.plan = plan
        self.new = new
        self._old_fields = {part.name: part for part in old.fields}
        self.old_serializers = {part.name: part.serializer for part in old.fields}
        self._fitted = {part.name: passed_through(part.serializer) for part in new.fields}
        self._by_rules: dict[tuple[str, str], Callable[[Any], Any]] = {}
        self._origins: dict[tuple[str, ...], Mapping[str, str]] = {}

    def convert(self, items: Sequence[Any]) -> list[Any]:
        """The values of the new fields, in order, from those of the old fields."""
        original = dict(zip(self.old_serializers, items, strict=True))
        values: Mapping[str, Any] = dict(original)
        for version, converter in self.plan.steps:
            try:
                values = converter(dict(values))
            except Exception as error:
                raise MalformedDataError(
                    f"the converter {name_of(converter)} of version {version} raised {type(error).__name__}: {error}"
                ) from error
            if not isinstance(values, Mapping):
                raise MalformedDataError(
                    f"the converter {name_of(converter)} of version {version} must return the fields of the next "
                    f"version by name, not {type(values).__name__}"
                )
        names = {name for part in self.new.fields for name in (part.name, *part.former_names)}
        strange = sorted(name for name in values if name not in names and name not in original)
        if strange:
            raise MalformedDataError(
                f"the converters return {', '.join(strange)}, which {self.new.shape.name} does not have"
            )
        origins = self._origins_among(tuple(values))
        return [self._field(part, origins.get(part.name), values, original) for part in self.new.fields]

    def _origins_among(self, names: tuple[str, ...]) -> Mapping[str, str]:
        """The names under which the converters return the new fields, matched as the fields of an old record are."""
        known = self._origins.get(names)
        if known is None:
            returned = [self._old_fields.get(name) or _Returned(name) for name in names]
            matches = match_fields(returned, self.new.fields)
            for match in matches:
                if match.disputed:
                    reason, fix = ambiguous_rename(match)
                    raise MalformedDataError(f".{match.new.name}: {reason}. {fix}")
            known = {match.new.name: names[match.old_index] for match in matches if match.old_index is not None}
            self._origins[names] = known
        return known

    def _field(
        self, part: RecordField, name: str | None, values: Mapping[str, Any], original: Mapping[str, Any]
    ) -> Any:
        if name is not None:
            value = values[name]
            if name in original and value is original[name]:
                return self._converted_by_rules(name, part)(value)
            return self._fitting(part)(value)
        if part.has_default:
            return part.serializer.copy(part.make_default())
        raise MalformedDataError(
            f".{part.name}: the converters return no value for it and it has no default; return one, or give it one"
        )

    def _converted_by_rules(self, name: str, part: RecordField) -> Callable[[Any], Any]:
        known = self._by_rules.get((name, part.name))
        if known is None:
            plan = self.plan.untouched.get((name, part.name))
            if plan is None:
                known = self._fitting(part)
            else:
                old = self.old_serializers[name]
                encode, read = old.codec.write, compile_value(self._scope.conversion(plan, old, part.serializer))
                known = _through(encode, read)
            self._by_rules[name, part.name] = known
        return known

    def _fitting(self, part: RecordField) -> Callable[[Any], Any]:
        fitted = self._fitted[part.name]

        def fit(value: Any) -> Any:
            if value is None and not part.serializer.is_optional_type:
                raise MalformedDataError(f".{part.name}: the converters return None, but the field is not optional")
            try:
                return fitted(value)
            except Exception as error:
                raise MalformedDataError(f".{part.name}: {error}") from error

        return fit


def _through(encode: Callable[[Any], bytes], read: Read) -> Callable[[Any], Any]:
    return lambda value: read(encode(value), 0)[0]


class InnerConversion(Conversion):
    """What the inner serializer may take over by itself."""

    plan: InnerPlan
    new: ConvertingSerializer[Any]

    def _inner(self) -> Conversion:
        return self.scope.conversion(self.plan.inner, self.old, self.new.inner)

    def emit_value(self, reader: ReadEmitter) -> str:
        return emit_part_value(self._inner(), reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        return self._inner().emit_transcoding(reader)

    @property
    def reads_old_whole(self) -> bool:
        return self._inner().reads_old_whole

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._inner(), position


class ConverterConversion(Conversion):
    """What the source of a converter reads goes through its function."""

    plan: ConverterPlan
    new: ConvertingSerializer[Any]

    def _source(self) -> Conversion:
        return self.scope.conversion(self.plan.source, self.old, self.plan.converter.source)

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        convert = reader.function.bind("convert", fitted_by(self.plan.converter.function, self.new.inner))
        value = emit_part_value(self._source(), reader)
        reader.line(f"{result} = {convert}({value})")
        return result

    @property
    def reads_old_whole(self) -> bool:
        return self._source().reads_old_whole

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._source(), position


class RecursiveMigration:
    """The two functions of the conversion of a record, compiled when the first value inside a value is met."""

    def __init__(self, conversion: Conversion) -> None:
        self.conversion = conversion
        self._read: Read | None = None
        self._transcode: Read | None = None

    def read(self, data: bytes, position: int) -> tuple[Any, int]:
        """The new value of an old one inside the data."""
        if self._read is None:
            self._read = compile_value(self.conversion)
        return self._read(data, position)

    def transcode(self, data: bytes, position: int) -> tuple[Any, int]:
        """The new bytes of an old value inside the data."""
        if self._transcode is None:
            self._transcode = compile_transcoding(self.conversion)
        return self._transcode(data, position)


class ReferenceConversion(Conversion):
    """The record that is meant, converted as it is around the reference."""

    plan: ReferencePlan

    def _record(self) -> RecursiveMigration:
        record: RecursiveMigration = self.scope.record_named(self.plan.name)
        return record

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._record().conversion, position

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        record = reader.function.bind("record", self._record())
        reader.line(f"{result}, pos = {record}.read(data, pos)")
        return result

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        encoded = reader.function.fresh("b")
        record = reader.function.bind("record", self._record())
        reader.line(f"{encoded}, pos = {record}.transcode(data, pos)")
        return lambda writer: writer.append(encoded)


class RecordConversion(Conversion):
    """One record class, or what it became, field by field."""

    plan: RecordPlan
    old: AttrsSerializer[Any]
    new: AttrsSerializer[Any]

    @cached_property
    def _inside(self) -> ConversionScope:
        return self.scope.inside(self.old.shape.name, RecursiveMigration(self))

    def _successors(self) -> dict[int, tuple[RecordField, Conversion]]:
        """By the index of an old field the new one that goes on from it."""
        return {
            origin.index: (part, field_conversion(self._inside, origin.plan, self.old.fields[origin.index], part))
            for part, origin in zip(self.new.fields, self.plan.origins, strict=True)
            if origin is not None
        }

    def emit_value(self, reader: ReadEmitter) -> str:
        successors = self._successors()
        values: dict[str, str] = {}
        for index, part in enumerate(self.old.fields):
            successor = successors.get(index)
            if successor is None:
                stepping_over(part.serializer).emit_read(reader)
                continue
            new, conversion = successor
            values[new.name] = emit_part_value(conversion, reader)
        arguments = [
            values[part.name] if part.name in values else _default_expression(reader, part) for part in self.new.fields
        ]
        return self.new.emit_construction(reader, arguments)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        successors = self._successors()
        writes: dict[str, Write] = {}
        for index, part in enumerate(self.old.fields):
            successor = successors.get(index)
            if successor is None:
                stepping_over(part.serializer).emit_read(reader)
            else:
                new, conversion = successor
                writes[new.name] = conversion.emit_transcoding(reader)

        def write_record(writer: WriteEmitter) -> None:
            for part in self.new.fields:
                write = writes.get(part.name)
                if write is not None:
                    write(writer)
                elif part.default_factory is not None:
                    made = writer.once(f"{writer.function.bind('factory', part.default_factory)}()")
                    if part.rejects_none:
                        reject = writer.function.bind("reject_made", _reject_made)
                        writer.line(f"if {made} is None: {reject}({part.name!r})")
                    part.serializer.emit_write(writer, made)
                else:
                    writer.append(repr(part.serializer.to_bytes(part.make_default())))

        return write_record

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        successors = self._successors()
        for index, part in enumerate(self.old.fields):
            successor = successors.get(index)
            if successor is not None:
                yield f".{successor[0].name}", successor[1], position
            _, position = stepping_over(part.serializer).codec.read(data, position)


class RecordConvertersConversion(Conversion):
    """A record whose class has converters between the two schema versions: they get the values of all its fields."""

    plan: RecordConvertersPlan
    old: AttrsSerializer[Any]
    new: AttrsSerializer[Any]

    @cached_property
    def _inside(self) -> ConversionScope:
        return self.scope.inside(self.old.shape.name, RecursiveMigration(self))

    def emit_value(self, reader: ReadEmitter) -> str:
        chain = ConverterChain(self._inside, self.plan, self.old, self.new)
        convert = reader.function.bind("converted", chain.convert)
        items = [part.serializer.emit_read(reader) for part in self.old.fields]
        result = reader.function.fresh("v")
        reader.line(f"{result} = {convert}([{', '.join(items)}])")
        arguments = [f"{result}[{index}]" for index in range(len(self.new.fields))]
        return self.new.emit_construction(reader, arguments)

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        for part in self.old.fields:
            yield f".{part.name}", AsIsConversion(self._inside, AS_IS, part.serializer, part.serializer), position
            _, position = stepping_over(part.serializer).codec.read(data, position)


class ConvertedFieldConversion(Conversion):
    """The function in the field's metadata; what it returns must fit."""

    plan: FieldConverterPlan

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        fitted = fitted_by(self.plan.converter, self.new, is_required=self.plan.is_required)
        convert = reader.function.bind("convert", fitted)
        value = self.old.emit_read(reader)
        reader.line(f"{result} = {convert}({value})")
        return result

    @property
    def reads_old_whole(self) -> bool:
        return True


def field_conversion(scope: ConversionScope, plan: Plan, old: RecordField, new: RecordField) -> Conversion:
    """The conversion of a field; a null that it did not mean is rejected, though its serializer reads one."""
    reading: TypeSerializer[Any] = old.serializer
    if old.rejects_none:
        reading = RequiredPartSerializer(old.serializer, old.name)
    return scope.conversion(plan, reading, new.serializer)


def _reject_made(name: str) -> None:
    raise MalformedDataError(f".{name}: its factory made None, but the field is not optional")


def _default_expression(reader: ReadEmitter, part: RecordField) -> str:
    if part.default_factory is not None:
        return f"{reader.function.bind('factory', part.default_factory)}()"
    if part.serializer.is_immutable_type:
        return reader.function.bind("default", part.default)
    copy = reader.function.bind("copy", part.serializer.copy)
    return f"{copy}({reader.function.bind('default', part.default)})"


class PojoConversion(Conversion):
    """Fields by the plan; removed ones are stepped over, added ones get their default."""

    plan: PojoPlan
    old: PojoSerializer[Any]
    new: PojoSerializer[Any]

    def _successors(self) -> dict[int, tuple[PojoField, Conversion]]:
        """By the index of an old field the new one that goes on from it."""
        return {
            origin.index: (
                part,
                self.scope.conversion(origin.plan, self.old.fields[origin.index].serializer, part.serializer),
            )
            for part, origin in zip(self.new.fields, self.plan.origins, strict=True)
            if origin is not None
        }

    def emit_value(self, reader: ReadEmitter) -> str:
        function = reader.function
        flags, result = reader.fixed("B"), function.fresh("v")
        exact = reader.child()
        arguments = self._emit_fields(exact)
        exact.line(f"{result} = {self.new.emit_construction(exact, arguments)}")
        reader.block(f"if {flags} == {EXACT_CLASS}:", exact)
        other = function.bind("read_other", OtherPojos(self.scope, self.plan, self.old, self.new).read)
        reader.line(f"else: {result}, pos = {other}(data, pos, {flags})")
        return result

    def _emit_fields(self, reader: ReadEmitter) -> list[str]:
        successors = self._successors()
        values: dict[str, str] = {}
        for index, part in enumerate(self.old.fields):
            successor = successors.get(index)
            is_null, item = reader.fixed("?"), reader.function.fresh("x")
            present = reader.child()
            if successor is None:
                stepping_over(part.serializer).emit_read(present)
                reader.block(f"if not {is_null}:", present)
                continue
            new, conversion = successor
            present.line(f"{item} = {emit_part_value(conversion, present)}")
            reader.line(f"if {is_null}: {item} = {self._null(reader, new)}")
            reader.block("else:", present)
            values[new.name] = item
        for part in self.new.fields:
            if part.name not in values:
                values[part.name] = f"{reader.function.bind('default', fresh_default(part))}()"
        return [values[part.name] for part in self.new.fields]

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        flags, position = data[position], position + 1
        if flags != EXACT_CLASS:
            return
        successors = self._successors()
        for index, part in enumerate(self.old.fields):
            successor, is_null = successors.get(index), data[position]
            position += 1
            if is_null:
                continue
            if successor is not None:
                yield f".{successor[0].name}", successor[1], position
            _, position = stepping_over(part.serializer).codec.read(data, position)

    def _null(self, reader: ReadEmitter, new: PojoField) -> str:
        if new.is_optional:
            return "None"
        return f"{reader.function.bind('reject', _reject_null)}({new.name!r})"


class OtherPojos:
    """What is not exactly the class: nulls and subclasses."""

    def __init__(
        self, scope: ConversionScope, plan: PojoPlan, old: PojoSerializer[Any], new: PojoSerializer[Any]
    ) -> None:
        self._scope = scope
        self.plan = plan
        self.old = old
        self.new = new
        self._reads: dict[str, Read] = {}

    def read(self, data: bytes, position: int, flags: int) -> tuple[Any, int]:
        """The new value of the object whose kind was read."""
        if flags == NULL:
            return None, position
        source = DataInputView(data, position)
        subclass: PojoSerializer[Any] | None = None
        if flags == REGISTERED_SUBCLASS:
            tag = source.read_unsigned_byte()
            if tag < len(self.old.registered_subclasses):
                subclass = self.old.registered_subclasses[tag]
        elif flags == UNREGISTERED_SUBCLASS:
            subclass = self.old.subclass_named(source.read_utf())
        if subclass is None:
            raise MalformedDataError(f"{self.old!r}: the kind of object before byte {position} is not known here")
        read = self._reads.get(subclass.shape.name)
        if read is None:
            read = self._reads[subclass.shape.name] = self._compiled(subclass)
        return read(data, source.position)

    def _compiled(self, subclass: PojoSerializer[Any]) -> Read:
        name = subclass.shape.name
        new = self.new.subclass_named(name) or self.new.keep_subclass(subclass)
        # One that the snapshot does not name was found by the old serializer in this program, as it is here.
        return compile_value(self._scope.conversion(self.plan.subclasses.get(name, AS_IS), subclass, new))


def fresh_default(part: PojoField) -> Any:
    """A function that makes the value of an added field, for each object again."""

    def make() -> Any:
        value = part.make_default()
        return None if value is None else part.serializer.copy(value)

    return make


def _reject_null(name: str) -> None:
    raise MalformedDataError(f".{name} is null in the state, but is not optional")
