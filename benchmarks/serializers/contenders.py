"""The comparisons of the suite: a name, our contender, and peers that do the same work.

The record has five fields: long, double, str, bool, int. Every contender handles the same `RECORDS` values and returns
the nanoseconds per value. Each peer is used in its fastest form: fastavro reads and writes dicts with a reused buffer,
pickle uses the class itself in its newest protocol, and `struct` uses a precompiled format.
"""

from __future__ import annotations

import io
import pickle
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from time import perf_counter_ns
from typing import Annotated, Any

import attrs
import fastavro

from migration import SchemaMigration
from snapshots import resolve_compatibility, snapshot_from_bytes, snapshot_to_bytes
from typeserializers import (
    AttrsSerializer,
    BooleanSerializer,
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    ListSerializer,
    LongSerializer,
    MapSerializer,
    ShortSerializer,
    StringSerializer,
    TypeSerializer,
    former_names,
)
from typeserializers.scalars.strings import MAX_REMEMBERED_TEXTS

RECORDS = 1000

Contender = Callable[[], float]
"""Does the work once and returns the nanoseconds per value."""


@attrs.frozen
class Flight:
    """The record with five fields."""

    number: int
    delay: float
    carrier: str
    cancelled: bool
    gate: Annotated[int, IntSerializer()]


AVRO_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "number", "type": "long"},
            {"name": "delay", "type": "double"},
            {"name": "carrier", "type": "string"},
            {"name": "cancelled", "type": "boolean"},
            {"name": "gate", "type": "int"},
        ],
    }
)


@attrs.frozen
class Comparison:
    """One result line: ours, and its peers by name."""

    name: str
    ours: Contender
    peers: Mapping[str, Contender | None]
    aim: float | None = None


def flights() -> list[Flight]:
    """Return the values of the records."""
    carriers = ["AA", "Delta Air", "United Airlines"]
    return [Flight(i * 1_000_003, i / 7, carriers[i % 3], i % 5 == 0, i % 90) for i in range(RECORDS)]


def each(function: Callable[[Any], Any], values: Sequence[Any]) -> Contender:
    """Return a contender that applies the function to every value; the loop costs both sides the same."""

    def run() -> float:
        start = perf_counter_ns()
        for value in values:
            function(value)
        return (perf_counter_ns() - start) / len(values)

    return run


def writing(serializer: TypeSerializer[Any], values: Sequence[Any]) -> Contender:
    """Return a contender that serializes the values with our serializer."""
    return each(serializer.codec.write, values)


def reading(serializer: TypeSerializer[Any], values: Sequence[Any]) -> Contender:
    """Return a contender that deserializes the values with our serializer."""
    read, encoded = serializer.codec.read, [serializer.to_bytes(value) for value in values]

    def run() -> float:
        start = perf_counter_ns()
        for data in encoded:
            read(data, 0)
        return (perf_counter_ns() - start) / len(encoded)

    return run


def record_comparisons() -> list[Comparison]:
    """Return the comparisons of writing and reading the record."""
    values = flights()
    serializer = AttrsSerializer(Flight)
    dicts = [attrs.asdict(value) for value in values]
    pickled = [pickle.dumps(value, pickle.HIGHEST_PROTOCOL) for value in values]
    return [
        Comparison(
            "record of 5 fields, write",
            writing(serializer, values),
            {
                "fastavro schemaless": each(_avro_write, dicts),
                "pickle": each(lambda value: pickle.dumps(value, pickle.HIGHEST_PROTOCOL), values),
                "msgspec (C)": _msgspec_writer(values),
            },
        ),
        Comparison(
            "record of 5 fields, read",
            reading(serializer, values),
            {
                "fastavro schemaless": each(_avro_read, [_avro_write(value) for value in dicts]),
                "pickle": each(pickle.loads, pickled),
                "msgspec (C)": _msgspec_reader(values),
            },
        ),
    ]


