"""Errors about the types of keys; the supported types are in `statebackend.state.key_columns`.

A key of type timestamp is an instant. In state, and as the current key, it is a datetime in UTC, whatever the session's
time zone. With the zone in its bytes, a key would lose its state when the session's zone changes.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from statebackend.state.key_columns import KEY_COLUMNS, moment_in_utc, serializer_of_key
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.stream_graph import name_of_input
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.times.calendar_values import plain_datetime

_INSTEAD: Final[Mapping[str, str]] = {
    "float": "its zeros and NaNs have several binary forms: cast it to an integer or to string",
    "double": "its zeros and NaNs have several binary forms: cast it to an integer or to string",
    "decimal": "its key would change with precision and scale: cast it to string, or scaled up to bigint",
    "struct": "key by its fields instead, as in key_by('name.field', 'name.other')",
    "timestamp_ntz": "it is not an instant: cast it to timestamp, or to string",
    "array": "cast it to string, for instance by to_json or array_join",
    "map": "cast it to string, for instance by to_json of its sorted entries",
    "string collate": "texts that are equal by collation may differ in bytes: cast it to string, or lower() it",
}


def key_serializer_for(column_types: Sequence[str], operator_uid: str) -> TypeSerializer[Any]:
    """Return the serializer of a key of these columns; without columns, that of the single key None.

    Raises `JobDefinitionError` for an unsupported type.
    """
    for column_type in column_types:
        if column_type not in KEY_COLUMNS:
            raise JobDefinitionError(
                f"operator {operator_uid!r}: a column of type {column_type} cannot be a key; "
                f"{_instead_of(column_type)}. Keys are {', '.join(KEY_COLUMNS)}"
            )
    return serializer_of_key(column_types)


def check_keys_agree(operator_uid: str, types_of_inputs: Mapping[int, Sequence[str]]) -> None:
    """Raise `JobDefinitionError` if the inputs of an operator have different key types."""
    if not types_of_inputs:
        return
    first = min(types_of_inputs)
    for index, types in types_of_inputs.items():
        if list(types) != list(types_of_inputs[first]):
            raise JobDefinitionError(
                f"operator {operator_uid!r}: the key of {name_of_input(first)} has the type "
                f"{', '.join(types_of_inputs[first])}, and the key of {name_of_input(index)} has {', '.join(types)}; "
                f"cast both to the same types before key_by"
            )


def canonical_key(column_type: str) -> Callable[[Any], Any] | None:
    """Return a function that maps equal keys to one Python value, or None where Python's equality suffices.

    A naive datetime is in the local time of the process, as everywhere in PySpark. The function raises `ValueError` for
    a time of pandas with nanoseconds.
    """
    return _in_utc if column_type == "timestamp" else None


def _in_utc(value: datetime.datetime | None) -> datetime.datetime | None:
    return moment_in_utc(plain_datetime(value)) if isinstance(value, datetime.datetime) else value


def _instead_of(column_type: str) -> str:
    return next((advice for name, advice in _INSTEAD.items() if column_type.startswith(name)), "cast it")
