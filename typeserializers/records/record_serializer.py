"""Records: classes of any family (`typeserializers.kernel.record_families`), the serializer that evolves.

    record := field*        in the order of the class, each as its own serializer writes it

The bytes carry no names: names, former names, defaults and the schema version are in the snapshot
(`typeserializers.records.record_format`). A field is optional exactly if its serializer is (`float | None` is a
`NullableSerializer`); None in any other field is rejected. The rules of evolution are in
`typeserializers.evolution.record_evolution`.

A rename is declared on the field, and stays declared for as long as state of the old name may exist:

    @attrs.frozen
    class Aircraft:
        minutes_late: float = attrs.field(default=0.0, metadata=former_names("late"))

What no rule covers is left to converters, each from one schema version to the next:

    AttrsSerializer(Aircraft, schema_version=3, converters={1: minutes_from_seconds, 2: split_route})

Making records faster than their own ``__init__`` does, where that cannot be told apart.

The generated ``__init__`` of a frozen class sets every field through ``object.__setattr__``, which costs more than
reading the whole record. If it does nothing else (no validators, no converters, no hooks before or after), the fields
can be set directly: on the object itself if the class allows it, else on an instance of a *twin*, a subclass without
fields of its own whose only difference is that it can be set, and which then becomes an instance of the class. Where
any condition fails, the class is called as ever.

What a class must keep to be a record: that its objects can be made again from their fields, and its defaults fit.

A class that breaks it would be written without complaint and fail, or come back as something else, when it is read. So
it is rejected when its serializer is made, with the field and what to do.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import inspect
import keyword
import unicodedata
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, Final, TypeVar

import attrs

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError, SnapshotFormatError, UnresolvableSerializerError, misfit, shown
from snapshots.type_serializer_snapshot import RuledTypeSerializerSnapshot, TypeSerializerSnapshot
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import known_of
from typeserializers.kernel.record_families import RecordConverter
from typeserializers.kernel.references import bind_references, collected_references, rebound, refers_to
from typeserializers.kernel.serializer_inference import DEFAULT_RULES, Inference, InferenceRules, UnknownTypeError
from typeserializers.kernel.stepping_over import SteppedOverParts
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import exact_parts, size_of_parts
from typeserializers.records.record_format import (
    NEWEST_VERSION,
    WrittenRecord,
    decoded_default,
    is_field_name,
    merged_record,
    read_record,
    version_for,
    write_record,
    written_record,
)
from typeserializers.records.record_shape import RecordField, RecordShape, shape_of

_HOOKS = ("__attrs_pre_init__", "__attrs_post_init__", "__post_init__", "__attrs_init__")
_CACHED_HASH = "_attrs_cached_hash"


def settable_twin(record_class: type) -> type | None:
    """What to make and set the fields of: the class itself, a twin of it, or None if only a call will do."""
    plain: Any = object
    made_by, set_by = getattr(record_class, "__new__", None), getattr(record_class, "__setattr__", None)
    if type(record_class) is not type or made_by is not plain.__new__:
        return None
    if any("__init_subclass__" in base.__dict__ for base in record_class.__mro__[:-1]):
        return None
    if any(hasattr(record_class, name) for name in (*_HOOKS, _CACHED_HASH)) or not _only_sets_fields(record_class):
        return None
    if set_by is plain.__setattr__:
        return record_class
    twin = type(
        record_class.__name__,
        (record_class,),
        {
            "__slots__": (),
            "__module__": record_class.__module__,
            # Both, because one slot of the type serves both, and one of them written in Python would make it slow.
            "__setattr__": object.__setattr__,
            "__delattr__": object.__delattr__,
        },
    )
    try:
        made: Any = object.__new__(twin)
        made.__class__ = record_class
    except TypeError:
        return None
    return twin


class StandIn:
    """What a record of a class that is not there is an instance of: equal by its fields, and shown with them.

    The methods that attrs would generate take time to compile that grows with the square of the number of fields.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return _values_of(self) == _values_of(other)

    def __hash__(self) -> int:
        return hash((type(self), _values_of(self)))

    def __repr__(self) -> str:
        names = [part.name for part in attrs.fields(type(self))]  # type: ignore[arg-type]
        values = zip(names, _values_of(self), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values)})"


def _values_of(record: object) -> tuple[Any, ...]:
    return tuple([getattr(record, part.name) for part in attrs.fields(type(record))])  # type: ignore[arg-type]


