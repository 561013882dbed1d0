"""Profile of a map with a hundred entries: the steps that any Python implementation must do, measured alone.

A lower bound for writing is to create the bytes of each key and to pack each value. A lower bound for reading is to
slice and decode each key and to unpack each value into a dict. pickle does the whole map in C, and may be faster than
these bounds.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from typing import Any

from benchmarks.alternating import measure_alternating
from benchmarks.result import Result
from benchmarks.serializers.contenders import RECORDS, each, reading, writing
from typeserializers import LongSerializer, MapSerializer, StringSerializer


def run_map_profile(rounds: int) -> Iterator[Result]:
    """Yield one result per step, each compared with pickle's time for the whole map."""
    maps: list[dict[Any, Any]] = [{f"key{j}": i + j for j in range(100)} for i in range(RECORDS // 10)]
    serializer: MapSerializer[str | None, int] = MapSerializer(StringSerializer(), LongSerializer())
    encoded = [serializer.to_bytes(value) for value in maps]
    pickled = [pickle.dumps(value, pickle.HIGHEST_PROTOCOL) for value in maps]
    pack, unpack = struct.Struct(">?q").pack, struct.Struct(">?q").unpack_from

    def floor_write(value: dict[str, int]) -> bytes:
        return b"".join([key.encode() + pack(False, item) for key, item in value.items()])

    def floor_read(data: bytes) -> dict[str, int]:
        result, position = {}, 4
        for _ in range(100):
            end = position + data[position]
            result[data[position + 1 : end].decode()] = unpack(data, end)[1]
            position = end + 9
        return result

    def loop(value: dict[str, int]) -> None:
        for _key, _item in value.items():
            pass

    write = {
        "pickle": each(lambda value: pickle.dumps(value, pickle.HIGHEST_PROTOCOL), maps),
        "ours, write": writing(serializer, maps),
        "lower bound of writing": each(floor_write, maps),
        "the bare loop": each(loop, maps),
    }
    read = {
        "pickle": each(pickle.loads, pickled),
        "ours, read": reading(serializer, maps),
        "lower bound of reading": each(floor_read, encoded),
    }
    for side in (write, read):
        measured = measure_alternating(side, rounds=rounds, warm_up_rounds=3)
        for name, measurement in measured.items():
            if name != "pickle":
                whole = measured["pickle"].median
                yield Result(f"map[str, int] of 100: {name}", measurement.median, whole, "pickle", "ns")
