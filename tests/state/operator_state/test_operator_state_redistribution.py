"""Redistribution keeps every element once, evenly: Flink's case 30, on thousands of random states."""

import collections

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend.checkpoint import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.state.errors import StateRestoreError
from statebackend.state.operator_state_descriptors import (
    BroadcastStateDescriptor,
    OperatorStateMode,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.state.operator_state_handles import (
    FileSlice,
    OperatorStateHandle,
    OperatorStateMeta,
    StatePart,
    check_subtask_states,
    decode_operator_state,
    encode_operator_state,
)
from statebackend.state.operator_state_redistribution import (
    continued_operator_state,
    redistribute,
    restored_operator_state,
)
from statebackend.state.state_meta import CANONICAL_BACKEND

pytestmark = pytest.mark.slow

SPLIT, UNION, BROADCAST = OperatorStateMode
CHECKSUM = "xxh3:" + "0" * 32


def envelopes(mode, schema):
    roles = ("key", "value") if mode is BROADCAST else ("element",)
    return {role: f"schema {schema}".encode() for role in roles}


@st.composite
def states(draw, subtask, name, mode, is_uniform):
    parts = []
    for number in range(draw(st.integers(1, 3))):
        slices = []
        for piece in range(draw(st.integers(0, 3))):
            start = draw(st.integers(0, 5))
            file = FileHandle(f"{subtask}-{name}-{number}-{piece}", 1, CHECKSUM)
            slices.append(FileSlice(file, start, start + draw(st.integers(1, 9))))
        schema = 0 if is_uniform else draw(st.integers(0, 1))
        parts.append(StatePart(envelopes(mode, schema), tuple(slices)))
    return OperatorStateMeta(name, mode, tuple(parts))


@st.composite
def jobs(draw):
    modes = draw(st.lists(st.sampled_from([SPLIT, UNION, BROADCAST]), max_size=4))
    is_uniform = draw(st.booleans())
    handles = []
    for subtask in range(draw(st.integers(1, 6))):
        registered = [
            draw(states(subtask, f"state {number}", mode, is_uniform))
            for number, mode in enumerate(modes)
            if draw(st.integers(0, 5))
        ]
        handles.append(OperatorStateHandle(tuple(registered)))
    return handles


def rows(parts):
    """Every row by position, with its schema."""
    return [
        (one.file.path, row, tuple(part.envelopes.items()))
        for part in parts
        for one in part.slices
        for row in range(one.start, one.stop)
    ]


def old_parts(handles, name):
    return [state.parts for handle in handles if (state := handle.state(name)) is not None]


@settings(max_examples=examples(200))
@given(jobs(), st.integers(1, 7))
def test_every_element_is_kept_once_and_the_load_is_even(handles, parallelism):
    assigned = redistribute(handles, parallelism)
    assert len(assigned) == parallelism
    names = {state.name: state.mode for handle in handles for state in handle.states}
    loads = collections.Counter()
    for name, mode in names.items():
        pieces = old_parts(handles, name)
        everything = [row for parts in pieces for row in rows(parts)]
        new = [next(state for state in subtask if state.name == name) for subtask in assigned]
        assert all(state.mode is mode and state.content and state.carried for state in new)
        carried = [rows(state.carried) for state in new]
        content = [rows(state.content) for state in new]
        if mode is BROADCAST:
            copies = [rows(parts) for parts in pieces]
            assert all(copy in copies for copy in content)
            assert carried == content
            continue
        # Exactly one subtask holds each row, in the old order.
        assert [row for part in carried for row in part] == everything
        assert content == (carried if mode is SPLIT else [everything] * parallelism)
        if parallelism == len(handles):
            states = [handle.state(name) for handle in handles]
            assert carried == [[] if state is None else rows(state.parts) for state in states]
        else:
            sizes = [len(part) for part in carried]
            assert max(sizes) - min(sizes) <= 1
            loads.update(dict(enumerate(sizes)))
    if loads:
        totals = [loads[index] for index in range(parallelism)]
        assert max(totals) - min(totals) <= 1
    for subtask in assigned:
        check_subtask_states(OperatorStateMeta(state.name, state.mode, state.content) for state in subtask)
        check_subtask_states(OperatorStateMeta(state.name, state.mode, state.carried) for state in subtask)


@settings(max_examples=examples(200))
@given(jobs())
def test_at_the_same_parallelism_slices_are_unchanged(handles):
    for handle, assigned in zip(handles, redistribute(handles, len(handles)), strict=True):
        for state in assigned:
            old = handle.state(state.name)
            if old is not None:
                assert state.carried == old.parts


def test_adjacent_slices_become_one(operator):
    numbers = SplitListStateDescriptor("numbers", int)
    backends = operator.start()
    backends[0].get_state(numbers).add_all(range(10))
    for parallelism in (3, 2, 5, 1):
        backends = operator.restart(backends, parallelism)
    (handle,) = operator.snapshot(backends)
    (part,) = decode_operator_state(handle).state("numbers").parts
    assert [(one.start, one.stop) for one in part.slices] == [(0, 10)]
    assert backends[0].get_state(numbers).get() == list(range(10))


def test_a_state_of_different_modes_in_different_subtasks_is_rejected():
    handles = [
        OperatorStateHandle((OperatorStateMeta("state", mode, (StatePart(envelopes(mode, 0)),)),))
        for mode in (SPLIT, UNION)
    ]
    with pytest.raises(StateRestoreError, match=r"'state'.*split.*union"):
        redistribute(handles, 1)


@pytest.mark.parametrize("parallelism", [0, -1])
def test_at_least_one_subtask_is_required(parallelism):
    with pytest.raises(ValueError, match="at least 1"):
        redistribute([], parallelism)


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
@pytest.mark.parametrize("is_registered_between", [True, False])
def test_real_state_at_another_parallelism(operator, parallelism, is_registered_between):
    numbers = SplitListStateDescriptor("numbers", int)
    names = UnionListStateDescriptor("names", str)
    table = BroadcastStateDescriptor("table", str, int)
    backends = operator.start(parallelism=3)
    for index, backend in enumerate(backends):
        backend.get_state(numbers).add_all(range(index * 10, index * 10 + index * 2))
        backend.get_state(names).add(f"name {index}")
        backend.get_state(table).put_all({"a": 1, "b": 2})
    if not is_registered_between:
        backends = operator.restart(operator.restart(backends, 2), 4)
    backends = operator.restart(backends, parallelism)
    held = [backend.get_state(numbers).get() for backend in backends]
    assert sorted(number for part in held for number in part) == [10, 11, 20, 21, 22, 23]
    if parallelism != 3 or not is_registered_between:
        assert max(map(len, held)) - min(map(len, held)) <= 1
    else:
        assert held == [[], [10, 11], [20, 21, 22, 23]]
    for backend in backends:
        assert backend.get_state(names).get() == ["name 0", "name 1", "name 2"]
        assert dict(backend.get_state(table).items()) == {"a": 1, "b": 2}


def test_an_unregistered_union_list_is_not_multiplied(operator):
    names = UnionListStateDescriptor("names", str)
    backends = operator.start(parallelism=3)
    for index, backend in enumerate(backends):
        backend.get_state(names).add(f"name {index}")
    for parallelism in (3, 3, 2, 5, 1, 4):
        backends = operator.restart(backends, parallelism)
    assert backends[3].get_state(names).get() == ["name 0", "name 1", "name 2"]


def test_a_union_list_of_chosen_elements_is_unchanged(operator):
    offsets = UnionListStateDescriptor("offsets", tuple[int, int])
    backends = operator.start(parallelism=4)
    for partition in range(12):
        backends[partition % 4].get_state(offsets).add((partition, partition * 100))
    for parallelism in (3, 4, 6):
        backends = operator.restart(backends, parallelism)
        for index, backend in enumerate(backends):
            state = backend.get_state(offsets)
            assert sorted(state.get()) == [(partition, partition * 100) for partition in range(12)]
            state.update([offset for offset in state.get() if offset[0] % parallelism == index])


def rows_of(file, *ranges):
    slices = tuple(FileSlice(file, start, stop) for start, stop in ranges)
    return StatePart(envelopes(UNION, 1), slices)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([[(0, 2)], [(2, 5)]], [(0, 5)]),
        ([[(0, 2)], [(3, 5)]], [(0, 2), (3, 5)]),
        ([[(2, 5)], [(0, 2)]], [(2, 5), (0, 2)]),
        ([[(0, 3)], [(2, 5)]], [(0, 3), (2, 5)]),
    ],
    ids=["neighbours", "gap", "turned round", "overlap"],
)
def test_pieces_of_one_file_are_joined_only_if_adjacent(pieces, expected):
    file = FileHandle("one file", 1, CHECKSUM)
    handles = [
        OperatorStateHandle((OperatorStateMeta("state", UNION, (rows_of(file, *ranges),)),)) for ranges in pieces
    ]
    (assigned,) = redistribute(handles, 1)
    found = [(one.start, one.stop) for part in assigned[0].content for one in part.slices]
    assert found == expected


