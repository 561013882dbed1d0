"""Raw keys of RocksDB: decodable, prefix-free, and ordered by key group."""

import itertools
import math
import struct

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshots.errors import SerializationError
from statebackend.state.composite_key import VOID_NAMESPACE_BYTES, RawKeys
from statebackend.state.errors import StateBackendError
from statebackend.state.key_groups import KeyGroupRange
from typeserializers import DoubleSerializer, LongSerializer, StringSerializer, VoidNamespaceSerializer
from typeserializers.kernel.serializer_inference import serializer_for

GROUPS = KeyGroupRange(3, 300)
VOID = VoidNamespaceSerializer()
TEXTS = st.text(st.sampled_from("a\0\u007f\u0080é\uffff\U0001f600"), max_size=3) | st.text(max_size=200)

# Serializers of fixed and of variable width, with their values.
PARTS = {
    "fixed": (LongSerializer(), st.integers(-(2**63), 2**63 - 1)),
    "variable": (StringSerializer(), TEXTS),
    "tuple": (serializer_for(tuple[str, int]), st.tuples(TEXTS, st.integers(-5, 5))),
    "optional": (serializer_for(str | None), st.none() | TEXTS),
}


@pytest.mark.extended_after(5)
@pytest.mark.parametrize("namespace", [None, *PARTS])
@pytest.mark.parametrize("key", list(PARTS))
@settings(max_examples=examples(60))
@given(data=st.data())
def test_a_raw_key_is_the_group_and_the_serialized_parts_and_can_be_decoded(key, namespace, data):
    key_serializer, keys = PARTS[key]
    namespace_serializer, namespaces = (VOID, None) if namespace is None else PARTS[namespace]
    raw_keys = RawKeys(key_serializer, namespace_serializer, GROUPS, namespaces is not None)
    address = st.tuples(st.sampled_from([3, 4, 255, 256, 300]), keys, st.none() if namespaces is None else namespaces)
    made = {}
    for group, one_key, one_namespace in data.draw(st.lists(address, min_size=1, max_size=6)):
        raw = raw_keys.prefix(one_key if namespaces is None else (one_key, one_namespace), group)
        key_bytes = key_serializer.to_bytes(one_key)
        namespace_bytes = VOID_NAMESPACE_BYTES if namespaces is None else namespace_serializer.to_bytes(one_namespace)
        assert raw == struct.pack(">H", group) + key_bytes + namespace_bytes
        assert raw_keys.split(raw) == (group, key_bytes, namespace_bytes, b"")
        assert raw_keys.split(raw + b"user key") == (group, key_bytes, namespace_bytes, b"user key")
        made[group, key_bytes, namespace_bytes] = raw
    for (address, raw), (other_address, other) in itertools.permutations(made.items(), 2):
        assert not other.startswith(raw)
        if address[0] < other_address[0]:
            assert raw < other


@pytest.mark.parametrize("serializer", [LongSerializer(), StringSerializer()])
def test_a_foreign_key_group_is_rejected(serializer):
    raw_keys = RawKeys(serializer, VOID, GROUPS, is_namespaced=False)
    for group in (-1, 2, 301, 1 << 20):
        with pytest.raises(StateBackendError, match=f"key group {group} does not belong to this subtask"):
            raw_keys.prefix(serializer.create_instance(), group)


@pytest.mark.parametrize(("serializer", "misfits"), [(LongSerializer(), [2**63, "1", 1.5]), (StringSerializer(), [1])])
def test_an_invalid_key_is_rejected(serializer, misfits):
    raw_keys = RawKeys(serializer, VOID, GROUPS, is_namespaced=False)
    for misfit in misfits:
        with pytest.raises(SerializationError, match="the current key"):
            raw_keys.prefix(misfit, 5)


def test_keys_whose_equality_differs_from_their_bytes_are_bytes():
    serializer = DoubleSerializer()
    raw_keys = RawKeys(serializer, serializer, GROUPS, is_namespaced=True)
    first, second = (serializer.to_bytes(number) for number in (math.nan, -0.0))
    assert raw_keys.split(raw_keys.prefix((first, second), 5)) == (5, first, second, b"")
