"""Keys of a broadcast state that become equal because two enum constants were merged."""

import enum

import pytest

from statebackend import BroadcastStateDescriptor
from statebackend.state.errors import StateMigrationException, StateRestoreError

FIRST = enum.Enum("Colour", {"RED": 1, "CRIMSON": 2, "BLUE": 3})
SECOND = enum.Enum("Colour", {"RED": 1, "CRIMSON": 1, "BLUE": 3})


def descriptor(colour):
    return BroadcastStateDescriptor("names", colour, str)


def restored(operator, entries):
    (backend,) = operator.start()
    backend.get_state(descriptor(FIRST)).put_all(entries)
    (restored,) = operator.restart([backend])
    return restored


def test_entries_are_found_under_the_remaining_constant(operator):
    state = restored(operator, {FIRST.CRIMSON: "dark", FIRST.BLUE: "cold"}).get_state(descriptor(SECOND))
    assert dict(state.items()) == {SECOND.RED: "dark", SECOND.BLUE: "cold"}


def test_keys_that_become_equal_fail_the_restore_and_are_named(operator):
    backend = restored(operator, {FIRST.RED: "light", FIRST.CRIMSON: "dark"})
    with pytest.raises(
        (StateMigrationException, StateRestoreError), match=r"Colour\.RED: 1.* and .*Colour\.CRIMSON: 2"
    ):
        backend.get_state(descriptor(SECOND))
