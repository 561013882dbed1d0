"""The expected content of the golden files as plain data, derived from the records of the job."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

# By number: colour, quay, depth, number of tags (each tag is the key), note. Port and tons follow from key and number.
VISITS: dict[int, tuple[str, str, int, int, str | None]] = {
    1: ("BLUE", "quay 1", 4, 1, None),
    2: ("RED", "quay 2", 5, 2, "note 2"),
    3: ("BLUE", "quay 3", 6, 0, None),
    4: ("RED", "quay 4", 7, 1, "note 4"),
    5: ("BLUE", "quay 5", 8, 2, None),
    6: ("RED", "quay 6", 9, 0, "note 6"),
    7: ("BLUE", "quay 7", 10, 1, None),
    8: ("RED", "quay 8", 11, 2, "note 8"),
    9: ("BLUE", "quay 9", 12, 0, None),
    10: ("RED", "quay 10", 13, 1, "note 10"),
    11: ("BLUE", "quay 11", 14, 2, None),
    12: ("RED", "quay 12", 15, 0, "note 12"),
    13: ("BLUE", "quay 13", 16, 1, None),
    20: ("RED", "quay 20", 23, 2, "note 20"),
    21: ("BLUE", "quay 21", 24, 0, None),
}

# By version of the program and number. In version 2 the subclass has a zone and no area.
POJOS: dict[int, dict[int, tuple[Any, ...]]] = {
    1: {
        1: ("TownV1", 1, 10, 100),
        2: ("PlaceV1", 2),
        3: ("TownV1", 3, 30, 300),
        4: ("PlaceV1", 4),
        5: ("TownV1", 5, 50, 500),
        6: ("PlaceV1", 6),
        8: ("PlaceV1", 8),
        9: ("TownV1", 9, 90, 900),
        10: ("PlaceV1", 10),
        11: ("TownV1", 11, 110, 1100),
        12: ("PlaceV1", 12),
        13: ("TownV1", 13, 130, 1300),
        20: ("PlaceV1", 20),
        21: ("TownV1", 21, 210, 2100),
    },
    2: {
        2: ("PlaceV2", 2),
        6: ("PlaceV2", 6),
        8: ("PlaceV2", 8),
        10: ("PlaceV2", 10),
        11: ("TownV2", 11, 1100, 7),
        12: ("PlaceV2", 12),
        13: ("TownV2", 13, 1300, 7),
        20: ("PlaceV2", 20),
        21: ("TownV2", 21, 2100, 7),
    },
}

# By the last number of the key. None means that the value is the record.
UNION: dict[int, Any] = {
    1: "text 1",
    2: None,
    3: 3,
    4: "text 4",
    5: None,
    6: 6,
    8: None,
    9: 9,
    10: "text 10",
    11: None,
    12: 12,
    13: "text 13",
    20: None,
    21: 21,
}


@frozen
class Lasting:
    """State with TTL: the last number, the list, the map entries, the sum and the average."""

    last: int | None = None
    numbers: list[int] = field(factory=list)
    mapped: list[int] = field(factory=list)
    sum: int | None = None
    average: float | None = None


@frozen
class Held:
    """All state of a key: the last number, whether its record exists, then the fields of `Lasting`."""

    last: int | None = None
    has_record: bool = False
    numbers: list[int] = field(factory=list)
    mapped: list[int] = field(factory=list)
    sum: int | None = None
    average: float | None = None
    ttl: Lasting = Lasting()


NOTHING = Held()
KEYS = ["ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal", "ivy", "lou", "nobody"]


def _once(number: int) -> Held:
    """A key with one number, nothing removed and nothing expired."""
    alone = [number]
    return Held(number, True, alone, alone, number, number, Lasting(number, alone, alone, number, number))


_BOB = Held(8, True, [2, 8], [2, 8], 10, 5.0, Lasting(8, [2, 8], [2, 8], 10, 5.0))
_EVE = Held(12, True, [5, 12], [5, 12], 17, 8.5, Lasting(12, [5, 12], [5, 12], 17, 8.5))
_HAL = Held(11, False, [], [11], 11, 11.0, Lasting(11, [11], [11], 11, 11.0))

# By checkpoint id, before anything has expired.
CHECKPOINTS: dict[int, dict[str, Held]] = {
    0: {"ada": _once(1), "bob": _once(2), "cyd": _once(3), "dan": _once(4), "eve": _once(5), "fay": _once(6)},
    1: {
        "ada": Held(2, True, [1, 7, 2], [1, 2, 7], 10, 10 / 3, Lasting(2, [1, 7, 2], [1, 2, 7], 10, 10 / 3)),
        "bob": _BOB,
        "cyd": Held(9, True, [3, 9], [3, 9], 12, 6.0, Lasting(9, [3, 9], [3, 9], 12, 6.0)),
        "dan": _once(4),
        "eve": _once(5),
        "fay": _once(6),
        "gus": _once(10),
        "hal": _once(11),
    },
    2: {
        "ada": Held(2, False, [7, 2], [2, 7], 10, 10 / 3, Lasting(2, [1, 7, 2], [2, 7], 10, 10 / 3)),
        "bob": _BOB,
        "eve": _EVE,
        "fay": _once(6),
        "gus": _once(10),
        "hal": _HAL,
        "ivy": _once(13),
    },
}

# State with TTL of the newest checkpoint and of the savepoint, after expiry of epoch 0, then also of epoch 1.
WITHOUT_EPOCH_0: dict[str, Lasting] = {
    "ada": Lasting(2, [7, 2], [2, 7], 10, 10 / 3),
    "bob": Lasting(8, [8], [8], 10, 5.0),
    "eve": Lasting(12, [12], [12], 17, 8.5),
    "gus": Lasting(10, [10], [10], 10, 10.0),
    "hal": Lasting(11, [11], [11], 11, 11.0),
    "ivy": Lasting(13, [13], [13], 13, 13.0),
}
WITHOUT_EPOCH_1: dict[str, Lasting] = {
    "eve": Lasting(12, [12], [12], 17, 8.5),
    "ivy": Lasting(13, [13], [13], 13, 13.0),
}

# The job that started from the savepoint, one epoch later. The numbers of epoch 0 have expired.
BEGUN: dict[str, Held] = {
    "ada": Held(20, True, [7, 2, 20], [2, 7, 20], 30, 7.5, Lasting(20, [7, 2, 20], [2, 7, 20], 30, 7.5)),
    "bob": Held(8, True, [2, 8], [2, 8], 10, 5.0, WITHOUT_EPOCH_0["bob"]),
    "eve": Held(12, True, [5, 12], [5, 12], 17, 8.5, WITHOUT_EPOCH_0["eve"]),
    "gus": _once(10),
    "hal": _HAL,
    "ivy": _once(13),
    "lou": _once(21),
}

# Operator state by epoch: the elements added to the lists of all subtasks. ``BROADCAST`` has the broadcast entries.
ADDED: list[list[tuple[str, int]]] = [
    [("ada", 1), ("bob", 2), ("cyd", 3), ("dan", 4), ("eve", 5), ("fay", 6)],
    [("ada", 7), ("bob", 8), ("cyd", 9), ("gus", 10), ("hal", 11), ("ada", 2)],
    [("eve", 12), ("ivy", 13)],
    [("ada", 20), ("lou", 21)],
]
# `open` writes an entry in the first epoch of each run.
BROADCAST: dict[str, int | None] = {"epoch 0": 0, "epoch 3": 3, "nothing": None}


def visit(key: str, number: int, version: int) -> tuple[Any, ...]:
    """The stored record of a number in each version of the program."""
    colour, quay, depth, tags, note = VISITS[number]
    if version == 1:
        return "VisitV1", f"port of {key}", number, colour, ("BerthV1", quay, depth), [key] * tags, note
    return "VisitV2", f"port of {key}", colour, float(number), ("BerthV2", float(depth)), [key] * tags, "nobody"


def content(key: str, held: Held, version: int) -> dict[str, Any]:
    """All state of a key, by state name."""

    def record(number: int | None) -> Any:
        return None if number is None else visit(key, number, version)

    last, ttl = held.last, held.ttl
    return {
        "value": last,
        "record": record(last) if held.has_record else None,
        "pojo": None if last is None else POJOS[version][last],
        "union": None if last is None else record(last) if UNION[last] is None else UNION[last],
        "list": [record(number) for number in held.numbers],
        "map": _entries(held.mapped),
        "reducing": held.sum,
        "aggregating": held.average,
        **lasting_content(key, ttl, version),
    }


def lasting_content(key: str, ttl: Lasting, version: int) -> dict[str, Any]:
    """The part of `content` that can expire."""
    return {
        "value with ttl": None if ttl.last is None else visit(key, ttl.last, version),
        "list with ttl": ttl.numbers,
        "map with ttl": _entries(ttl.mapped),
        "reducing with ttl": ttl.sum,
        "aggregating with ttl": ttl.average,
    }


def _entries(numbers: list[int]) -> dict[str, float | None]:
    return {str(number): None if number == 2 else number / 2 for number in numbers}
