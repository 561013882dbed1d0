"""Parsed Avro schemas, and the named types in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from attrs import frozen

_LAYOUT_FREE_KEYS: Final = ("doc", "aliases")

NAMED_KINDS: Final = ("record", "error", "enum", "fixed")


def type_of(schema: Any) -> str:
    """The type of a schema; a union is a list."""
    if isinstance(schema, list):
        return "union"
    return schema["type"] if isinstance(schema, dict) else schema  # type: ignore[no-any-return]


@frozen
class NamedSchemas:
    """A parsed schema, with the named types that it refers to by name."""

    schema: Any
    names: Mapping[str, Any]

    def resolved(self, schema: Any) -> Any:
        """The schema itself, or the definition if it is a name."""
        while isinstance(schema, str) and schema in self.names:
            schema = self.names[schema]
        return schema


def parts_of(schema: Any) -> list[Any]:
    """The schemas directly inside a schema that is no name."""
    if isinstance(schema, list):
        return list(schema)
    if not isinstance(schema, dict):
        return []
    if schema["type"] in ("record", "error"):
        return [part["type"] for part in schema["fields"]]
    return [schema[key] for key in ("items", "values") if key in schema]


def all_parts(schemas: NamedSchemas) -> Iterator[Any]:
    """The schema and all in it, each named type once."""
    seen: set[str] = set()
    waiting = [schemas.schema]
    while waiting:
        schema = schemas.resolved(waiting.pop())
        yield schema
        if isinstance(schema, dict) and schema["type"] in NAMED_KINDS:
            if schema["name"] in seen:
                continue
            seen.add(schema["name"])
        waiting += reversed(parts_of(schema))


def named_schemas(schema: Any) -> NamedSchemas:
    """Collects the named types of a parsed schema, in which every name is a full one."""
    names: dict[str, Any] = {}
    _collect(schema, names)
    return NamedSchemas(schema, names)


def _collect(schema: Any, names: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, names)
        return
    if not isinstance(schema, dict):
        return
    if schema["type"] in NAMED_KINDS:
        names[schema["name"]] = schema
    for part in schema.get("fields", ()):
        _collect(part["type"], names)
    for key in ("items", "values"):
        if key in schema:
            _collect(schema[key], names)


def layout_of(schema: Any) -> Any:
    """The schema without what has no part in reading or writing."""
    if isinstance(schema, list):
        return [layout_of(item) for item in schema]
    if isinstance(schema, dict):
        return {key: layout_of(item) for key, item in schema.items() if key not in _LAYOUT_FREE_KEYS}
    return schema