def stand_in_class(record_name: str, field_names: Sequence[str], default: Any = attrs.NOTHING) -> type:
    """A frozen attrs class of these fields, for reading records whose own class is not there.

    Raises `SnapshotFormatError` for names that one class cannot have.
    """
    class_name = record_name.rpartition(".")[2]
    # Python takes two spellings of a name for one if they differ in compatible characters only.
    names = {unicodedata.normalize("NFKC", name) for name in field_names}
    if len(names) != len(field_names) or any(_is_reserved(name) for name in names):
        raise SnapshotFormatError(
            f"the record {record_name} has fields that no class can have: {', '.join(field_names):.300}; "
            f"the bytes are damaged"
        )
    return attrs.make_class(
        class_name if class_name.isidentifier() and not keyword.iskeyword(class_name) else "Record",
        {name: attrs.field(alias=_argument(name, names), default=default) for name in field_names},
        bases=(StandIn,),
        frozen=True,
        eq=False,
        repr=False,
    )


def arguments_of(stand_in: type) -> tuple[str, ...]:
    """The names of the arguments of a stand-in, in the order of its fields."""
    return tuple(part.alias or part.name for part in attrs.fields(stand_in))


def _argument(name: str, names: Set[str]) -> str:
    """The field's own name, except that a constructor has a ``self`` already."""
    if name == "self":
        while name in names:
            name += "_"
    return name


def _is_reserved(name: str) -> bool:
    """Whether a field of this name would take the place of something that a class needs."""
    return (name.startswith("__") and name.endswith("__")) or keyword.iskeyword(name)


def emit_fields(emitter: ReadEmitter, twin: type, record_class: type, items: list[tuple[str, str]]) -> str:
    """Emits the making of a record from (attribute, expression) pairs; returns the variable that holds it."""
    function = emitter.function
    made = function.fresh("r")
    emitter.line(f"{made} = {function.bind('new', object.__new__)}({function.bind('twin', twin)})")
    for attribute, expression in items:
        emitter.line(f"{made}.{attribute} = {expression}")
    if twin is not record_class:
        emitter.line(f"{made}.__class__ = {function.bind('record_class', record_class)}")
    return made


def _only_sets_fields(record_class: type) -> bool:
    init: Any = record_class.__dict__.get("__init__")
    source = getattr(getattr(init, "__code__", None), "co_filename", "")
    if "__attrs_attrs__" in record_class.__dict__:
        fields = attrs.fields(record_class)
        plain = all(part.validator is None and part.converter is None and part.init for part in fields)
        return plain and source.startswith("<attrs generated") and not issubclass(record_class, BaseException)
    if dataclasses.is_dataclass(record_class):
        # An init-only variable is no field, but an argument of the generated function.
        names = {part.name for part in dataclasses.fields(record_class)}
        arguments = init.__code__.co_varnames[1 : init.__code__.co_argcount + init.__code__.co_kwonlyargcount]
        return source == "<string>" and set(arguments) == names
    return False


def check_shape(shape: RecordShape, where: str) -> None:
    """Raises `UnknownTypeError` for a class that cannot be made again, or whose fields claim one former name."""
    strange = [part.name for part in shape.fields if not is_field_name(part.name)]
    if strange:
        raise UnknownTypeError(
            f"{where}: {', '.join(strange)} cannot be the name of a field: use a name as Python spells it "
            f"(NFKC), which is no keyword and has no two underscores around it"
        )
    _check_construction(shape, where)
    _check_former_names(shape.fields, where)


def check_defaults(shape: RecordShape, where: str) -> None:
    """Raises `UnknownTypeError` for a default that its field cannot hold: old records are completed with it.

    To be called when references to the record are bound, since a default may hold a record of the same class.
    """
    for part in shape.fields:
        if part.has_default:
            _check_default(part, where)


def check_values_are_kept(shape: RecordShape, where: str) -> None:
    """Raises `UnknownTypeError` for a class that makes another object of the fields of an object.

    A constructor may change what it is given, such as strip a text, if it leaves alone what it has made. That is tried
    with a few values; a constructor that rejects all of them is trusted. To be called when references to the record
    are bound.
    """
    if shape.maker is None and settable_twin(shape.record_class) is not None:
        return
    for attempt in range(_ATTEMPTS):
        name = _changed_field(shape, attempt)
        if name is not None:
            raise UnknownTypeError(
                f"{where}.{name}: a {shape.record_class.__name__} that is made of the fields of another has another "
                f"{name}, so that reading would change what was written. Let its constructor, validators and "
                f"converters leave alone what they have made, or move the change into a classmethod"
            )


