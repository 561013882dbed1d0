"""The values of the golden files as the values of our serializers, and the serializers that wrote them."""

from __future__ import annotations

import array
import decimal
import enum
import json
import pathlib
import struct
from typing import Any

import typeserializers as ts
from typeserializers import TypeSerializer

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "flink"

SERIALIZERS = json.loads((GOLDEN / "serializers.json").read_text())
COMPATIBILITY = json.loads((GOLDEN / "compatibility.json").read_text())


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


def _bigdec(item: dict[str, Any]) -> decimal.Decimal:
    sign, digits, _ = decimal.Decimal(item["unscaled"]).as_tuple()
    return decimal.Decimal((sign, digits, -item["scale"]))


_CONVERSIONS = {
    "char": lambda item: chr(item["codeUnit"]),
    "bigint": lambda item: int(item["value"]),
    "bigdec": _bigdec,
    "bytes": lambda item: bytes.fromhex(item["hex"]),
    "map": lambda item: {value_of(key): value_of(value) for key, value in item["entries"]},
    "set": lambda item: ts.LinkedSet([value_of(element) for element in item["elements"]]),
    "tuple": lambda item: tuple(value_of(field) for field in item["fields"]),
    "either": lambda item: (ts.Left if item["side"] == "left" else ts.Right)(value_of(item["value"])),
    "enum": lambda item: item["name"],
    "date": lambda item: ts.Date(item["epochMilli"]),
    "sqldate": lambda item: ts.SqlDate(item["epochMilli"]),
    "sqltime": lambda item: ts.SqlTime(item["epochMilli"]),
    "instant": lambda item: ts.Instant(item["epochSecond"], item["nano"]),
    "localdate": lambda item: ts.LocalDate(item["year"], item["month"], item["day"]),
    "localtime": lambda item: ts.LocalTime(item["hour"], item["minute"], item["second"], item["nano"]),
    "localdatetime": lambda item: ts.LocalDateTime(*[item[name] for name in _LOCAL_DATE_TIME]),
    "row": lambda item: row_of(item),
    "ttl": lambda item: ts.TtlValue(value_of(item["value"]), item["timestamp"]),
    "voidNamespace": lambda item: ts.VOID_NAMESPACE,
    "timeWindow": lambda item: ts.TimeWindow(item["start"], item["end"]),
    "globalWindow": lambda item: ts.GLOBAL_WINDOW,
    "timer": lambda item: ts.Timer(item["timestamp"], value_of(item["key"]), value_of(item["namespace"])),
}
_LOCAL_DATE_TIME = ("year", "month", "day", "hour", "minute", "second", "nano")


def row_of(item: dict[str, Any]) -> ts.Row:
    kind = ts.RowKind(item["kindByte"])
    if "namedFields" in item:
        return ts.Row.named({name: value_of(value) for name, value in item["namedFields"]}, kind=kind)
    return ts.Row(*[value_of(field) for field in item["fields"]], kind=kind)


def value_of(item: Any) -> Any:
    """Our value for a value of the golden files; enum constants are written as names."""
    if isinstance(item, list):
        return [value_of(element) for element in item]
    if isinstance(item, dict):
        return _CONVERSIONS[item["@type"]](item)
    if isinstance(item, str) and not item.isascii():
        # The JSON parser joins escaped surrogates into pairs, and keeps lone ones.
        return item
    return item


def number_of(item: Any) -> Any:
    """A floating-point number, or the JSON text of one that JSON cannot express."""
    return float(item)


STRING, LONG, INT = ts.StringSerializer(), ts.LongSerializer(), ts.IntSerializer()

WRITERS: dict[str, TypeSerializer[Any]] = {
    "bigdec": ts.BigDecSerializer(),
    "bigint": ts.BigIntSerializer(),
    "boolean": ts.BooleanSerializer(),
    "byte": ts.ByteSerializer(),
    "bytes": ts.BytePrimitiveArraySerializer(),
    "char": ts.CharSerializer(),
    "date": ts.DateSerializer(),
    "double": ts.DoubleSerializer(),
    "either-string-long": ts.EitherSerializer(STRING, LONG),
    "enum": ts.EnumSerializer(Color, name="golden.types.Color"),
    "float": ts.FloatSerializer(),
    "float-array": ts.FloatPrimitiveArraySerializer(),
    "generic-array-string": ts.GenericArraySerializer(STRING),
    "instant": ts.InstantSerializer(),
    "int": INT,
    "int-array": ts.IntPrimitiveArraySerializer(),
    "list-int": ts.ListSerializer(INT),
    "list-long": ts.ListSerializer(LONG),
    "list-string": ts.ListSerializer(STRING),
    "local-date": ts.LocalDateSerializer(),
    "local-date-time": ts.LocalDateTimeSerializer(),
    "local-time": ts.LocalTimeSerializer(),
    "long": LONG,
    "long-array": ts.LongPrimitiveArraySerializer(),
    "map-string-long": ts.MapSerializer(STRING, LONG),
    "nullable-long": ts.NullableSerializer(LONG),
    "nullable-long-padded": ts.NullableSerializer(LONG, pad_null_value=True),
    "row": ts.RowSerializer([INT, STRING, LONG]),
    "row-named": ts.RowSerializer([INT, STRING, LONG], ["i", "s", "l"]),
    "row-no-kind": ts.RowSerializer([INT, STRING, LONG], supports_row_kind=False),
    "set-long": ts.SetSerializer(LONG),
    "short": ts.ShortSerializer(),
    "sql-date": ts.SqlDateSerializer(),
    "sql-time": ts.SqlTimeSerializer(),
    "string": STRING,
    "string-array": ts.StringArraySerializer(),
    "time-window": ts.TimeWindowSerializer(),
    "timer-string-void": ts.TimerSerializer(STRING, ts.VoidNamespaceSerializer()),
    "ttl-long": ts.TtlSerializer(LONG),
    "tuple0": ts.Tuple0Serializer(),
    "tuple2-string-long": ts.TupleSerializer([STRING, LONG]),
    "void": ts.VoidSerializer(),
    "void-namespace": ts.VoidNamespaceSerializer(),
}


def golden_values(name: str) -> list[tuple[Any, bytes]]:
    """The values of a golden folder as ours, with their bytes."""
    pairs = []
    for entry in SERIALIZERS[name]["values"]:
        item = entry["value"]
        value = number_of(item) if name in ("float", "double") else value_of(item)
        if name == "float":
            value = struct.unpack(">f", struct.pack(">f", value))[0]
        if name == "enum":
            value = Color[value]
        elif name == "float-array":
            value = array.array("f", map(number_of, item))
        elif name in ("int-array", "long-array"):
            value = array.array("i" if name == "int-array" else "q", item)
        pairs.append((value, bytes.fromhex(entry["hex"])))
    return pairs
