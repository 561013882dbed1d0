"""Conversions of records and POJOs, and the calls of user-defined converters.

A record is converted field by field. The plan says which old field each new field continues; removed fields are
skipped, and added fields get their default, from the factory for each record. A record inside itself calls the
conversion of the enclosing record, looked up at run time (`ConversionScope.inside`).

If the class has converters between the two schema versions, the whole record goes through them. Each converter gets
the field values by name, in a dict of its own, and returns those of the next version. Nested records are objects with
their old attributes and need no class that still exists. The rules complete the result of the last converter:

* A value that no converter replaced, under its old name or a declared former name, is converted by the rules.
* A value that a converter returned must fit the new field unchanged.
* An absent field gets its default.
* A name that neither the new nor the old record has is rejected.

A POJO starts with the kind of object. An old subclass becomes the new serializer's subclass of the same Java name. An
unknown subclass keeps its old form and is written as an unregistered subclass.
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
    round_trip,
)
from snapshots.compatibility import AS_IS, Plan
from snapshots.data_views import DataInputView
from snapshots.errors import MalformedDataError, format_value
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
    """Returns a function that calls the converter and checks that its result fits the serializer.

    With ``is_required``, None does not fit. The function raises `MalformedDataError` with the name of the converter and
    what it returned or raised.
    """
    fitted = round_trip(serializer)

    def convert(value: Any) -> Any:
        try:
            converted = converter(value)
        except Exception as error:
            raise MalformedDataError(
                f"the converter {name_of(converter)} raised {type(error).__name__}: {error}"
            ) from error
        if converted is None and is_required:
            raise MalformedDataError(f"the converter {name_of(converter)} returned None, but the field is not optional")
        try:
            return fitted(converted)
        except Exception as error:
            raise MalformedDataError(
                f"the converter {name_of(converter)} returned {format_value(converted)}, which does not fit: {error}"
            ) from error

    return convert


@frozen
class _Returned:
    """A name that the old record does not have."""

    name: str
    former_names: tuple[str, ...] = ()


class ConverterChain:
    """The converters between the schema versions of two record serializers, then the rules."""

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
        self._fitted = {part.name: round_trip(part.serializer) for part in new.fields}
        self._by_rules: dict[tuple[str, str], Callable[[Any], Any]] = {}
        self._origins: dict[tuple[str, ...], Mapping[str, str]] = {}

    def convert(self, items: Sequence[Any]) -> list[Any]:
        """Returns the values of the new fields, in order, from those of the old fields."""
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
        unknown = sorted(name for name in values if name not in names and name not in original)
        if unknown:
            raise MalformedDataError(
                f"the converters return {', '.join(unknown)}, which {self.new.shape.name} does not have: remove it"
            )
        origins = self._origins_among(tuple(values))
        return [self._field(part, origins.get(part.name), values, original) for part in self.new.fields]

    def _origins_among(self, names: tuple[str, ...]) -> Mapping[str, str]:
        """Matches the names that the converters return with the new fields, as the fields of an old record are."""
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
            f".{part.name}: the converters return no value, and the field has no default: return one or add one"
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
    """Converts to the inner serializer by the rules."""

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
    """Reads by the source of a converter and calls its function."""

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
    """The two functions of a record's conversion, compiled when the first nested value is read."""

    def __init__(self, conversion: Conversion) -> None:
        self.conversion = conversion
        self._read: Read | None = None
        self._transcode: Read | None = None

    def read(self, data: bytes, position: int) -> tuple[Any, int]:
        """Returns the new value of a nested old value, and its end."""
        if self._read is None:
            self._read = compile_value(self.conversion)
        return self._read(data, position)

    def transcode(self, data: bytes, position: int) -> tuple[Any, int]:
        """Returns the new bytes of a nested old value, and its end."""
        if self._transcode is None:
            self._transcode = compile_transcoding(self.conversion)
        return self._transcode(data, position)


