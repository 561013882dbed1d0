"""Local files of changes between two snapshots: their owners, and their removal."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_a_chain_without_the_changes_of_a_failed_base_needs_another_base(tmp_path: Path) -> None:
    chain = Chain(list(STORED))
    chain.begin_base()
    assert chain.skips_changes
    older = chain.freeze(0)
    assert (older.needs_base, chain.skips_changes) == (True, False)
    chain.add(tmp_path, "a")
    chain.begin_base()
    chain.thaw(chain.freeze(1))
    # The older base does not have the changes that the failed one has.
    chain.complete(older, ["base"], is_exact=True)  # type: ignore[list-item]
    assert chain.needs_base
    newer = chain.freeze(2)
    chain.begin_base()
    chain.complete(newer, ["newer"], is_exact=True)  # type: ignore[list-item]
    assert chain.needs_base
    chain.complete(chain.freeze(3), STORED, is_exact=True)
    assert (chain.needs_base, left(tmp_path)) == (False, [])


class ModelledChain:
    """A chain and the database beside it. Content is a set of numbered changes; a stored file is its content."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.chain = FileChain()
        self.database: set[int] = set()
        self.order = 0
        self.running: list[tuple[Any, set[int], list[Any]]] = []

    def change(self) -> None:
        number = len(self.database)
        self.database.add(number)
        if not self.chain.skips_changes:
            path = self.directory / f"{number}"
            path.touch()
            self.chain.append(str(path))

    def freeze(self, changes: int, writes_base: bool) -> None:
        if writes_base or self.chain.needs_base:
            self.chain.begin_base()
        for _ in range(changes):
            self.change()
        frozen = self.chain.freeze(self.order)
        self.order += 1
        files = frozen.as_files()
        if files.needs_base:
            stored: list[Any] = [frozenset(self.database)]
        else:
            stored = [*files.stored, frozenset(int(Path(path).name) for path in files.pending)]
        assert set().union(*stored) == self.database
        self.running.append((frozen, set(self.database), stored))

    def end(self, place: int, is_done: bool) -> None:
        if self.running:
            frozen, content, stored = self.running.pop(place % len(self.running))
            assert all((self.directory / Path(file.path).name).exists() for file in frozen.pending)
            if is_done:
                assert set().union(*stored) == content
                self.chain.complete(frozen, stored, is_exact=True)
            else:
                self.chain.thaw(frozen)


STEPS = st.one_of(
    st.just(("change",)),
    st.tuples(st.just("freeze"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 3), st.booleans()),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_every_snapshot_has_all_changes_whichever_snapshots_failed(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = ModelledChain(Path(directory))
        for name, *arguments in steps:
            getattr(model, name)(*arguments)
        # Nothing is left of changes that all snapshots have.
        while model.running:
            model.end(0, False)
        model.freeze(0, False)
        model.end(0, True)
        assert (model.chain.pending, left(Path(directory)), model.chain.needs_base) == ([], [], False)
