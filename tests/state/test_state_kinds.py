"""The table of state kinds: each entry is complete, so that a kind is added in one place."""

import copy
import pickle

import pytest

from statebackend import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    PriorityQueueDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from statebackend.state.internal_states import Lifetime
from statebackend.state.priority_queue import PRIORITY_QUEUE
from statebackend.state.state_meta import STATE_KINDS
from statebackend.testing.backends.evolving_records import MUTABLE_SUM
from statebackend.testing.backends.harness import ManualClock
from typeserializers.containers.ttl import TtlSerializer

DESCRIPTORS = [
    ValueStateDescriptor("value", int),
    ListStateDescriptor("list", int),
    MapStateDescriptor("map", str, int),
    ReducingStateDescriptor("reducing", max, int),
    AggregatingStateDescriptor("aggregating", MUTABLE_SUM.aggregate_function, MUTABLE_SUM.accumulator_serializer),
]
KINDS = [*STATE_KINDS.values(), PRIORITY_QUEUE]


def test_every_kind_in_the_table_has_a_descriptor_and_the_names_on_disk_are_frozen():
    assert {descriptor.kind.name: descriptor.kind for descriptor in DESCRIPTORS} == STATE_KINDS
    assert [kind.name for kind in KINDS] == ["value", "list", "map", "reducing", "aggregating", "priority_queue"]
    assert PriorityQueueDescriptor("queue", int).kind is PRIORITY_QUEUE


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_kind_is_the_same_object_after_pickling(kind):
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert copy.deepcopy(kind) is kind


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda descriptor: descriptor.name)
def test_the_stored_form_of_ttl_state_has_the_same_kind_without_ttl(descriptor):
    kind = descriptor.kind
    serializers = kind.timed_serializers(descriptor.serializers)
    stored = kind.timed_descriptor(descriptor, serializers, Lifetime(StateTtlConfig(10), ManualClock()))
    assert (stored.kind, stored.name, stored.ttl) == (kind, descriptor.name, None)
    assert isinstance(stored.serializers[kind.timed_role], TtlSerializer)
    assert stored.serializers == serializers


@pytest.mark.parametrize("kind", list(STATE_KINDS.values()), ids=repr)
def test_the_metrics_of_a_handle_are_existing_methods(kind):
    assert kind.reads
    for method in [*kind.reads, *kind.writes]:
        assert callable(getattr(kind.handle_class, method))
