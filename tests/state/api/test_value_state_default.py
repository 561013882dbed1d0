"""The default of a value state is a value of the state."""

import pytest

from statebackend import StateRegistrationError, ValueStateDescriptor
from typeserializers.scalars.fixed_width import IntSerializer


def test_a_default_of_another_type_is_rejected_by_the_constructor():
    with pytest.raises(StateRegistrationError, match=r"state 'count': the default 'none' is not a value"):
        ValueStateDescriptor("count", int, default="none")
    with pytest.raises(StateRegistrationError, match=r"state 'count'.*2147483648"):
        ValueStateDescriptor("count", IntSerializer(), default=2**31)


@pytest.mark.parametrize("default", [None, 0, -1])
def test_a_valid_default_or_none_is_accepted(default):
    assert ValueStateDescriptor("count", int, default=default).default == default