def _changed_field(shape: RecordShape, attempt: int) -> str | None:
    try:
        first = shape.record_of([_sample(part.serializer, attempt) for part in shape.fields])
        values = [getattr(first, part.name) for part in shape.fields]
        # Before the second one is made: a constructor may also change a list that it is given.
        written = [part.serializer.to_bytes(value) for part, value in zip(shape.fields, values, strict=True)]
        second = shape.record_of(values)
        for part, before in zip(shape.fields, written, strict=True):
            if part.serializer.to_bytes(getattr(second, part.name)) != before:
                return part.name
    except Exception:
        return None
    return None


_SAMPLES: Final[Mapping[type, Sequence[Any]]] = {
    int: (3, 50, 1),
    float: (1.5, 50.0, 1.0),
    str: ("Some text", "ab", "1"),
    bytes: (b"Some bytes", b"ab", b"1"),
    bool: (True, False, True),
    datetime.timedelta: (datetime.timedelta(hours=3), datetime.timedelta(1), datetime.timedelta(seconds=1)),
    decimal.Decimal: (decimal.Decimal("1.5"), decimal.Decimal(50), decimal.Decimal(1)),
}
_ATTEMPTS: Final = 3


def _sample(serializer: TypeSerializer[Any], attempt: int) -> Any:
    """A value that most constructors take and would change if they change any."""
    python_type = serializer.inner.python_type if isinstance(serializer, NullableSerializer) else serializer.python_type
    samples = _SAMPLES.get(python_type)
    return serializer.create_instance() if samples is None else samples[attempt]


def reject_undecorated(record_class: Any, rules: InferenceRules, where: str) -> None:
    """Raises `UnknownTypeError` for a class that only inherits from a record class: its own fields would be lost."""
    if isinstance(record_class, type) and any(family.forgets_fields_of(record_class) for family in rules.families):
        bases = ", ".join(base.__name__ for base in record_class.__bases__)
        raise UnknownTypeError(
            f"{where}: {record_class.__name__} inherits from {bases} without being made a record itself, so that its "
            f"own fields would be lost; decorate it as its base class is, or, for a NamedTuple, write all fields again"
        )


def _check_construction(shape: RecordShape, where: str) -> None:
    if shape.maker is not None:
        return  # Its family answers for it.
    record_class = shape.record_class
    missing = _arguments_missing(record_class, shape.fields)
    if missing is not None:
        raise UnknownTypeError(
            f"{where}: a {record_class.__name__} cannot be made again from its fields ({missing}): its constructor "
            f"must take {', '.join(part.argument for part in shape.fields) or 'nothing'}, in this order, and need "
            f"nothing else. Give other arguments, such as an InitVar, a default, or put what they do into a classmethod"
        )


def _arguments_missing(record_class: Any, fields: Sequence[RecordField]) -> str | None:
    """Why the constructor does not take exactly the fields, each under its own name; None if it does."""
    try:
        signature = inspect.signature(record_class)
    except ValueError:
        return None
    positional = [part for part in fields if not part.keyword_only]
    named = {part.argument: part for part in fields if part.keyword_only}
    try:
        bound = signature.bind(*positional, **named)
    except TypeError as error:
        return str(error)
    for part in fields:
        if bound.arguments.get(part.argument) is not part:
            return f"it does not take {part.argument} in its place"
    return None


def _check_former_names(fields: Sequence[RecordField], where: str) -> None:
    claimed: dict[str, str] = {}
    for part in fields:
        for name in part.former_names:
            other = claimed.setdefault(name, part.name)
            if other != part.name:
                raise UnknownTypeError(
                    f"{where}: the fields {other} and {part.name} both claim the former name {name}, and only one of "
                    f"them can go on from it; drop it from one, and fill that field by a converter"
                )


def default_problem(part: RecordField) -> str:
    """Why old records could not be completed with the default of a field; empty if they can, as far as is known."""
    try:
        default = part.make_default()
    except Exception as error:
        return f"its factory failed ({type(error).__name__}: {error})"
    reason = "None, but the field is not optional" if default is None and part.rejects_none else ""
    try:
        if not reason:
            part.serializer.to_bytes(default)
            return ""
    except UnresolvableSerializerError:
        # It holds a record that is still being described; what that is checks its own default.
        return ""
    except Exception as error:
        reason = str(error)
    return (
        f"the default {shown(default)} is no {part.serializer.type_name}, and old records could not be completed "
        f"with it ({reason})"
    )


