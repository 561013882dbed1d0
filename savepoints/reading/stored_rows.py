"""The rows of keyed state in canonical form, from the files of any backend, for a range of key groups.

The files of a savepoint are canonical rows and are read as they are, a batch at a time. Those of a checkpoint are a
backend's own: the backend restores them into a private scratch directory, only the key groups that are asked for, and
gives its rows. Memory holds a batch, unless the backend keeps state in memory, as that of the heap does: then it holds
those rows of the state of the subtask. The scratch directory is removed when the reading ends, however it does.

Rows come sorted by key group, key, namespace and user key, subtask by subtask.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa

from checkpointing.handles.state_handles import KeyedStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.api.key_groups import KeyGroupRange
from statebackend.canonical.canonical_entries import SCHEMA, CanonicalBatch, rows_inside
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters, RestoredHandle
from statebackend.keyed.backend_registry import state_backend
from statebackend.keyed.canonical_file import CanonicalFile
from statebackend.keyed.private_directory import temporary_directory
from statebackend.keyed.state_meta import CANONICAL_BACKEND, KeyedStateMeta, StateMeta

__all__ = ["ALL_COLUMNS", "stored_columns", "stored_rows"]

ALL_COLUMNS: Sequence[str] = tuple(SCHEMA.names)
"""The names of the columns of canonical rows."""


def stored_rows(
    handle: KeyedStateHandle,
    meta: KeyedStateMeta,
    state: StateMeta,
    file_system: CheckpointFileSystem,
    max_parallelism: int,
    key_groups: KeyGroupRange,
) -> Iterator[CanonicalBatch]:
    """The rows of one state of a subtask whose key group is in the range; files outside of it are not read.

    Raises what `stored_columns` does.
    """
    for batch in stored_columns(handle, meta, state, file_system, max_parallelism, (key_groups,)):
        yield CanonicalBatch.of(batch)


def stored_columns(
    handle: KeyedStateHandle,
    meta: KeyedStateMeta,
    state: StateMeta,
    file_system: CheckpointFileSystem,
    max_parallelism: int,
    key_groups: Sequence[KeyGroupRange],
    columns: Sequence[str] = ALL_COLUMNS,
    *,
    is_verified: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The rows in several ranges, as batches of Arrow with these columns, the key group among them.

    Of the files of a savepoint only these columns are read. Without ``is_verified`` only the pages of a large one
    that are needed are fetched, and compared with their checksums, not the file with its own.
    Raises `CheckpointError`s for missing or damaged files, `StateRestoreError` for what is not state, and
    `UnknownStateBackendError` for the files of a backend that is not installed.
    """
    held = KeyGroupRange(handle.key_group_start, handle.key_group_end)
    wanted = [
        KeyGroupRange(max(held.start, one.start), min(held.end, one.end)) for one in key_groups if held.overlaps(one)
    ]
    if not wanted or not state.files:
        return
    with temporary_directory() as directory:
        if handle.backend == CANONICAL_BACKEND:
            for file in state.files:
                stored = CanonicalFile(file_system, handle.files[file.index])
                yield from stored.columns(wanted, directory, columns, is_verified=is_verified)
            return
        hull = KeyGroupRange(min(one.start for one in wanted), max(one.end for one in wanted))
        parameters = KeyedStateBackendParameters(
            operator_uid="reading",
            key_serializer=meta.key_snapshot.restore_serializer(),
            max_parallelism=max_parallelism,
            key_group_range=hull,
            file_system=file_system,
            file_prefix="unused",
            local_directory=os.path.join(directory, "state"),
            restore=(RestoredHandle(handle, file_system),),
        )
        with state_backend(handle.backend).create_keyed_state_backend(parameters) as backend:
            for exported in backend.export_state(state.name):
                batch = rows_inside(pa.record_batch(list(exported), schema=SCHEMA), wanted)
                if batch.num_rows:
                    yield batch.select(list(columns))
