"""Operator state of serializers that learn while writing: a restore knows what any subtask has learned."""

from typing import Annotated

import attrs
import pytest

from statebackend.state.operator_state_descriptors import (
    BroadcastStateDescriptor,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.testing.backends.evolving_records import (
    PlaceV1,
    PlaceV2,
    PortV1,
    PortV2,
    TownV1,
    TownV2,
    places_v1,
    places_v2,
)
from statebackend.testing.backends.evolving_serializers import LearningWordSerializer, WordSerializer
from typeserializers import PojoSerializer

PLACES = [PlaceV1(7), TownV1(1, area=3, extra=2)]
PORTS = [PortV1(2, berths=5, depth=9)]
MIGRATED = [PlaceV2(7), TownV2(1, extra=2, zone=0), PortV2(2, anchorages=0, berths=5)]

LISTS = [SplitListStateDescriptor, UnionListStateDescriptor]


@attrs.define
class Sign:
    __pojo_class__ = "operator.learning.Sign"


@attrs.define
class Colour(Sign):
    __pojo_class__ = "operator.learning.Colour"
    word: Annotated[str, WordSerializer("red", "green")] = "red"


@attrs.define
class NewSign:
    __pojo_class__ = "operator.learning.Sign"


@attrs.define
class NewColour(NewSign):
    __pojo_class__ = "operator.learning.Colour"
    word: Annotated[str, WordSerializer("blue", "green", "red")] = "red"


def met_by_two_subtasks(operator, descriptor):
    """The handles of two subtasks, each of which has seen a class that the other has not."""
    backends = operator.start(parallelism=2)
    for backend, places in zip(backends, (PLACES, PORTS), strict=True):
        backend.get_state(descriptor(places_v1())).add_all(places)
    return operator.snapshot(backends)


@pytest.mark.parametrize("mode", LISTS)
@pytest.mark.parametrize("is_savepoint", [False, True])
def test_subclasses_seen_while_writing_are_migrated(operator, mode, is_savepoint):
    handles = met_by_two_subtasks(operator, lambda serializer: mode("places", serializer))
    source = None
    if is_savepoint:
        handles, source = operator.savepoint(handles)
    (backend,) = operator.start(handles, 1, source)
    assert backend.get_state(mode("places", places_v2())).get() == MIGRATED


@pytest.mark.parametrize("mode", LISTS)
def test_a_restored_subtask_knows_what_several_subtasks_have_seen(operator, mode):
    handles = met_by_two_subtasks(operator, lambda serializer: mode("places", serializer))
    (backend,) = operator.start(handles, 1)
    state = backend.get_state(mode("places", places_v1()))
    assert state.get() == [*PLACES, *PORTS]
    state.add(PlaceV1(8))
    (again,) = operator.restart([backend])
    assert again.get_state(mode("places", places_v2())).get() == [*MIGRATED, PlaceV2(8)]


def test_broadcast_entries_know_what_was_seen(operator):
    (backend,) = operator.start()
    state = backend.get_state(BroadcastStateDescriptor("places", str, places_v1()))
    state.put("town", PLACES[1])
    (again,) = operator.restart([backend])
    state = again.get_state(BroadcastStateDescriptor("places", str, places_v1()))
    state.put("port", PORTS[0])
    (last,) = operator.restart([again])
    assert dict(last.get_state(BroadcastStateDescriptor("places", str, places_v2())).items()) == {
        "town": MIGRATED[1],
        "port": MIGRATED[2],
    }


def test_a_subclass_is_read_as_written_if_its_serializer_is_reconfigured(operator):
    backends = operator.start(parallelism=2)
    first, second = ([Colour("green"), Colour("red")], [Sign()])
    for backend, signs in zip(backends, (first, second), strict=True):
        backend.get_state(UnionListStateDescriptor("signs", PojoSerializer(Sign))).add_all(signs)
    (restored,) = operator.restart(backends, 1)
    state = restored.get_state(UnionListStateDescriptor("signs", PojoSerializer(NewSign)))
    assert state.get() == [NewColour("green"), NewColour("red"), NewSign()]
    state.add(NewColour("blue"))
    (again,) = operator.restart([restored])
    state = again.get_state(UnionListStateDescriptor("signs", PojoSerializer(NewSign)))
    assert state.get() == [NewColour("green"), NewColour("red"), NewSign(), NewColour("blue")]


def test_numbers_assigned_while_writing_are_restored(operator):
    (backend,) = operator.start()
    backend.get_state(SplitListStateDescriptor("words", LearningWordSerializer())).add_all(["red", "green"])
    (again,) = operator.restart([backend])
    state = again.get_state(SplitListStateDescriptor("words", LearningWordSerializer()))
    state.add("blue")
    assert state.get() == ["red", "green", "blue"]
    (last,) = operator.restart([again])
    assert last.get_state(SplitListStateDescriptor("words", LearningWordSerializer())).get() == ["red", "green", "blue"]
