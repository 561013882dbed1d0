"""A key setter equals `set_current_key` for the states registered when it was created."""

from __future__ import annotations

import math

import pytest

from snapshots.errors import SerializationError
from statebackend import IncrementalCleanup, StateTtlConfig, ValueStateDescriptor
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends import BackendHarness
from statebackend.testing.backends.harness import ManualClock
from typeserializers.scalars.fixed_width import DoubleSerializer


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


@pytest.fixture(params=["heap", "rocksdb"])
def create_backend(request):
    return lambda: state_backend(request.param)


@pytest.mark.parametrize("key_serializer", [None, DoubleSerializer()])
def test_a_set_key_is_current(harness, create_backend, key_serializer):
    options = {} if key_serializer is None else {"key_serializer": key_serializer}
    backend = harness.open(create_backend(), **options)
    state = backend.get_state(ValueStateDescriptor("count", int))
    set_key = backend.key_setter()
    for key in (1, 2, 1):
        set_key(key, 3)
        state.update((state.value() or 0) + 1)
    backend.set_current_key(1, 3)
    assert state.value() == 2
    assert sorted(backend.get_keys("count")) == [1, 2]


def test_equal_bytes_are_the_same_key(harness, create_backend):
    backend = harness.open(create_backend(), key_serializer=DoubleSerializer())
    state = backend.get_state(ValueStateDescriptor("count", int))
    set_key = backend.key_setter()
    set_key(math.nan, 3)
    state.update(1)
    set_key(float("nan"), 3)
    assert state.value() == 1


def test_an_invalid_key_changes_nothing(harness, create_backend):
    backend = harness.open(create_backend(), key_serializer=DoubleSerializer())
    state = backend.get_state(ValueStateDescriptor("count", int))
    set_key = backend.key_setter()
    set_key(1.0, 3)
    state.update(1)
    with pytest.raises(SerializationError):
        set_key("one", 4)
    assert state.value() == 1


def test_clean_up_for_every_record_is_included(harness, create_backend):
    clock = ManualClock()
    harness.clock = clock
    backend = harness.open(create_backend())
    ttl = StateTtlConfig(10, incremental_cleanup=IncrementalCleanup(5, for_every_record=True))
    state = backend.get_state(ValueStateDescriptor("count", int, ttl=ttl))
    set_key = backend.key_setter()
    for key in range(4):
        set_key(key, 3)
        state.update(key)
    harness.snapshot(backend)
    clock.now_ms += 100
    for _ in range(4):
        set_key(99, 3)
    assert list(backend.get_keys("count")) == []