def _check_default(part: RecordField, where: str) -> None:
    problem = default_problem(part)
    if problem:
        raise UnknownTypeError(
            f"{where}.{part.name}: {problem}; give it one that fits, or change the type of the field"
        )


R = TypeVar("R")


class AttrsSerializer(CompiledTypeSerializer[R]):
    """Writes the fields of a record class; evolves by name (see `typeserializers.evolution.record_evolution`).

    ``field_serializers`` overrides what the type hints say. ``name`` is the stable name of the record, the class's
    own by default; ``former_names`` are those it had before. ``schema_version`` counts the changes that need a
    converter, and ``converters`` maps a version to the function that leads from it to the next: it gets the values of
    the fields by name, in a dict, and returns those of the next version. What the last one returns is completed by the
    rules: values that no converter touched are widened, and absent fields get their defaults. The last four may stand
    on the class instead: ``__former_names__``, ``__schema_version__``, ``__converters__``. ``source_serializers`` are
    those of old values whose classes converters need: of pickles, and of records that are to be more than stand-ins.
    ``rules`` say what the type hints mean.

    Raises `UnknownTypeError` for a class or field that cannot be a record, `ValueError` for a converter that could
    never be used.
    """

    def __init__(
        self,
        record_class: type[R],
        *,
        field_serializers: Mapping[str, TypeSerializer[Any]] | None = None,
        name: str | None = None,
        former_names: tuple[str, ...] = (),
        schema_version: int | None = None,
        converters: Mapping[int, RecordConverter] | None = None,
        source_serializers: Sequence[TypeSerializer[Any]] = (),
        rules: InferenceRules = DEFAULT_RULES,
    ) -> None:
        reject_undecorated(record_class, rules, record_class.__name__)
        with collected_references() as references:
            shape = shape_of(record_class, field_serializers or {}, Inference(rules=rules))
        check_shape(shape, record_class.__name__)
        self.shape = attrs.evolve(
            shape,
            name=name or shape.name,
            former_names=tuple(former_names) or shape.former_names,
            schema_version=shape.schema_version if schema_version is None else schema_version,
            converters=shape.converters if converters is None else dict(converters),
            source_serializers=tuple(source_serializers),
        )
        bind_references(references, record_class, self.shape.name, self)
        check_defaults(self.shape, record_class.__name__)
        check_values_are_kept(self.shape, record_class.__name__)

    @classmethod
    def from_shape(cls, shape: RecordShape) -> AttrsSerializer[Any]:
        """The serializer of a shape that was restored from a snapshot or inferred elsewhere."""
        serializer: AttrsSerializer[Any] = cls.__new__(cls)
        serializer.shape = shape
        return serializer

    @property
    def record_class(self) -> type[R]:
        """The class of the values."""
        return self.shape.record_class

    @property
    def fields(self) -> tuple[RecordField, ...]:
        """The fields, in the order in which they are written."""
        return self.shape.fields

    @property
    def length(self) -> int:
        lengths = [part.serializer.length for part in self.fields]
        return -1 if -1 in lengths else sum(lengths)

    @property
    def minimum_length(self) -> int:
        return sum(part.serializer.minimum_length for part in self.fields)

    @property
    def is_immutable_type(self) -> bool:
        return self.shape.is_frozen and all(part.serializer.is_immutable_type for part in self.fields)

    @property
    def may_reject_what_it_wrote(self) -> bool:
        # A converter may return anything, and a constructor that does more than set fields may reject it.
        has_converter = bool(self.shape.converters) or any(part.converter for part in self.fields)
        return has_converter or settable_twin(self.record_class) is None or super().may_reject_what_it_wrote

    def configuration(self) -> Hashable:
        return self.shape, self.shape.record_class

    @property
    def python_type(self) -> type[R]:
        return self.shape.record_class

    @property
    def type_name(self) -> str:
        return self.shape.name

    @property
    def former_type_names(self) -> Sequence[str]:
        return self.shape.former_names

    def create_instance(self) -> R:
        return self.record_of(
            [part.make_default() if part.has_default else part.serializer.create_instance() for part in self.fields]
        )

    def copy(self, value: R) -> R:
        if self.is_immutable_type:
            return value
        return self.record_of([part.serializer.copy(getattr(value, part.name)) for part in self.fields])

    def duplicate(self) -> AttrsSerializer[R]:
        duplicates = {part.name: part.serializer.duplicate() for part in self.fields}
        if all(duplicates[part.name] is part.serializer for part in self.fields):
            return self
        return self.with_serializers(duplicates)

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> AttrsSerializer[R]:
        """The same record with other serializers for some fields (after a nested reconfiguration)."""
        return self.with_fields([(part, serializers.get(part.name, part.serializer)) for part in self.fields])

    def with_fields(
        self,
        fields: list[tuple[RecordField, TypeSerializer[Any]]],
        targets: Mapping[str, TypeSerializer[Any]] = MappingProxyType({}),
    ) -> AttrsSerializer[R]:
        """The same record with these fields and serializers; inside itself it goes on with them too.

        ``targets`` are what references to the records around it are bound to, by name.
        """
        record: AttrsSerializer[R] = AttrsSerializer.from_shape(self.shape)
        inside = {**targets, self.shape.name: record}
        parts = [attrs.evolve(part, serializer=rebound(serializer, inside)) for part, serializer in fields]
        record.shape = attrs.evolve(self.shape, fields=tuple(parts))
        return record

    @property
    def source_serializers(self) -> Sequence[TypeSerializer[Any]]:
        return self.shape.source_serializers

    def held_serializers(self) -> Sequence[TypeSerializer[Any]]:
        """The serializers of the fields."""
        return [part.serializer for part in self.fields]

    def rebound(self, targets: Mapping[str, TypeSerializer[Any]]) -> AttrsSerializer[R]:
        """The record with the references to enclosing records bound to other serializers of them."""
        around = {name: target for name, target in targets.items() if name != self.shape.name}
        if not refers_to(self, around):
            return self
        return self.with_fields([(part, part.serializer) for part in self.fields], around)

    def write_to(self, value: R, out: DataOutputView) -> None:
        if value.__class__ is not self.shape.record_class:
            self._reject_class(value)
        for part in self.fields:
            item = getattr(value, part.name)
            if item is None and part.rejects_none:
                raise TypeError(f".{part.name} is None")
            part.serializer.serialize(item, out)

    def read_from(self, source: DataInputView) -> R:
        items = []
        for part in self.fields:
            item = part.serializer.deserialize(source)
            if item is None and part.rejects_none:
                raise MalformedDataError(f".{part.name} is null before byte {source.position}, but is not optional")
            items.append(item)
        return self.record_of(items)

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        value = emitter.once(value)
        reject = emitter.function.bind("reject", self._reject_class)
        expected = emitter.function.bind("record_class", self.shape.record_class)
        emitter.line(f"if {value}.__class__ is not {expected}: {reject}({value})")
        for part in self.fields:
            expression = f"{value}.{part.name}"
            if part.rejects_none:
                expression = emitter.once(expression)
                emitter.line(f"if {expression} is None: {reject}({value})")
            part.serializer.emit_write(emitter, expression)

    def emit_read(self, emitter: ReadEmitter) -> str:
        arguments = []
        for part in self.fields:
            expression = part.serializer.emit_read(emitter)
            if part.rejects_none:
                emitter.line(f"if {expression} is None: {emitter.function.bind('reject', _reject_null)}('{part.name}')")
            arguments.append(expression)
        return self.emit_construction(emitter, arguments)

    def emit_construction(self, emitter: ReadEmitter, arguments: list[str]) -> str:
        """Emits the making of a record from the expressions of its fields; returns the expression of it."""
        record_class = self.shape.record_class
        twin = None if self.shape.maker else settable_twin(record_class)
        if twin is not None:
            pairs = [(part.name, argument) for part, argument in zip(self.fields, arguments, strict=True)]
            return emit_fields(emitter, twin, record_class, pairs)
        passed = [
            f"{part.argument}={argument}" if part.keyword_only else argument
            for part, argument in zip(self.fields, arguments, strict=True)
        ]
        return f"{emitter.function.bind('make_record', self.shape.makes_records)}({', '.join(passed)})"

    def stepping_over(self, part: Callable[[TypeSerializer[Any]], TypeSerializer[Any]]) -> TypeSerializer[Any]:
        parts = [part(field.serializer) for field in self.fields]
        sets_fields = settable_twin(self.record_class) is not None
        if sets_fields and all(new is field.serializer for new, field in zip(parts, self.fields, strict=True)):
            return self
        return SteppedOverParts(self, parts)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value.__class__ is not self.shape.record_class:
            yield misfit(path, value, f"is not a {self.shape.name}")
            return
        for part in self.fields:
            where = f"{path}.{part.name}"
            try:
                item = getattr(value, part.name)
            except AttributeError:
                yield f"{where}: the attribute is missing"
                continue
            if item is None and not part.serializer.is_optional_type:
                yield f"{where}: None, but the field is not optional"
            else:
                yield from part.serializer.problems(item, where)

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        if not self.is_immutable_type:
            return None
        expected = function.bind("record_class", self.record_class)
        items = [(part.serializer, f"{again}.{part.name}") for part in self.fields]
        return exact_parts([f"type({first}) is {expected}"], items, function)

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return size_of_parts([(part.serializer, f"{value}.{part.name}") for part in self.fields], function)

    def snapshot_configuration(self) -> AttrsSerializerSnapshot[R]:
        return AttrsSerializerSnapshot(self)

    def record_of(self, items: list[Any]) -> R:
        """The record with these values, one for each of `fields`, in their order; raises what the class raises."""
        record: R = self.shape.record_of(items)
        return record

    def _reject_class(self, value: Any) -> None:
        raise TypeError(f"not a writable {self.shape.name}: {shown(value)}")

    def __repr__(self) -> str:
        return f"AttrsSerializer({self.shape.name})"


