"""Which files of a state are merged: neighbouring increments, and never the base."""

from __future__ import annotations

import pytest

from checkpointing import FileHandle
from statebackend.keyed.state_files import MAX_FILES, MERGED_AT_ONCE, StateFiles, StoredFile


def files(*sizes_bytes: int) -> StateFiles:
    return StateFiles(
        [
            StoredFile(FileHandle(f"file-{number}", size_bytes, "xxh3:" + 32 * "0"), "state")
            for number, size_bytes in enumerate(sizes_bytes)
        ]
    )


@pytest.mark.parametrize("base_bytes", [0, 1, 1 << 40])
def test_a_base_is_no_part_of_a_merge_however_small_it_is(base_bytes: int) -> None:
    assert files(base_bytes, *[100] * MAX_FILES).increments_to_merge() == range(1, 1 + MERGED_AT_ONCE)


def test_the_neighbours_that_are_smallest_together_are_merged_the_last_ones_included() -> None:
    increments = [100] * (MAX_FILES - MERGED_AT_ONCE) + [1] * MERGED_AT_ONCE
    found = files(1000, *increments).increments_to_merge()
    assert found == range(MAX_FILES + 1 - MERGED_AT_ONCE, MAX_FILES + 1)


def test_few_files_are_left_alone() -> None:
    assert files(*[1] * MAX_FILES).increments_to_merge() is None
    assert files(*[1] * (MAX_FILES + 1)).increments_to_merge() is not None
    pending = files(*[1] * MERGED_AT_ONCE)
    pending.pending = ["a local file"] * MAX_FILES
    assert pending.increments_to_merge() is None