def test_pieces_of_two_files_are_not_joined():
    handles = [
        OperatorStateHandle((OperatorStateMeta("state", SPLIT, (StatePart(envelopes(SPLIT, 1), (piece,)),)),))
        for piece in (FileSlice(FileHandle("a", 1, CHECKSUM), 0, 2), FileSlice(FileHandle("b", 1, CHECKSUM), 2, 4))
    ]
    (assigned,) = redistribute(handles, 1)
    found = [(one.file.path, one.start, one.stop) for part in assigned[0].content for one in part.slices]
    assert found == [("a", 0, 2), ("b", 2, 4)]


def test_only_files_of_checkpoints_are_referenced_and_not_of_savepoints(tmp_path):
    fs = CheckpointFileSystem.from_uri(tmp_path)

    def operator(path):
        state = StatePart(envelopes(SPLIT, 0), (FileSlice(FileHandle(path, 1, CHECKSUM), 0, 1),))
        return OperatorStateHandle((OperatorStateMeta("state", SPLIT, (state,)),))

    of_checkpoint, of_savepoint = (
        encode_operator_state(operator("a")),
        encode_operator_state(operator("b"), CANONICAL_BACKEND),
    )

    def may_refer(*parts):
        [restored] = restored_operator_state(parts, fs, 1)
        return restored.may_refer

    assert [may_refer(of_checkpoint, None), may_refer(None)] == [True, True]
    assert [may_refer(of_savepoint), may_refer(of_checkpoint, of_savepoint)] == [False, False]
    continued = continued_operator_state((of_checkpoint, of_savepoint, None), fs)
    assert [one.may_refer for one in continued] == [True, False, True]