class ReferenceConversion(Conversion):
    """Calls the conversion of the enclosing record."""

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
    """Converts a record field by field."""

    plan: RecordPlan
    old: AttrsSerializer[Any]
    new: AttrsSerializer[Any]

    @cached_property
    def _inside(self) -> ConversionScope:
        return self.scope.inside(self.old.shape.name, RecursiveMigration(self))

    def _successors(self) -> dict[int, tuple[RecordField, Conversion]]:
        """Returns, by old field index, the new field that continues it and its conversion."""
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
                        reject = writer.function.bind("reject_factory_none", _reject_factory_none)
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
    """Converts a record through the converters of its class."""

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
    """Calls the converter in the field's metadata; its result must fit."""

    plan: FieldConverterPlan
    reads_old_whole = True

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        fitted = fitted_by(self.plan.converter, self.new, is_required=self.plan.is_required)
        convert = reader.function.bind("convert", fitted)
        value = self.old.emit_read(reader)
        reader.line(f"{result} = {convert}({value})")
        return result


def field_conversion(scope: ConversionScope, plan: Plan, old: RecordField, new: RecordField) -> Conversion:
    """Creates the conversion of a field; a null in a field that is not optional is rejected."""
    reading: TypeSerializer[Any] = old.serializer
    if old.rejects_none:
        reading = RequiredPartSerializer(old.serializer, old.name)
    return scope.conversion(plan, reading, new.serializer)


def _reject_factory_none(name: str) -> None:
    raise MalformedDataError(f".{name}: its default factory returned None, but the field is not optional")


def _default_expression(reader: ReadEmitter, part: RecordField) -> str:
    if part.default_factory is not None:
        return f"{reader.function.bind('factory', part.default_factory)}()"
    if part.serializer.is_immutable_type:
        return reader.function.bind("default", part.default)
    copy = reader.function.bind("copy", part.serializer.copy)
    return f"{copy}({reader.function.bind('default', part.default)})"


class PojoConversion(Conversion):
    """Converts a POJO: removed fields are skipped, added ones get their default."""

    plan: PojoPlan
    old: PojoSerializer[Any]
    new: PojoSerializer[Any]

    def _successors(self) -> dict[int, tuple[PojoField, Conversion]]:
        """Returns, by old field index, the new field that continues it and its conversion."""
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
        other = function.bind("read_other", NullsAndSubclasses(self.scope, self.plan, self.old, self.new).read)
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
                values[part.name] = f"{reader.function.bind('default', default_factory_of(part))}()"
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


class NullsAndSubclasses:
    """Reads POJOs that are null or of a subclass."""

    def __init__(
        self, scope: ConversionScope, plan: PojoPlan, old: PojoSerializer[Any], new: PojoSerializer[Any]
    ) -> None:
        self._scope = scope
        self.plan = plan
        self.old = old
        self.new = new
        self._reads: dict[str, Read] = {}

    def read(self, data: bytes, position: int, flags: int) -> tuple[Any, int]:
        """Returns the new value of an object after its kind was read."""
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
            raise MalformedDataError(
                f"{self.old!r}: unknown kind of object before byte {position}: the bytes are damaged"
            )
        read = self._reads.get(subclass.shape.name)
        if read is None:
            read = self._reads[subclass.shape.name] = self._compiled(subclass)
        return read(data, source.position)

    def _compiled(self, subclass: PojoSerializer[Any]) -> Read:
        name = subclass.shape.name
        new = self.new.subclass_named(name) or self.new.keep_subclass(subclass)
        # The old serializer found a subclass that the snapshot does not name in this program; so does the new one.
        return compile_value(self._scope.conversion(self.plan.subclasses.get(name, AS_IS), subclass, new))


def default_factory_of(part: PojoField) -> Any:
    """Returns a function that creates the value of an added field for each object."""

    def make() -> Any:
        value = part.make_default()
        return None if value is None else part.serializer.copy(value)

    return make


def _reject_null(name: str) -> None:
    raise MalformedDataError(f".{name} is null in the state, but is not optional")
