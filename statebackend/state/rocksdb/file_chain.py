"""The files of one state while snapshots are running, and the digest of its content.

    chain := files in the store, then pending local files, in the order in which they apply

Pending files have ascending numbers. A snapshot freezes the chain: all files in the store, and all pending ones up to
some number. It uploads the pending ones under its own names, perhaps merged or as part of a new base. When it is done,
its files replace everything up to that number. So a snapshot refers only to files of completed snapshots and its own,
and a failed or cancelled one changes nothing. Snapshots may complete in any order. The files of the latest one count,
because those of an earlier one may be deleted with it.

A snapshot that writes a base reads no pending file. So the changes that its barrier writes out go only into the
database, and are *skipped* in the chain. After that the chain does not contain the whole state, and ``needs_base`` is
set until a base that contains the skipped changes is complete:

* Only changes between `begin_base` and the next `freeze` are skipped. The scan of that snapshot's base shows them.
* If the snapshot fails, ``needs_base`` stays, and the next snapshot writes a base.
* A snapshot that completes clears ``needs_base`` only if nothing was skipped after it was frozen. An older one that
  completes after a newer one changes nothing.
* A restore never uses a chain of before. It starts from the files of a completed snapshot, which are the whole state.

Only the backend's thread uses a chain. A pending file stays on disk while a snapshot that froze it is running.

The digest of a subtask's content identifies the result of an epoch. Each row has a 64-bit hash. The digest is the sum
of the hashes of added rows minus those of removed rows, since the common start of the attempts. So it does not depend
on the order of keys, on when a cache was written out, or on how files were cut or merged. A row that is added and
removed, or rewritten with its old value, has no effect. Only attempts of the same program compare it. It is never
written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

import xxhash
from attrs import define, field

from statebackend.state.state_files import MERGED_AT_ONCE, StateFiles, StoredFile

_MASK: Final = (1 << 64) - 1

Rows = Iterable[bytes]
"""Rows as bytes; different rows have different bytes."""


class ContentDigest:
    """The sum of row hashes. Keep ``total`` to compute the later changes with `since`."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def add(self, seed: int, rows: Rows) -> None:
        """Add new rows of the state with this seed."""
        self.total += sum(map(xxhash.xxh3_64_intdigest, rows, repeat(seed)))

    def take_away(self, seed: int, rows: Rows) -> None:
        """Subtract removed rows."""
        self.total -= sum(map(xxhash.xxh3_64_intdigest, rows, repeat(seed)))

    def since(self, total: int) -> str:
        """The digest of the changes since the sum was ``total``."""
        return f"{self.total - total & _MASK:016x}"


def state_seed(name: str) -> int:
    """A prefix that separates the rows of one state from those of another."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))


@define(eq=False)
class PendingFile:
    """A local file of changes: its number in the chain, and how many running snapshots have frozen it.

    ``tier`` counts the merges that made it: files of one tier are of similar size.
    """

    number: int
    path: str
    tier: int = 0
    frozen_by: int = 0


@define(eq=False)
class FrozenChain:
    """The files that a snapshot froze, in the store and pending, and whether it must write a base."""

    chain: FileChain
    order: int
    stored: tuple[StoredFile, ...]
    pending: tuple[PendingFile, ...]
    needs_base: bool
    through: int

    def as_files(self) -> StateFiles:
        """A copy that the snapshot may change."""
        return StateFiles(list(self.stored), [file.path for file in self.pending], self.needs_base)


@define(eq=False)
class FileChain:
    """The files of one state, in the store and pending. Used by the thread of the backend only.

    ``needs_base`` means that the files do not contain the whole state, so the next snapshot must write all of it.
    ``skips_changes`` means that the changes until the next `freeze` must not be appended.
    ``is_exact`` means that they hold every row of the database; a base may leave out expired rows.
    """

    stored: list[StoredFile] = field(factory=list)
    pending: list[PendingFile] = field(factory=list)
    needs_base: bool = False
    is_exact: bool = True
    skips_changes: bool = False
    _last_number: int = 0
    _latest_order: int = -1
    _skipped_order: int = -1

    def append(self, path: str) -> None:
        """Add a local file of changes; the chain then owns it."""
        self._last_number += 1
        self.pending.append(PendingFile(self._last_number, path))

    def mergeable(self) -> tuple[PendingFile, ...]:
        """The last pending files, if there are enough of one tier and no snapshot has frozen them; else empty."""
        last = self.pending[-MERGED_AT_ONCE:]
        tier = last[-1].tier if last else 0
        if len(last) < MERGED_AT_ONCE or any(file.frozen_by or file.tier != tier for file in last):
            return ()
        return tuple(last)

    def replace_last(self, merged: Sequence[PendingFile], path: str | None) -> None:
        """Replace the last pending files by one merged file; None if the merged file would be empty."""
        assert self.pending[-len(merged) :] == list(merged)
        del self.pending[-len(merged) :]
        if path is not None:
            self.pending.append(PendingFile(merged[-1].number, path, merged[-1].tier + 1))
        for file in merged:
            os.unlink(file.path)

    def begin_base(self) -> None:
        """Skip the changes until the next `freeze`, because that snapshot writes a base."""
        self.needs_base = self.skips_changes = True

    def freeze(self, order: int) -> FrozenChain:
        """Freeze the current files for a snapshot; ``order`` grows from snapshot to snapshot."""
        if self.skips_changes:
            self.skips_changes, self._skipped_order = False, order
        for file in self.pending:
            file.frozen_by += 1
        files = tuple(self.stored), tuple(self.pending)
        return FrozenChain(self, order, *files, self.needs_base, self._last_number)

    def thaw(self, frozen: FrozenChain) -> None:
        """Release the files of a snapshot that stored nothing."""
        for file in frozen.pending:
            file.frozen_by -= 1
            if not file.frozen_by and file not in self.pending:
                os.unlink(file.path)

    def complete(self, frozen: FrozenChain, stored: list[StoredFile], is_exact: bool) -> None:
        """Set the files of a completed snapshot; ``stored`` have the content of the frozen files."""
        if frozen.order > self._latest_order:
            self._latest_order = frozen.order
            self.stored, self.is_exact = list(stored), is_exact
            self.needs_base = self.skips_changes or self._skipped_order > frozen.order
            # The removed files are frozen; they are deleted when they are thawed.
            self.pending = [file for file in self.pending if file.number > frozen.through]
        self.thaw(frozen)

    def discard(self) -> None:
        """Delete the chain's files, because other files replace them."""
        pending, self.pending = self.pending, []
        for file in pending:
            if not file.frozen_by:
                os.unlink(file.path)