def _avro_write(value: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, AVRO_SCHEMA, value)
    return buffer.getvalue()


def _avro_read(data: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), AVRO_SCHEMA, None)


def _msgspec_writer(values: Sequence[Flight]) -> Contender | None:
    if find_spec("msgspec") is None:
        return None
    import msgspec

    structs = _msgspec_structs(values)
    return each(msgspec.msgpack.Encoder().encode, structs)


def _msgspec_reader(values: Sequence[Flight]) -> Contender | None:
    if find_spec("msgspec") is None:
        return None
    import msgspec

    structs = _msgspec_structs(values)
    encode = msgspec.msgpack.Encoder().encode
    return each(msgspec.msgpack.Decoder(type(structs[0])).decode, [encode(value) for value in structs])


def _msgspec_structs(values: Sequence[Flight]) -> list[Any]:
    import msgspec

    made = msgspec.defstruct(
        "Flight", [("number", int), ("delay", float), ("carrier", str), ("cancelled", bool), ("gate", int)], frozen=True
    )
    return [made(**attrs.asdict(value)) for value in values]


def scalar_comparisons() -> list[Comparison]:
    """Return the comparisons of each number with a bare ``struct`` call, and of text with ``str.encode``."""
    integers = [(-1) ** i * (i % 127) for i in range(RECORDS)]
    floats = [i / 7 for i in range(RECORDS)]
    cases: list[tuple[str, TypeSerializer[Any], str, Sequence[Any]]] = [
        ("boolean", BooleanSerializer(), ">?", [i % 2 == 0 for i in range(RECORDS)]),
        ("byte", ByteSerializer(), ">b", integers),
        ("short", ShortSerializer(), ">h", integers),
        ("int", IntSerializer(), ">i", integers),
        ("long", LongSerializer(), ">q", integers),
        ("float", FloatSerializer(), ">f", floats),
        ("double", DoubleSerializer(), ">d", floats),
    ]
    comparisons = []
    for name, serializer, characters, values in cases:
        layout = struct.Struct(characters)
        encoded = [layout.pack(value) for value in values]
        comparisons += [
            Comparison(f"{name}, write", writing(serializer, values), {"struct.pack": each(layout.pack, values)}),
            Comparison(
                f"{name}, read",
                reading(serializer, values),
                {"struct.unpack_from": _unpacking(layout, encoded)},
            ),
        ]
    return comparisons


def _unpacking(layout: struct.Struct, encoded: Sequence[bytes]) -> Contender:
    unpack = layout.unpack_from

    def run() -> float:
        start = perf_counter_ns()
        for data in encoded:
            unpack(data, 0)
        return (perf_counter_ns() - start) / len(encoded)

    return run


