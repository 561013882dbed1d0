"""Two versions of a record for migrations; the second widens a field and adds one."""

from __future__ import annotations

import struct
from collections.abc import Callable

import attrs

from benchmarks.backends.setting import Setting
from typeserializers.records.record_serializer import AttrsSerializer

_NAME = "benchmarks.backends.Reading"


@attrs.frozen
class ReadingV1:
    """A measured value of a sensor."""

    sensor: int
    degrees: int
    place: str


@attrs.frozen
class ReadingV2:
    """The same record with a widened and an added field."""

    sensor: int
    degrees: float
    place: str
    quality: int = 1


def reading_v1() -> AttrsSerializer[ReadingV1]:
    """Return the serializer of the first version."""
    return AttrsSerializer(ReadingV1, name=_NAME)


def reading_v2() -> AttrsSerializer[ReadingV2]:
    """Return the serializer of the second version, which is compatible with the first after migration."""
    return AttrsSerializer(ReadingV2, name=_NAME)


def reading_of(key: int) -> ReadingV1:
    """Return the reading that is stored under a key."""
    return ReadingV1(key, key % 50, f"hall {key % 100}")


def migrated(reading: ReadingV1) -> ReadingV2:
    """Return the expected result of the migration."""
    return ReadingV2(reading.sensor, float(reading.degrees), reading.place)


def hand_packed(keys: int) -> list[tuple[bytes, bytes]]:
    """Return the readings in key order, in a layout that a program without serializers could use."""
    pack_key, pack = struct.Struct(">q").pack, struct.Struct(">qq").pack
    readings = map(reading_of, range(keys))
    return [(pack_key(item.sensor), pack(item.sensor, item.degrees) + item.place.encode()) for item in readings]


def hand_migration() -> Callable[[bytes], bytes]:
    """Return a function that migrates a hand-packed reading."""
    unpack, pack, quality = struct.Struct(">qq").unpack_from, struct.Struct(">qd").pack, struct.pack(">q", 1)

    def migrate(old: bytes) -> bytes:
        sensor, degrees = unpack(old)
        return pack(sensor, degrees) + quality + old[16:]

    return migrate


def check_sample(setting: Setting, keys: int, read: Callable[[int], ReadingV2 | None]) -> None:
    """Raise `AssertionError` if a sample of the migrated readings has a wrong one."""
    for key in setting.random().sample(range(keys), min(keys, 10)):
        if read(key) != migrated(reading_of(key)):
            raise AssertionError(f"the reading of key {key} was migrated to {read(key)}")
