"""Rows of other bytes are rejected at registration, not at a read."""

import attrs
import pytest

from statebackend.state.errors import StateMigrationException, StateRestoreError
from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor, SplitListStateDescriptor
from statebackend.state.operator_state_handles import (
    decode_operator_state,
    encode_operator_state,
    encoded_rows,
    read_slices,
)
from statebackend.testing.backends.evolving_records import FlightV1, LegV1, flight_v1, flight_v2, leg_v1, leg_v2


def with_rows(operator, handle, change):
    """The handle of the same state with other keys and values, and a valid checksum."""
    (state,) = decode_operator_state(handle).states
    (part,) = state.parts
    rows = [change(*row) for row in read_slices(operator.file_system, part.slices)]
    file = operator.file_system.write_file("damaged", encoded_rows(rows))
    part = attrs.evolve(part, slices=(attrs.evolve(part.slices[0], file=file),))
    return encode_operator_state(
        attrs.evolve(decode_operator_state(handle), states=(attrs.evolve(state, parts=(part,)),))
    )


@pytest.mark.parametrize("change", [lambda value: value + b"\0", lambda value: value[:-1]], ids=["longer", "shorter"])
@pytest.mark.parametrize("is_broadcast", [False, True])
@pytest.mark.parametrize(
    ("old", "new", "record", "error"),
    [
        (list[int], list[int], [1, 2], StateRestoreError),
        (int, int, 1, StateRestoreError),
        (leg_v1(), leg_v2(), LegV1("EWR", 1), StateMigrationException),
        (flight_v1(), flight_v2(), FlightV1(1, 10, "UA"), StateMigrationException),
    ],
    ids=["mutable", "immutable", "migrated mutable", "migrated immutable"],
)
def test_invalid_bytes_are_rejected_at_registration(operator, old, new, record, error, is_broadcast, change):
    def descriptor(of):
        if is_broadcast:
            return BroadcastStateDescriptor("state", str, of)
        return SplitListStateDescriptor("state", of)

    (backend,) = operator.start()
    state = backend.get_state(descriptor(old))
    if is_broadcast:
        state.put("key", record)
    else:
        state.add(record)
    (handle,) = operator.snapshot([backend])
    (restored,) = operator.start([with_rows(operator, handle, lambda key, value: (key, value))])
    restored.get_state(descriptor(new))
    (damaged,) = operator.start([with_rows(operator, handle, lambda key, value: (key, change(value)))])
    with pytest.raises(error, match=r"operator-under-test.*'state', row 1: "):
        damaged.get_state(descriptor(new))
    assert damaged.unregistered_names() == ("state",)


@pytest.mark.parametrize("row", [(b"key", b"value"), (b"key", None), (None, None)])
def test_a_row_of_another_kind_is_rejected_in_a_list(operator, row):
    (backend,) = operator.start()
    backend.get_state(SplitListStateDescriptor("state", bytes)).add(b"value")
    (handle,) = operator.snapshot([backend])
    (damaged,) = operator.start([with_rows(operator, handle, lambda key, value: row)])
    with pytest.raises(StateRestoreError, match="a row does not belong to a list state"):
        damaged.get_state(SplitListStateDescriptor("state", bytes))


def test_a_row_of_another_kind_is_rejected_in_a_broadcast_state(operator):
    descriptor = BroadcastStateDescriptor("state", bytes, bytes)
    (backend,) = operator.start()
    backend.get_state(descriptor).put(b"key", b"value")
    (handle,) = operator.snapshot([backend])
    (damaged,) = operator.start([with_rows(operator, handle, lambda key, value: (None, value))])
    with pytest.raises(StateRestoreError, match="a row does not belong to a broadcast state"):
        damaged.get_state(descriptor)
