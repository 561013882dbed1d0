"""A composite with a learning part is duplicated with the part: the copies learn independently."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

import typeserializers as ts
from statebackend.testing.backends.evolving_serializers import LearningWordSerializer
from typeserializers.containers.ttl import TtlValue


@attrs.frozen
class Sentence:
    word: str


@attrs.define
class Spoken:
    __pojo_class__ = "duplicates.Spoken"
    word: str


COMPOSITES: dict[str, tuple[Any, Any]] = {
    "record": (lambda part: ts.AttrsSerializer(Sentence, field_serializers={"word": part}), Sentence),
    "pojo": (lambda part: ts.PojoSerializer(Spoken, field_serializers={"word": part}), Spoken),
    "tuple": (lambda part: ts.TupleSerializer([ts.LongSerializer(), part]), lambda word: (1, word)),
    "row": (lambda part: ts.RowSerializer([part]), lambda word: ts.Row(word)),
    "list": (ts.ListSerializer, lambda word: [word]),
    "set": (ts.SetSerializer, lambda word: {word}),
    "map by key": (lambda part: ts.MapSerializer(part, ts.LongSerializer()), lambda word: {word: 1}),
    "map by value": (lambda part: ts.MapSerializer(ts.LongSerializer(), part), lambda word: {1: word}),
    "optional": (ts.NullableSerializer, lambda word: word),
    "array": (lambda part: ts.GenericArraySerializer(part, "Word"), lambda word: [word]),
    "timed": (ts.TtlSerializer, lambda word: TtlValue(word, 5)),
    "inside": (
        lambda part: ts.ListSerializer(ts.AttrsSerializer(Sentence, field_serializers={"word": part})),
        lambda word: [Sentence(word)],
    ),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_duplicate_learns_independently(name: str) -> None:
    compose, value = COMPOSITES[name]
    part = LearningWordSerializer()
    original = compose(part)
    original.to_bytes(value("first"))
    duplicate = original.duplicate()
    assert duplicate is not original
    data = duplicate.to_bytes(value("second"))
    assert part.words == ["first"]
    assert duplicate.from_bytes(data) == value("second")
    original.to_bytes(value("third"))
    assert part.words == ["first", "third"]
    # Each copy has assigned the same number to another word.
    assert duplicate.from_bytes(original.to_bytes(value("third"))) == value("second")


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_serializer_that_does_not_learn_is_its_own_duplicate(name: str) -> None:
    compose, value = COMPOSITES[name]
    original = compose(ts.StringSerializer())
    duplicate = original.duplicate()
    assert duplicate == original
    assert duplicate.to_bytes(value("word")) == original.to_bytes(value("word"))
