"""Which files of a state are merged: adjacent increments, never the base."""

from __future__ import annotations

import itertools

import pytest

from statebackend.checkpoint import FileHandle
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.state_files import (
    MAX_FILES,
    MERGED_AT_ONCE,
    MIN_MERGE_BYTES,
    StateFiles,
    StoredFile,
    max_increment_ratio,
)


def files(*sizes_bytes: int) -> StateFiles:
    return StateFiles(
        [
            StoredFile(FileHandle(f"file-{number}", size_bytes, "xxh3:" + 32 * "0"), "state")
            for number, size_bytes in enumerate(sizes_bytes)
        ]
    )


@pytest.mark.parametrize("base_bytes", [0, 1, 1 << 40])
def test_a_base_is_never_merged_however_small(base_bytes: int) -> None:
    assert files(base_bytes, *[100] * MAX_FILES).increments_to_merge() == range(1, 1 + MERGED_AT_ONCE)


def test_the_smallest_neighbours_are_merged_including_the_last_ones() -> None:
    increments = [100] * (MAX_FILES - MERGED_AT_ONCE) + [1] * MERGED_AT_ONCE
    found = files(1000, *increments).increments_to_merge()
    assert found == range(MAX_FILES + 1 - MERGED_AT_ONCE, MAX_FILES + 1)


def test_few_files_are_not_merged() -> None:
    assert files(*[1] * MAX_FILES).increments_to_merge() is None
    assert files(*[1] * (MAX_FILES + 1)).increments_to_merge() is not None
    pending = files(*[1] * MERGED_AT_ONCE)
    pending.pending = ["a local file"] * MAX_FILES
    assert pending.increments_to_merge() is None


def test_a_base_is_written_only_if_there_are_too_many_files_and_it_is_small() -> None:
    increment, is_few = 1000, [1000] * (MAX_FILES - 1)
    assert not files(1, *is_few).is_mostly_deleted
    assert files(1, *is_few, increment).is_mostly_deleted
    # A merge of increments would rewrite a third of the bytes.
    small = increment * MAX_FILES * MERGED_AT_ONCE // (2 * MAX_FILES)
    assert files(small - 1, *is_few, increment).is_mostly_deleted
    assert not files(small, *is_few, increment).is_mostly_deleted
    pending = files(1, increment)
    pending.pending = ["a local file"] * (MAX_FILES - 1)
    assert pending.is_mostly_deleted


def test_increments_are_kept_up_to_the_limit_and_while_small() -> None:
    assert not files(0, MIN_MERGE_BYTES).increments_exceed(1)
    assert files(0, MIN_MERGE_BYTES + 1).increments_exceed(1)
    assert not files(MIN_MERGE_BYTES, 3 * MIN_MERGE_BYTES // 2).increments_exceed(1.5)
    assert files(MIN_MERGE_BYTES, 3 * MIN_MERGE_BYTES // 2, 1).increments_exceed(1.5)
    assert not files(100 * MIN_MERGE_BYTES).increments_exceed(1)


@pytest.mark.parametrize("width", [1, 4])
def test_neighbours_have_different_limits_between_one_and_two(width: int) -> None:
    known = [max_increment_ratio(KeyGroupRange(start, start + width - 1)) for start in range(0, 64 * width, width)]
    assert all(1 <= one < 2 for one in known)
    assert len(set(known)) == len(known)
    assert all(abs(one - other) > 0.3 for one, other in itertools.pairwise(known))
