from __future__ import annotations

import itertools
import pickle

import attrs
import pytest
from checkpoint_builders import file_handle, operator_state, state_handle
from hypothesis import given
from hypothesis import strategies as st

from checkpointing import (
    FileHandle,
    InvariantViolationError,
    KeyedStateHandle,
    OperatorState,
    SubtaskState,
    check_operator_state,
    check_operator_states,
    files_of_operators,
)


def operator_of(ranges: list[tuple[int, int]], max_parallelism: int) -> OperatorState:
    subtasks = [SubtaskState(index, state_handle(f"s{index}", start, end)) for index, (start, end) in enumerate(ranges)]
    return OperatorState("op", "op", len(ranges), max_parallelism, tuple(subtasks))


@given(st.integers(1, 300), st.data())
def test_every_contiguous_cover_is_accepted_and_every_disturbed_one_refused(max_parallelism, data) -> None:
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


def test_missing_and_misplaced_subtasks_are_refused() -> None:
    good = operator_state()
    with pytest.raises(InvariantViolationError, match="must be 0 to 1 in order"):
        check_operator_state(attrs.evolve(good, subtasks=good.subtasks[:1]))
    with pytest.raises(InvariantViolationError, match="in order"):
        check_operator_state(attrs.evolve(good, subtasks=good.subtasks[::-1]))


def test_ambiguity_between_operators_is_refused() -> None:
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
        lambda: SubtaskState(-1, state_handle()),
        lambda: SubtaskState(0, None),
        lambda: OperatorState("", "n", 1, 1, ()),
        lambda: OperatorState("u", "n", 2, 1, ()),
        lambda: OperatorState("u", "n", 1, 40_000, ()),
        lambda: OperatorState("u", "\ud800", 1, 1, ()),
    ],
)
def test_senseless_values_cannot_be_built(build) -> None:
    with pytest.raises(InvariantViolationError):
        build()


def test_handles_travel_by_pickle_and_know_their_size() -> None:
    operator = operator_state(files=(file_handle("a", b"12345"),))
    assert pickle.loads(pickle.dumps(operator)) == operator
    handle = operator.subtasks[0].handle
    assert handle.size_bytes == len(handle.meta) + 5