def text_comparisons() -> list[Comparison]:
    """Return the comparisons of a hundred characters that are not all ASCII with a hundred ASCII characters.

    One text is written and read repeatedly. In other comparisons each text is new to the process.
    """
    serializer = StringSerializer()
    ascii_texts = [("The quick brown fox jumps over the lazy dog. Sphinx of black quartz, judge my vow! " * 2)[:100]]
    japanese = (
        "日本語のテキストをシリアライズする場合、漢字とひらがなとカタカナが混ざるのが普通です。この文は百文字くらいの長さに"
        "なるように書かれていますので、計測に使うことができます。東京都港区芝公園四丁目二番八号"
    )[:100]
    accent = ascii_texts[0][:50] + "é" + ascii_texts[0][51:]
    shuffler = random.Random(1)
    new_texts = ["".join(shuffler.sample(japanese, len(japanese))) for _ in range(2 * MAX_REMEMBERED_TEXTS)]
    new_accents = [
        f"{ascii_texts[0][:place]}é{ascii_texts[0][place + 5 :]}{number:04}"
        for place in range(95)
        for number in range(2 * MAX_REMEMBERED_TEXTS // 95 + 1)
    ]
    repeated = RECORDS // 10
    comparisons = []
    for name, texts, aim in (
        ("100 Japanese characters", [japanese] * repeated, 1 / 8),
        ("one accent in 100 characters", [accent] * repeated, 1 / 3),
        ("100 Japanese characters, each text a new one", new_texts, None),
        ("one accent in 100 characters, each text a new one", new_accents, None),
    ):
        peers = ascii_texts * len(texts)
        comparisons += [
            Comparison(f"{name}, write", writing(serializer, texts), {"100 of ASCII": writing(serializer, peers)}, aim),
            Comparison(f"{name}, read", reading(serializer, texts), {"100 of ASCII": reading(serializer, peers)}, aim),
        ]
    return comparisons


def container_comparisons() -> list[Comparison]:
    """Return the comparisons of a list of 100 ints with one ``struct`` call, and of a map of 100 with pickle."""
    lists = [[(i + j) % 1_000_000 for j in range(100)] for i in range(RECORDS // 10)]
    maps = [{f"key{j}": i + j for j in range(100)} for i in range(RECORDS // 10)]
    integers: TypeSerializer[Any] = ListSerializer(IntSerializer())
    mapping: TypeSerializer[Any] = MapSerializer(StringSerializer(), LongSerializer())
    layout = struct.Struct(">i100i")
    packed = [layout.pack(100, *value) for value in lists]
    pickled = [pickle.dumps(value, pickle.HIGHEST_PROTOCOL) for value in maps]
    return [
        Comparison(
            "list[int] of 100, write",
            writing(integers, lists),
            {"one struct call": each(lambda value: layout.pack(100, *value), lists)},
        ),
        Comparison(
            "list[int] of 100, read",
            reading(integers, lists),
            {"one struct call": each(lambda data: list(layout.unpack_from(data, 0))[1:], packed)},
        ),
        Comparison(
            "map[str, int] of 100, write",
            writing(mapping, maps),
            {"pickle": each(lambda value: pickle.dumps(value, pickle.HIGHEST_PROTOCOL), maps)},
        ),
        Comparison("map[str, int] of 100, read", reading(mapping, maps), {"pickle": each(pickle.loads, pickled)}),
    ]


@attrs.frozen
class EvolvedFlight:
    """The record after an upgrade: one field renamed, one widened, one added."""

    number: int
    minutes_late: float = attrs.field(metadata=former_names("delay"))
    carrier: str
    cancelled: bool
    gate: int
    terminal: str = "A"


def evolved_serializer() -> AttrsSerializer[EvolvedFlight]:
    """Return the new serializer of the migration."""
    return AttrsSerializer(EvolvedFlight, name="Flight")


def migration_contenders() -> tuple[Contender, Contender]:
    """Return two contenders in records per second: ours from bytes to bytes, and a read and a write through objects."""
    old, new = AttrsSerializer(Flight), evolved_serializer()
    snapshot = snapshot_from_bytes(snapshot_to_bytes(old.snapshot_configuration()))
    compatibility = resolve_compatibility(snapshot, new)
    if not compatibility.is_after_migration:
        raise AssertionError(f"the upgrade is meant to need a migration: {compatibility}")
    migration = SchemaMigration.of_compatibility(snapshot, new, compatibility)
    transcode, encoded = migration.transcode, [old.to_bytes(value) for value in flights()]
    read, write = old.codec.read, new.codec.write

    def ours() -> float:
        start = perf_counter_ns()
        for data in encoded:
            transcode(data, 0)
        return len(encoded) * 1e9 / (perf_counter_ns() - start)

    def by_objects() -> float:
        start = perf_counter_ns()
        for data in encoded:
            value = read(data, 0)[0]
            write(EvolvedFlight(value.number, value.delay, value.carrier, value.cancelled, value.gate))
        return len(encoded) * 1e9 / (perf_counter_ns() - start)

    return ours, by_objects
