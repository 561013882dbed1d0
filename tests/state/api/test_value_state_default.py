"""The default of a value state is a value of the state."""

import pytest

from statebackend import StateRegistrationError, StateTtlConfig, ValueStateDescriptor
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends.harness import BackendHarness
from typeserializers.scalars.fixed_width import IntSerializer


def test_a_default_of_another_type_is_rejected_by_the_constructor():
    with pytest.raises(StateRegistrationError, match=r"state 'count': the default 'none' is not a value"):
        ValueStateDescriptor("count", int, default="none")
    with pytest.raises(StateRegistrationError, match=r"state 'count'.*2147483648"):
        ValueStateDescriptor("count", IntSerializer(), default=2**31)


@pytest.mark.parametrize("default", [None, 0, -1])
def test_a_valid_default_or_none_is_accepted(default):
    assert ValueStateDescriptor("count", int, default=default).default == default


@pytest.mark.parametrize("name", ["heap", "rocksdb"])
def test_a_default_is_read_as_if_it_were_stored(tmp_path, name):
    harness = BackendHarness(str(tmp_path))
    backend = harness.open(state_backend(name))
    harness.at(backend, 1)
    flag = backend.get_state(ValueStateDescriptor("flag", int, default=True))
    ttl = backend.get_state(ValueStateDescriptor("with ttl", float, 3, ttl=StateTtlConfig("1 hour")))
    assert (type(flag.value()), type(ttl.value())) == (int, float)
    given = [1]
    elements = ValueStateDescriptor("list", list[int], default=given)
    given.append(2)
    assert backend.get_state(elements).value() == [1]
    harness.close()
