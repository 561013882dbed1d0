"""What a class must keep to be a record: that its objects can be made again from their fields, and its defaults fit.

A class that breaks it would be written without complaint and fail, or come back as something else, when it is read. So
it is refused when its serializer is made, with the field and what to do.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from snapshots.errors import UnresolvableSerializerError
from snapshots.value_text import shown
from typeserializers.kernel.serializer_inference import InferenceRules, UnknownTypeError
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
