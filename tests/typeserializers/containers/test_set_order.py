"""The stored order of set elements: insertion order if known, otherwise by bytes."""

from __future__ import annotations

from typing import Any

import pytest

import typeserializers as ts
from snapshots import DataOutputView

SHORTS, TEXTS = ts.SetSerializer(ts.ShortSerializer()), ts.SetSerializer(ts.StringSerializer())


def elements(serializer: Any, value: Any) -> list[bytes]:
    """The elements written by both forms, without their flags."""
    out = DataOutputView()
    serializer.serialize(value, out)
    data = serializer.to_bytes(value)
    assert out.to_bytes() == data
    width = (len(data) - 4) // len(value)
    return [data[place + 1 : place + width] for place in range(4, len(data), width)]


def shorts(*values: int) -> list[bytes]:
    return [value.to_bytes(2, "big", signed=True) for value in values]


@pytest.mark.parametrize("serializer", [SHORTS, ts.FrozenSetSerializer(ts.ShortSerializer())])
def test_a_set_without_an_order_is_stored_in_byte_order(serializer: Any) -> None:
    for value in ({3, 1, 2, -1}, {-1, 2, 3, 1}, frozenset({1, 3, 2, -1})):
        assert elements(serializer, value) == shorts(1, 2, 3, -1)


def test_a_linked_set_keeps_its_order_and_added_elements_follow_in_byte_order() -> None:
    linked = ts.LinkedSet([3, 1, 2])
    assert elements(SHORTS, linked) == shorts(3, 1, 2)
    linked.discard(1)
    linked.update({9, 7, 16})
    assert elements(SHORTS, linked) == shorts(3, 2, 7, 9, 16)
    assert list(SHORTS.copy(linked).remembered()) == [3, 2]  # type: ignore[attr-defined]
    assert elements(SHORTS, SHORTS.from_bytes(SHORTS.to_bytes(linked))) == shorts(3, 2, 7, 9, 16)
    # A frozenset has no order of its own, whatever it was created from.
    assert elements(ts.FrozenSetSerializer(ts.ShortSerializer()), linked) == shorts(2, 3, 7, 9, 16)


def test_elements_of_several_numbers_are_read_one_by_one() -> None:
    pairs = ts.TupleSerializer([ts.ShortSerializer(), ts.ShortSerializer()])
    for serializer, value in (
        (ts.ListSerializer(pairs), [(1, 2), (3, 4)]),
        (ts.SetSerializer(pairs), {(1, 2), (3, 4)}),
        (ts.ListSerializer(ts.TupleSerializer([ts.ShortSerializer()])), [(1,), (2,)]),
    ):
        assert serializer.from_bytes(serializer.to_bytes(value)) == value  # type: ignore[attr-defined]
