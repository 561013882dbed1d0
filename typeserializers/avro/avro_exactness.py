"""In which Avro schemas a value may be written for less than it is, so that it has to be read again and compared.

The library stores a whole number where a double is as the nearest double, cuts microseconds off a `timestamp-millis`,
takes a time without a zone to be in that of the host, drops the zone of a local one and the hours of a date, makes
infinity of what is too large for a float, and of two records of a union takes the first that fits.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Mapping
from typing import Any, Final

from typeserializers.avro.avro_schemas import NamedSchemas, all_parts, type_of

EPOCH: Final = datetime.datetime(1970, 1, 1)

_LOGICAL_ZEROS: Final[Mapping[str, Any]] = {
    "date": EPOCH.date(),
    "time-millis": EPOCH.time(),
    "time-micros": EPOCH.time(),
    "timestamp-millis": EPOCH.replace(tzinfo=datetime.timezone.utc),
    "timestamp-micros": EPOCH.replace(tzinfo=datetime.timezone.utc),
    "local-timestamp-millis": EPOCH,
    "local-timestamp-micros": EPOCH,
    "decimal": decimal.Decimal(0),
    "uuid": uuid.UUID(int=0),
}
"""The logical types that the library knows, each with a value of it."""


def zero_of(schema: Any) -> Any:
    """The empty value of a logical type; None for all other schemas, and for logical types that are not known."""
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    return _LOGICAL_ZEROS.get(logical) if isinstance(logical, str) else None


def may_lose(schemas: NamedSchemas) -> bool:
    """Whether the library could write a value of the schema for less than it is."""
    return any(_loses_by_itself(part, schemas) for part in all_parts(schemas))


def holds_several_records(schemas: NamedSchemas) -> bool:
    """Whether a union in the schema has several records, of which a value may fit more than one."""
    return any(type_of(part) == "union" and _records(part, schemas) > 1 for part in all_parts(schemas))


def meant_by(value: Any, read: Any) -> Any:
    """The value without the name of the record of a union that is meant, which the library takes in a tuple."""
    names_its_record = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)
    return value[1] if names_its_record and not isinstance(read, list) else value


def _loses_by_itself(schema: Any, schemas: NamedSchemas) -> bool:
    kind = type_of(schema)
    return (
        zero_of(schema) is not None
        or kind in ("float", "double")
        or (kind == "union" and _records(schema, schemas) > 1)
    )


def _records(union: Any, schemas: NamedSchemas) -> int:
    return sum(type_of(schemas.resolved(branch)) in ("record", "error") for branch in union)
