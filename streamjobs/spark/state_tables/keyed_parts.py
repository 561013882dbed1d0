"""How the rows of a keyed state are dealt out to Spark's tasks: by subtask, and by key groups within a large file.

The file of a savepoint is sorted by key group, so several tasks can read a range of it each. The first of them compares
the whole file with its checksum; if it is damaged, that task fails, and with it the query. Of what is read for some key
groups only, because a query names keys, a small file is compared with its checksum, and of a large one the pages that
are read are with theirs. The files of a backend are restored by it, and what a subtask wrote is one part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

from checkpointing.handles.state_handles import KeyedStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from savepoints.reading.stored_rows import ALL_COLUMNS, stored_columns
from statebackend.api.key_groups import KeyGroupRange
from statebackend.keyed.state_meta import CANONICAL_BACKEND, KeyedStateMeta, StateMeta, decode_meta
from streamjobs.spark.state_tables.key_pruning import WantedKeys

__all__ = ["KeyedPart", "keyed_parts"]

PART_BYTES: Final = 16 << 20
"""How many bytes of a savepoint's file, as it is stored, one task reads. Rows take some ten times as much memory, of
which a task has a batch at a time."""


@frozen
class KeyedPart:
    """Rows of one state of one subtask, in some ranges of key groups; with ``keys``, of these keys only."""

    file_system: CheckpointFileSystem
    handle: KeyedStateHandle
    max_parallelism: int
    state_name: str
    key_groups: tuple[KeyGroupRange, ...]
    keys: frozenset[bytes] | None = None
    is_verified: bool = True

    @property
    def meta(self) -> KeyedStateMeta:
        """What the subtask's state is; read from its bytes at each call."""
        return decode_meta(self.handle.meta, len(self.handle.files))

    def rows(
        self, meta: KeyedStateMeta, state: StateMeta, columns: Sequence[str] = ALL_COLUMNS
    ) -> Iterator[pa.RecordBatch]:
        """The rows as they are stored, with these columns, the key group among them; raises as `stored_rows`."""
        needed = columns if self.keys is None else tuple(name for name in ALL_COLUMNS if name in {*columns, "key"})
        keys = None if self.keys is None else pa.array(sorted(self.keys), pa.binary())
        for batch in stored_columns(
            self.handle,
            meta,
            state,
            self.file_system,
            self.max_parallelism,
            self.key_groups,
            needed,
            is_verified=self.is_verified,
        ):
            rows = batch if keys is None else batch.filter(pc.is_in(batch.column("key"), value_set=keys))
            if rows.num_rows:
                yield rows.select(list(columns))


def keyed_parts(
    handles: Iterable[KeyedStateHandle],
    state_name: str,
    file_system: CheckpointFileSystem,
    max_parallelism: int,
    wanted: WantedKeys,
) -> Sequence[KeyedPart]:
    """The parts of a state, in the order of their key groups; none of a subtask that has nothing of what is wanted."""
    parts: list[KeyedPart] = []
    for handle in handles:
        state = decode_meta(handle.meta, len(handle.files)).state(state_name)
        if state is None or not state.files:
            continue
        held = KeyGroupRange(handle.key_group_start, handle.key_group_end)
        if wanted.key_groups is not None:
            groups = wanted.inside(held)
            if groups:
                parts.append(
                    KeyedPart(file_system, handle, max_parallelism, state_name, groups, wanted.keys, is_verified=False)
                )
            continue
        for index, piece in enumerate(_pieces(handle, state, held)):
            parts.append(
                KeyedPart(
                    file_system, handle, max_parallelism, state_name, (piece,), wanted.keys, is_verified=index == 0
                )
            )
    return parts


def _pieces(handle: KeyedStateHandle, state: StateMeta, held: KeyGroupRange) -> Iterator[KeyGroupRange]:
    """The range in as many pieces as there are parts to it, all about as long."""
    if handle.backend != CANONICAL_BACKEND:
        yield held
        return
    size_bytes = sum(handle.files[file.index].size_bytes for file in state.files)
    pieces = max(1, min(len(held), -(-size_bytes // PART_BYTES)))
    starts = [held.start + index * len(held) // pieces for index in range(pieces)] + [held.end + 1]
    for start, after in itertools.pairwise(starts):
        yield KeyGroupRange(start, after - 1)
