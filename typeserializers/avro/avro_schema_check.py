"""What the Avro library lets pass in a schema and fails on later: parts that are missing, or of another kind."""

from __future__ import annotations

from typing import Any, Final

from snapshots.errors import SnapshotFormatError
from snapshots.value_text import shown

MAX_DEPTH: Final = 200
"""How deep a schema may be nested; Avro has no limit, and Python has."""


def check_schema(schema: Any, depth: int = 0) -> None:
    """Raises `SnapshotFormatError` for a parsed schema that no value could be written with."""
    if depth > MAX_DEPTH:
        raise SnapshotFormatError(f"this is no Avro schema of ours: it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(schema, list):
        _require(bool(schema), "a union without branches")
        for branch in schema:
            check_schema(branch, depth + 1)
        return
    if isinstance(schema, str):
        return
    _require(isinstance(schema, dict) and "type" in schema, f"{shown(schema)} is no type")
    kind = schema["type"]
    # Avro knows no such form, and nobody would look into the inner type again.
    _require(isinstance(kind, str), f"{shown(schema)} is a type inside a type; write the inner one alone")
    if kind == "enum":
        symbols = schema.get("symbols")
        _require(isinstance(symbols, list) and bool(symbols), f"the enum {shown(schema.get('name'))} has no symbols")
        _require(all(isinstance(symbol, str) for symbol in symbols), "a symbol of an enum is no text")
        _require(len(set(symbols)) == len(symbols), "an enum has a symbol twice")
    elif kind == "fixed":
        _require(_is_count(schema.get("size")), f"the fixed {shown(schema.get('name'))} has no size")
    elif kind == "array":
        check_schema(schema.get("items"), depth + 1)
    elif kind == "map":
        check_schema(schema.get("values"), depth + 1)
    elif kind in ("record", "error"):
        fields = schema.get("fields")
        _require(isinstance(fields, list), f"the record {shown(schema.get('name'))} has no fields")
        for part in fields:
            _require(isinstance(part, dict) and isinstance(part.get("name"), str), f"{shown(part)} is no field")
            check_schema(part.get("type"), depth + 1)
    if schema.get("logicalType") == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        sound = _is_count(precision) and _is_count(scale) and precision > 0 and scale <= precision
        _require(sound, f"a decimal of precision {shown(precision)} and scale {shown(scale)}")


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _require(sound: bool, what: str) -> None:
    if not sound:
        raise SnapshotFormatError(f"this is no Avro schema: {what}")
