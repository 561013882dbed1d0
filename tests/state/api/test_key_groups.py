"""Key groups are assigned in contiguous ranges, evenly, and each to exactly one subtask."""

import itertools

import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statebackend.state.key_groups import (
    MAX_PARALLELISM_LIMIT,
    KeyGroupRange,
    check_parallelism,
    key_group_range_of_subtask,
    subtask_of_key_group,
)

OPERATORS = st.integers(1, MAX_PARALLELISM_LIMIT).flatmap(
    lambda max_parallelism: st.tuples(st.integers(1, min(max_parallelism, 2000)), st.just(max_parallelism))
)
RANGES = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: KeyGroupRange(min(ends), max(ends)))


@settings(max_examples=examples(200))
@example((1, 1))
@example((15, 128))
@example((77, 128))
@example((128, 128))
@example((1, MAX_PARALLELISM_LIMIT))
@example((2000, MAX_PARALLELISM_LIMIT))
@given(OPERATORS)
def test_the_ranges_of_all_subtasks_are_adjacent_and_cover_every_key_group(operator):
    parallelism, max_parallelism = operator
    ranges = [key_group_range_of_subtask(subtask, parallelism, max_parallelism) for subtask in range(parallelism)]
    assert (ranges[0].start, ranges[-1].end) == (0, max_parallelism - 1)
    assert all(after.start == before.end + 1 for before, after in itertools.pairwise(ranges))
    sizes = [len(groups) for groups in ranges]
    assert max(sizes) - min(sizes) <= 1
    for subtask, groups in enumerate(ranges):
        assert subtask_of_key_group(groups.start, parallelism, max_parallelism) == subtask
        assert subtask_of_key_group(groups.end, parallelism, max_parallelism) == subtask


@settings(max_examples=examples(200))
@given(OPERATORS, st.data())
def test_a_key_group_is_in_the_range_of_its_subtask(operator, data):
    parallelism, max_parallelism = operator
    key_group = data.draw(st.integers(0, max_parallelism - 1))
    subtask = subtask_of_key_group(key_group, parallelism, max_parallelism)
    assert 0 <= subtask < parallelism
    assert key_group in key_group_range_of_subtask(subtask, parallelism, max_parallelism)


@given(RANGES, RANGES)
def test_ranges_are_sets_of_key_groups(first, second):
    groups, others = set(first), set(second)
    assert list(first) == sorted(groups)
    assert len(first) == len(groups)
    assert all((group in first) is (group in groups) for group in range(-1, 32))
    assert first.overlaps(second) is second.overlaps(first) is bool(groups & others)
    assert first.contains_range(second) is (others <= groups)
    assert (first == second) is (groups == others)


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (3, 2), (0, MAX_PARALLELISM_LIMIT)])
def test_invalid_ranges_are_rejected(start, end):
    with pytest.raises(ValueError, match=f"no key group range: {start} to {end}"):
        KeyGroupRange(start, end)


@pytest.mark.parametrize("misfit", ["1", 1.5, None])
def test_only_integers_are_key_groups(misfit):
    assert misfit not in KeyGroupRange(0, 9)


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism", "message"),
    [
        (1, 0, "max_parallelism is 0; it must be from 1 to 32768"),
        (1, MAX_PARALLELISM_LIMIT + 1, "max_parallelism is 32769"),
        (0, 10, r"parallelism is 0; it must be from 1 to max_parallelism \(10\)"),
        (11, 10, "parallelism is 11"),
    ],
)
def test_a_parallelism_out_of_range_is_rejected_with_the_range(parallelism, max_parallelism, message):
    with pytest.raises(ValueError, match=message):
        check_parallelism(parallelism, max_parallelism)
    with pytest.raises(ValueError, match=message):
        key_group_range_of_subtask(0, parallelism, max_parallelism)


@pytest.mark.parametrize("subtask", [-1, 3])
def test_a_nonexistent_subtask_has_no_range(subtask):
    with pytest.raises(ValueError, match=f"subtask {subtask} does not exist at parallelism 3"):
        key_group_range_of_subtask(subtask, 3, 10)
