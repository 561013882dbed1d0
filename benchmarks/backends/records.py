"""Two versions of a record for migrations; the new one widens a field and has one more."""

from __future__ import annotations

import struct
from collections.abc import Callable

import attrs

from benchmarks.backends.setting import Setting
from typeserializers.records.record_serializer import AttrsSerializer

_NAME = "benchmarks.backends.Reading"


@attrs.frozen
class ReadingV1:
    """What a sensor measured."""

    sensor: int
    degrees: int
    place: str


@attrs.frozen
class ReadingV2:
    """A field widened, one added."""

    sensor: int
    degrees: float
    place: str
    quality: int = 1


def reading_v1() -> AttrsSerializer[ReadingV1]:
    """The serializer of the first version."""
    return AttrsSerializer(ReadingV1, name=_NAME)


def reading_v2() -> AttrsSerializer[ReadingV2]:
    """The serializer of the second version, to which entries of the first must be migrated."""
    return AttrsSerializer(ReadingV2, name=_NAME)


def reading_of(key: int) -> ReadingV1:
    """What is stored under a key."""
    return ReadingV1(key, key % 50, f"hall {key % 100}")


def migrated(reading: ReadingV1) -> ReadingV2:
    """What a migration must make of it."""
    return ReadingV2(reading.sensor, float(reading.degrees), reading.place)


def hand_packed(keys: int) -> list[tuple[bytes, bytes]]:
    """The readings as a program without serializers may lay them out, in the order of their keys."""
    pack_key, pack = struct.Struct(">q").pack, struct.Struct(">qq").pack
    readings = map(reading_of, range(keys))
    return [(pack_key(item.sensor), pack(item.sensor, item.degrees) + item.place.encode()) for item in readings]


def hand_migration() -> Callable[[bytes], bytes]:
    """The same migration over the hand-packed layout."""
    unpack, pack, quality = struct.Struct(">qq").unpack_from, struct.Struct(">qd").pack, struct.pack(">q", 1)

    def migrate(old: bytes) -> bytes:
        sensor, degrees = unpack(old)
        return pack(sensor, degrees) + quality + old[16:]

    return migrate


def check_sample(setting: Setting, keys: int, read: Callable[[int], ReadingV2 | None]) -> None:
    """Raises unless some of the migrated readings are what they must be."""
    for key in setting.random().sample(range(keys), min(keys, 10)):
        if read(key) != migrated(reading_of(key)):
            raise AssertionError(f"the reading of key {key} was migrated to {read(key)}")