def _reject_null(name: str) -> None:
    raise MalformedDataError(f".{name} is null, but is not optional")


@register_snapshot("statebackend.AttrsSerializerSnapshot")
class AttrsSerializerSnapshot(RuledTypeSerializerSnapshot[R]):
    """The record as it was written: names, former names, defaults and the snapshots of the field serializers."""

    def __init__(self, serializer: AttrsSerializer[R] | None = None) -> None:
        self._is_filled = serializer is not None
        self.record = WrittenRecord("", ()) if serializer is None else written_record(serializer.shape)

    @property
    def current_version(self) -> int:
        """The version that this record is written in; of an empty snapshot, the newest that can be read."""
        return version_for(self.record) if self._is_filled else NEWEST_VERSION

    def write_snapshot(self, out: DataOutputView) -> None:
        write_record(self.record, out)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        self.record = read_record(read_version, source)
        self._is_filled = True

    def restore_serializer(self) -> AttrsSerializer[R]:
        """Reads the old bytes as the class of that name and shape if a known serializer has it, else as a stand-in."""
        with collected_references() as references:
            serializers = [part.snapshot.restore_serializer() for part in self.record.fields]
        restored: AttrsSerializer[R] = AttrsSerializer.from_shape(self._shape_around(serializers))
        bind_references(references, self.record.name, self.record.name, restored)
        return restored

    def _shape_around(self, serializers: list[TypeSerializer[Any]]) -> RecordShape:
        names = [part.name for part in self.record.fields]
        for known in known_of(AttrsSerializer):
            shape = known.shape
            if (
                shape.name == self.record.name
                and [part.name for part in shape.fields] == names
                and [part.serializer for part in shape.fields] == serializers
            ):
                fields = tuple(
                    attrs.evolve(part, serializer=serializer, former_names=written.former_names)
                    for part, serializer, written in zip(shape.fields, serializers, self.record.fields, strict=True)
                )
                return attrs.evolve(shape, fields=fields, schema_version=self.record.schema_version, converters={})
        stand_in = stand_in_class(self.record.name, names)
        parts = zip(self.record.fields, serializers, arguments_of(stand_in), strict=True)
        fields = tuple(
            RecordField(part.name, serializer, part.former_names, *decoded_default(part, serializer), argument)
            for part, serializer, argument in parts
        )
        return RecordShape(
            self.record.name, stand_in, fields, is_frozen=True, schema_version=self.record.schema_version
        )

    def merged_with(self, other: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[R] | None:
        """The same record around the merged snapshots of its fields."""
        assert isinstance(other, AttrsSerializerSnapshot)
        merged: AttrsSerializerSnapshot[R] = AttrsSerializerSnapshot()
        record = merged_record(self.record, other.record)
        if record is None:
            return None
        merged.record, merged._is_filled = record, True
        return merged
