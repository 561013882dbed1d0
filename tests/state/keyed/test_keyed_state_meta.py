"""Merged metadata of several subtasks: what is merged, kept separate, or rejected."""

import pytest

from snapshots.compatibility import CompatibilityKind
from snapshots.envelope import UnopenedSnapshot, snapshot_to_bytes
from snapshots.errors import UnresolvableSerializerError
from statebackend import ReducingStateDescriptor, StateRestoreError, ValueStateDescriptor
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle
from statebackend.state.backend_parameters import RestoredHandle, merge_handles
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.state_compatibility import check_state
from statebackend.state.state_meta import (
    KeyedStateMeta,
    decode_meta,
    distinct_metas,
    encode_meta,
    merge_metas,
    meta_of_descriptor,
)
from statebackend.testing.backends.evolving_records import PortV1, TownV1, places_v1
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


def test_keys_of_different_serializers_are_not_one_operator():
    with pytest.raises(StateRestoreError, match="the keys of one operator were written by different serializers"):
        merge_metas([meta(A), meta(A, key=IntSerializer())])


def test_a_state_under_two_schemas_is_rejected_by_name():
    with pytest.raises(StateRestoreError, match="state 'a' was written under different schemas"):
        merge_metas([meta(A), meta(A_OTHERWISE)])


def test_a_state_under_two_schemas_names_files_of_both(tmp_path):
    def handle(number, stored):
        file = FileHandle(f"operators/part-{number}", 1, "xxh3:" + "0" * 32)
        encoded = encode_meta(stored)
        return RestoredHandle(KeyedStateHandle(f"s-{number}", "heap", number, number, encoded, (file,)), files)

    files = CheckpointFileSystem.from_uri(tmp_path)
    same = [handle(0, meta(A)), handle(1, meta(B)), handle(2, meta(A, B))]
    assert [state.name for state in merge_handles(same).states] == ["a", "b"]
    places = rf"state 'a' was written under .*\. The schemas differ in {tmp_path}/operators/part-0 and .*/part-3$"
    with pytest.raises(StateRestoreError, match=places):
        merge_handles([*same, handle(3, meta(A_OTHERWISE))])


def met(*places):
    serializer = places_v1()
    for place in places:
        serializer.to_bytes(place)
    return serializer


def test_learned_state_of_subtasks_is_merged_in_keys_namespaces_and_values():
    town, port = met(TownV1(1)), met(PortV1(2))
    merged = merge_metas(
        [
            meta(ValueStateDescriptor("places", town), key=town),
            meta(ValueStateDescriptor("places", places_v1()), key=places_v1()),
            meta(ValueStateDescriptor("places", port), key=port),
        ]
    )
    both = snapshot_to_bytes(met(TownV1(1), PortV1(2)).snapshot_configuration())
    assert snapshot_to_bytes(merged.state("places").role_snapshots["value"]) == both
    assert snapshot_to_bytes(merged.key_snapshot) == both


def test_separately_learned_namespaces_are_merged():
    def in_namespaces(serializer):
        state = meta_of_descriptor(A, serializer)
        return KeyedStateMeta(LongSerializer().snapshot_configuration(), 0, (state,))

    merged = merge_metas([in_namespaces(met(TownV1(1))), in_namespaces(met(PortV1(2)))])
    names = [part.name for part in merged.state("a").namespace_snapshot.pojo.unregistered]
    assert names == ["statebackend.contract.Town", "statebackend.contract.Port"]
    with pytest.raises(StateRestoreError, match="state 'a' was written under different schemas"):
        merge_metas([in_namespaces(LongSerializer()), in_namespaces(IntSerializer())])


def test_a_state_of_another_kind_is_not_merged():
    with pytest.raises(StateRestoreError, match="state 'a' was written under different schemas"):
        merge_metas([meta(ReducingStateDescriptor("a", max, int)), meta(A)])


def test_metadata_that_differs_only_in_sequence_and_order_is_equal():
    ours, same = meta(A, B, sequence=1), meta(B, A, sequence=2)
    others = [meta(A), meta(A_OTHERWISE, B), meta(A, B, key=StringSerializer())]
    assert distinct_metas([ours, same, *others, same]) == (ours, *others)


def with_unknown_name(encoded, position):
    return encoded[:position] + b"Gone" + encoded[position + 4 :]


def test_a_state_of_an_unknown_serializer_is_kept_to_the_byte():
    encoded = encode_meta(meta(B, A))
    # The last occurrence is the serializer of the last state.
    alien = with_unknown_name(encoded, encoded.rindex(b"LongSerializerSnapshot"))
    decoded = decode_meta(alien, 0)
    assert encode_meta(decoded) == alien
    known, unknown = (state.role_snapshots["value"] for state in decoded.states)
    assert known.restore_serializer() == LongSerializer()
    with pytest.raises(UnresolvableSerializerError, match=r"unknown serializer snapshot .*Gone.*import the module"):
        unknown.restore_serializer()
    compatibility = check_state(decoded.states[1], A, VOID_NAMESPACE_SERIALIZER)
    assert compatibility.kind is CompatibilityKind.INCOMPATIBLE
    assert "import the module" in str(compatibility)


def test_keys_and_namespaces_of_unknown_serializers_stay_undecoded_and_are_compatible_with_nothing():
    encoded = encode_meta(meta(A))
    keyed = decode_meta(with_unknown_name(encoded, encoded.index(b"LongSerializerSnapshot")), 0)
    namespaced = decode_meta(with_unknown_name(encoded, encoded.index(b"VoidNamespace")), 0)
    for unopened in (keyed.key_snapshot, namespaced.state("a").namespace_snapshot):
        assert isinstance(unopened, UnopenedSnapshot)
        with pytest.raises(UnresolvableSerializerError, match=r"unknown serializer snapshot .*import"):
            unopened.restore_serializer()


@pytest.mark.parametrize(("offset", "of_version"), [(-1, "has no version 0"), (1, "by a newer version")])
def test_foreign_bytes_and_newer_releases_are_rejected_from_both_sides(offset, of_version):
    data = encode_meta(meta(A))
    for start, reported in ((0, "it is not of this format"), (4, of_version)):
        number = int.from_bytes(data[start : start + 4], "big") + offset
        with pytest.raises(StateRestoreError, match=reported):
            decode_meta(data[:start] + number.to_bytes(4, "big") + data[start + 4 :], 0)
    assert decode_meta(data, 0).state("a") is not None
