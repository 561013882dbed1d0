"""The meta data of several subtasks as those of one: what is merged, what is told apart, what is refused."""

import pytest

from statebackend import StateRestoreError, ValueStateDescriptor
from statebackend.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state_meta import (
    KeyedStateMeta,
    decode_meta,
    distinct_metas,
    encode_meta,
    merge_metas,
    meta_of_descriptor,
)
from typeserializers import IntSerializer, LongSerializer, StringSerializer


def meta(*descriptors, key=None, sequence=0):
    states = tuple(meta_of_descriptor(descriptor, VOID_NAMESPACE_SERIALIZER) for descriptor in descriptors)
    return KeyedStateMeta((key or LongSerializer()).snapshot_configuration(), sequence, states)


A = ValueStateDescriptor("a", int)
A_OTHERWISE = ValueStateDescriptor("a", str)
B = ValueStateDescriptor("b", int)


def test_states_of_different_names_are_merged():
    merged = merge_metas([meta(A, sequence=3), meta(A, B, sequence=7), meta()])
    assert [state.name for state in merged.states] == ["a", "b"]
    assert merged.sequence == 7
    assert merge_metas([]) is None


def test_keys_of_different_serializers_are_no_one_operators():
    with pytest.raises(StateRestoreError, match="the keys of one operator were written by different serializers"):
        merge_metas([meta(A), meta(A, key=IntSerializer())])


def test_a_state_under_two_schemas_is_refused_by_name():
    with pytest.raises(StateRestoreError, match="state 'a' was written under different schemas"):
        merge_metas([meta(A), meta(A_OTHERWISE)])


def test_metas_that_differ_only_in_sequence_and_order_are_one():
    ours, same = meta(A, B, sequence=1), meta(B, A, sequence=2)
    others = [meta(A), meta(A_OTHERWISE, B), meta(A, B, key=StringSerializer())]
    assert distinct_metas([ours, same, *others, same]) == (ours, *others)


def test_a_state_whose_serializer_nobody_knows_is_refused_by_name():
    encoded = encode_meta(meta(B, A))
    # The last name in it is that of the serializer of the last state.
    position = encoded.rindex(b"LongSerializerSnapshot")
    alien = encoded[:position] + b"Gone" + encoded[position + 4 :]
    with pytest.raises(StateRestoreError, match=r"state 'a' cannot be read: unknown serializer snapshot .*import"):
        decode_meta(alien, 0)
    assert [state.name for state in decode_meta(encoded, 0).states] == ["b", "a"]
