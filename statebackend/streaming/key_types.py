"""What a job says of the types of its keys, of which `statebackend.state.key_columns` has the table.

A key of type timestamp is an instant. In state, and as the current key, it is a datetime in UTC, whatever the time zone
of the session: with the bytes of a zone in it the state of a key would be lost when the session's zone changes.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from statebackend.state.key_columns import KEY_COLUMNS, moment_in_utc, serializer_of_key
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.stream_graph import name_of_input
from typeserializers.kernel.type_serializer import TypeSerializer

_INSTEAD: Final[Mapping[str, str]] = {
    "float": "two zeros and many NaNs make 'the same key' a matter of opinion: cast it to a whole number or to string",
    "double": "two zeros and many NaNs make 'the same key' a matter of opinion: cast it to a whole number or to string",
    "decimal": "its key would change with precision and scale: cast it to string, or scaled up to bigint",
    "struct": "key by its fields instead, as in key_by('name.field', 'name.other')",
    "timestamp_ntz": "it is no instant: cast it to timestamp, or to string",
    "array": "cast it to string, for instance by to_json or array_join",
    "map": "cast it to string, for instance by to_json of its sorted entries",
    "string collate": "texts that are equal by collation have other bytes: cast it to string, with lower() if need be",
}


def key_serializer_for(column_types: Sequence[str], operator_uid: str) -> TypeSerializer[Any]:
    """The serializer of a key of these columns, without any that of the operator's only key, None.

    Raises `JobDefinitionError` for a type that cannot be a key.
    """
    for column_type in column_types:
        if column_type not in KEY_COLUMNS:
            raise JobDefinitionError(
                f"operator {operator_uid!r}: a column of type {column_type} cannot be a key; "
                f"{_instead_of(column_type)}. Keys are {', '.join(KEY_COLUMNS)}"
            )
    return serializer_of_key(column_types)


def check_keys_agree(operator_uid: str, types_of_inputs: Mapping[int, Sequence[str]]) -> None:
    """Raises `JobDefinitionError` if two inputs of an operator, by their index, have keys of other types."""
    if not types_of_inputs:
        return
    first = min(types_of_inputs)
    for index, types in types_of_inputs.items():
        if list(types) != list(types_of_inputs[first]):
            raise JobDefinitionError(
                f"operator {operator_uid!r}: the key of {name_of_input(first)} is of the type "
                f"{', '.join(types_of_inputs[first])}, and that of {name_of_input(index)} of {', '.join(types)}; "
                f"records of both meet only under keys of the same types: cast them alike before key_by"
            )


def canonical_key(column_type: str) -> Callable[[Any], Any] | None:
    """What makes one value of all Python values that are the same key, None where Python's equality does.

    A naive datetime is in the local time of the process, as everywhere in PySpark.
    """
    return _in_utc if column_type == "timestamp" else None


def _in_utc(value: datetime.datetime | None) -> datetime.datetime | None:
    return moment_in_utc(value) if isinstance(value, datetime.datetime) else value


def _instead_of(column_type: str) -> str:
    return next((advice for name, advice in _INSTEAD.items() if column_type.startswith(name)), "cast it")
