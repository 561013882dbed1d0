from __future__ import annotations

import itertools
import pickle

import attrs
import pytest
from checkpoint_builders import file_handle, operator_state, state_handle
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint import (
    FileHandle,
    InvariantViolationError,
    KeyedStateHandle,
    OpaqueStateHandle,
    OperatorState,
    SubtaskState,
)
from statebackend.checkpoint.handle_records import decode_subtask_state, encode_subtask_state
from statebackend.checkpoint.invariants import MAX_NAME_LENGTH
from statebackend.checkpoint.state_handles import check_operator_state, check_operator_states, files_of_operators


def operator_of(ranges: list[tuple[int, int]], max_parallelism: int) -> OperatorState:
    subtasks = [SubtaskState(state_handle(f"s{index}", start, end)) for index, (start, end) in enumerate(ranges)]
    return OperatorState("op", "op", max_parallelism, tuple(subtasks))


@given(st.integers(1, 300), st.data())
def test_every_contiguous_cover_is_accepted_and_every_other_one_rejected(max_parallelism, data) -> None:
    cuts = data.draw(st.sets(st.integers(1, max_parallelism - 1), max_size=20)) if max_parallelism > 1 else set()
    edges = [0, *sorted(cuts), max_parallelism]
    ranges = [(start, end - 1) for start, end in itertools.pairwise(edges)]
    check_operator_state(operator_of(ranges, max_parallelism))
    index = data.draw(st.integers(0, len(ranges) - 1))
    start, end = ranges[index]
    shifted = data.draw(st.sampled_from([(start + 1, end + 1), (start, end + 1), (start, end - 1), (start - 1, end)]))
    if 0 <= shifted[0] <= shifted[1]:
        ranges[index] = shifted
        with pytest.raises(InvariantViolationError, match="key group"):
            check_operator_state(operator_of(ranges, max_parallelism))


def test_a_gap_names_operator_subtask_and_range() -> None:
    with pytest.raises(InvariantViolationError, match=r"'op', subtask 1: .* start at 2, .*'s1' covers 3 to 3"):
        check_operator_state(operator_of([(0, 1), (3, 3)], 4))


def test_missing_and_misplaced_subtasks_are_rejected() -> None:
    good = operator_state()
    with pytest.raises(InvariantViolationError, match="must cover key groups 0 to 3"):
        check_operator_state(attrs.evolve(good, subtasks=good.subtasks[:1]))
    with pytest.raises(InvariantViolationError, match="must start at 0"):
        check_operator_state(attrs.evolve(good, subtasks=good.subtasks[::-1]))


def test_ambiguity_between_operators_is_rejected() -> None:
    one = operator_state("one", (file_handle("shared/x", b"1"),))
    with pytest.raises(InvariantViolationError, match="uid 'one'"):
        check_operator_states([one, one])
    with pytest.raises(InvariantViolationError, match="described in two ways"):
        check_operator_states([one, operator_state("two", (file_handle("shared/x", b"2"),))])
    with pytest.raises(InvariantViolationError, match="state id"):
        check_operator_states([one, attrs.evolve(one, uid="two")])


def test_a_shared_file_is_listed_once() -> None:
    shared = file_handle("shared/x")
    operators = [operator_state("one", (shared,)), operator_state("two", (shared, file_handle("shared/y")))]
    check_operator_states(operators)
    assert [file.path for file in files_of_operators(operators)] == ["shared/x", "shared/y"]


@pytest.mark.parametrize(
    "build",
    [
        lambda: FileHandle("a", -1, "xxh3:" + "0" * 32),
        lambda: FileHandle("a", True, "xxh3:" + "0" * 32),
        lambda: FileHandle("a", 1, "xxh3:" + "0" * 31),
        lambda: FileHandle("a", 1, "md5:" + "0" * 32),
        lambda: FileHandle("a", 1, "xxh3:" + "0" * 32 + "\n"),
        lambda: state_handle(start=2, end=1),
        lambda: state_handle(start=-1),
        lambda: state_handle(end=1 << 15),
        lambda: state_handle(""),
        lambda: KeyedStateHandle("s", "heap", 0, 0, "text", ()),
        lambda: KeyedStateHandle("s", "heap", 0, 0, b"", [file_handle("a")]),
        lambda: KeyedStateHandle("s", "heap", 0, 0, b"", ("a",)),
        lambda: state_handle(files=(file_handle("a"), file_handle("a"))),
        lambda: SubtaskState(OpaqueStateHandle("format", b"")),
        lambda: SubtaskState(operator=state_handle()),
        lambda: SubtaskState(input_channels=b""),
        lambda: SubtaskState(output_channels=state_handle()),
        lambda: OpaqueStateHandle("", b""),
        lambda: OpaqueStateHandle("format", "text"),
        lambda: OpaqueStateHandle("format", b"", [file_handle("a")]),
        lambda: OpaqueStateHandle("format", b"", (file_handle("a"), file_handle("a"))),
        lambda: OperatorState("", "n", 1, (SubtaskState(),)),
        lambda: OperatorState("u", "n", 1, ()),
        lambda: OperatorState("u", "n", 1, (SubtaskState(), SubtaskState())),
        lambda: OperatorState("u", "n", 40_000, (SubtaskState(),)),
        lambda: OperatorState("u", "\ud800", 1, (SubtaskState(),)),
    ],
)
def test_invalid_values_are_rejected(build) -> None:
    with pytest.raises(InvariantViolationError):
        build()


