"""Local files of changes between two snapshots: their owners, and their removal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statebackend.state.rocksdb.file_chain import FileChain
from statebackend.state.state_files import MERGED_AT_ONCE

STORED: list[Any] = ["in the store"]


class Chain(FileChain):
    """A chain whose files are created as they are added."""

    def add(self, directory: Path, *names: str) -> None:
        for name in names:
            (directory / name).touch()
            self.append(str(directory / name))


def left(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_changes_in_a_completed_snapshot_are_not_written_again(tmp_path: Path) -> None:
    chain = Chain(needs_base=True)
    chain.add(tmp_path, "a", "b")
    frozen = chain.freeze(0)
    chain.add(tmp_path, "c")
    assert (frozen.as_files().needs_base, [Path(one).name for one in frozen.as_files().pending]) == (True, ["a", "b"])
    chain.complete(frozen, STORED, is_exact=False)
    assert (chain.stored, chain.needs_base, chain.is_exact) == (STORED, False, False)
    assert [Path(file.path).name for file in chain.pending] == ["c"]
    assert left(tmp_path) == ["c"]


def test_a_failed_snapshot_leaves_all_changes_for_the_next(tmp_path: Path) -> None:
    chain = Chain()
    chain.add(tmp_path, "a")
    chain.thaw(chain.freeze(0))
    assert left(tmp_path) == ["a"]
    chain.complete(chain.freeze(1), STORED, is_exact=True)
    assert (chain.pending, left(tmp_path)) == ([], [])


@pytest.mark.parametrize("is_older_first", [True, False])
def test_snapshots_may_end_in_any_order(tmp_path: Path, is_older_first: bool) -> None:
    chain = Chain()
    chain.add(tmp_path, "a")
    older = chain.freeze(0)
    chain.add(tmp_path, "b")
    newer = chain.freeze(1)
    if is_older_first:
        chain.complete(older, ["older"], is_exact=True)  # type: ignore[list-item]
        # The newer task still reads its frozen files.
        assert left(tmp_path) == ["a", "b"]
        chain.complete(newer, STORED, is_exact=True)
    else:
        chain.complete(newer, STORED, is_exact=True)
        assert left(tmp_path) == ["a"]
        chain.complete(older, ["older"], is_exact=True)  # type: ignore[list-item]
    assert (chain.stored, chain.pending, left(tmp_path)) == (STORED, [], [])


def test_unread_files_of_one_tier_are_merged(tmp_path: Path) -> None:
    chain = Chain()
    names = [f"{number}" for number in range(MERGED_AT_ONCE)]
    chain.add(tmp_path, *names[:-1])
    assert chain.mergeable() == ()
    frozen = chain.freeze(0)
    chain.add(tmp_path, names[-1])
    assert chain.mergeable() == ()
    chain.thaw(frozen)
    merged = chain.mergeable()
    assert [Path(file.path).name for file in merged] == names
    (tmp_path / "merged").touch()
    chain.replace_last(merged, str(tmp_path / "merged"))
    assert left(tmp_path) == ["merged"]
    assert [file.tier for file in chain.pending] == [1]
    chain.add(tmp_path, *names[1:])
    assert chain.mergeable() == ()
    # A merged file is as new as the last of its inputs.
    chain.complete(chain.freeze(1), STORED, is_exact=True)
    assert left(tmp_path) == []
