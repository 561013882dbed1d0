"""What a class must keep to be a record: that its objects can be made again from their fields, and its defaults fit.

A class that breaks it would be written without complaint and fail, or come back as something else, when it is read. So
it is refused when its serializer is made, with the field and what to do.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

from snapshots.errors import UnresolvableSerializerError
from snapshots.value_text import shown
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.serializer_inference import InferenceRules, UnknownTypeError
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_construction import settable_twin
from typeserializers.records.record_format import is_field_name
from typeserializers.records.record_shape import RecordField, RecordShape


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


def refuse_undecorated(record_class: Any, rules: InferenceRules, where: str) -> None:
    """Raises `UnknownTypeError` for a class that only inherits from a record class: its own fields would be lost."""
    if isinstance(record_class, type) and any(family.forgets_fields_of(record_class) for family in rules.families):
        bases = ", ".join(base.__name__ for base in record_class.__bases__)
        raise UnknownTypeError(
            f"{where}: {record_class.__name__} inherits from {bases} without being made a record itself, so that its "
            f"own fields would be lost; decorate it as its base class is, or, for a NamedTuple, write all fields anew"
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
    reason = "None, but the field is not optional" if default is None and part.refuses_none else ""
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