def test_handles_can_be_pickled_and_have_a_size() -> None:
    operator = operator_state(files=(file_handle("a", b"12345"),))
    assert pickle.loads(pickle.dumps(operator)) == operator
    handle = operator.subtasks[0].keyed
    assert handle is not None
    assert handle.size_bytes == operator.subtasks[0].size_bytes == len(handle.meta) + 5


def test_each_part_of_a_subtask_state_is_optional() -> None:
    assert SubtaskState().parts == ()
    keyed, operator = state_handle(files=(file_handle("a"),)), OpaqueStateHandle("format", b"12", (file_handle("b"),))
    inputs, outputs = OpaqueStateHandle("in", b"3", (file_handle("c"),)), OpaqueStateHandle("out", b"")
    state = SubtaskState(keyed, operator, inputs, outputs)
    assert state.parts == (keyed, operator, inputs, outputs)
    assert [file.path for file in state.files] == ["a", "b", "c"]
    assert state.meta_bytes == len(keyed.meta) + 3
    assert state.size_bytes == state.meta_bytes + 3 * 4
    assert pickle.loads(pickle.dumps(state)) == state


def test_an_operator_without_keyed_state_is_valid() -> None:
    of_its_own = SubtaskState(operator=OpaqueStateHandle("format", b""))
    stateless = OperatorState("op", "op", 4, (of_its_own, SubtaskState()))
    check_operator_state(stateless)
    assert stateless.keyed_handles == ()
    # A subtask without keyed state leaves no gap if the other subtasks cover all key groups.
    check_operator_state(OperatorState("op", "op", 4, (SubtaskState(state_handle()), SubtaskState())))
    with pytest.raises(InvariantViolationError, match="must cover key groups 0 to 3, but its subtasks end at 1"):
        check_operator_state(OperatorState("op", "op", 4, (SubtaskState(state_handle(end=1)), of_its_own)))


def test_a_file_of_operator_state_is_described_as_one_of_keyed_state() -> None:
    one = operator_state("one", (file_handle("shared/x", b"1"),))
    other = SubtaskState(operator=OpaqueStateHandle("format", b"", (file_handle("shared/x", b"2"),)))
    with pytest.raises(InvariantViolationError, match="described in two ways"):
        check_operator_states([one, OperatorState("two", "two", 4, (other,))])


def channels_of(*paths: str) -> OpaqueStateHandle:
    return OpaqueStateHandle("channels", b"meta", tuple(map(file_handle, paths)))


def test_records_in_flight_are_kept_for_both_sides_of_a_subtask() -> None:
    assert SubtaskState(input_channels=channels_of("a")).has_in_flight_records
    assert SubtaskState(output_channels=channels_of("a")).has_in_flight_records
    assert not SubtaskState(state_handle(files=(file_handle("a"),)), channels_of("b")).has_in_flight_records
    assert not SubtaskState(input_channels=channels_of(), output_channels=channels_of()).has_in_flight_records


def test_each_part_of_a_state_is_decoded_in_its_place_and_trailing_bytes_are_rejected() -> None:
    state = SubtaskState(state_handle(), channels_of("a"), channels_of("b"), channels_of("c", "d"))
    assert decode_subtask_state(encode_subtask_state(state)) == state
    with pytest.raises(InvariantViolationError, match="bytes"):
        decode_subtask_state(encode_subtask_state(state) + b"\0")


def test_one_file_has_one_size() -> None:
    file = file_handle("shared/x")
    other = attrs.evolve(file, size_bytes=file.size_bytes + 1)
    with pytest.raises(InvariantViolationError, match="described in two ways"):
        check_operator_states([operator_state("one", (file,)), operator_state("two", (other,))])


def test_a_file_shared_by_two_subtasks_is_counted_once() -> None:
    file = file_handle("shared/x", b"12345")
    states = [SubtaskState(state_handle(f"s{index}", index, index, (file,))) for index in range(2)]
    operator = OperatorState("op", "op", 2, tuple(states))
    assert operator.size_bytes == operator.meta_bytes + 5 == sum(len(one.keyed.meta) for one in states) + 5


def test_a_name_has_at_most_the_maximal_length() -> None:
    assert len(OperatorState("o" * MAX_NAME_LENGTH, "op", 2, (SubtaskState(),)).uid) == MAX_NAME_LENGTH
    with pytest.raises(InvariantViolationError, match="operator uid"):
        OperatorState("o" * (MAX_NAME_LENGTH + 1), "op", 2, (SubtaskState(),))
