"""The learning serializers of the backend contract meet the serializer contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statebackend.testing.backends.evolving_records import PlaceV1, PortV1, TownV1, places_v1
from statebackend.testing.backends.evolving_serializers import LearningWordSerializer
from statebackend.testing.serializers import SerializerContract
from typeserializers import TypeSerializer


class TestLearningWordSerializer(SerializerContract):
    expected_length = 1

    def serializer(self) -> TypeSerializer[Any]:
        return LearningWordSerializer()

    def values(self) -> Sequence[Any]:
        return ["red", "", "green"]


class TestPlaces(SerializerContract):
    def serializer(self) -> TypeSerializer[Any]:
        return places_v1()

    def values(self) -> Sequence[Any]:
        return [PlaceV1(1), TownV1(2, 3, 4), PortV1(5, 6, 7), TownV1(8)]
