"""State handles whose files are canonical Parquet: what a savepoint is made of, readable by every backend."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Final

from attrs import evolve

from checkpointing.handles.relative_path import path_segment
from checkpointing.handles.state_handles import FileHandle, KeyedStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.api.progress import Operation, ProgressListener, StateProgress, no_progress
from statebackend.canonical.canonical_entries import CanonicalBatch, write_canonical
from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from statebackend.keyed.state_meta import CANONICAL_BACKEND, StateFile, encode_meta
from statebackend.ttl.row_filter import kept_batches

CANONICAL_SUFFIX: Final = ".parquet"


def export_canonical_handle(
    backend: KeyedStateBackend,
    file_system: CheckpointFileSystem,
    directory: str,
    part: str,
    state_id: str,
    *,
    scratch_directory: str | None = None,
    progress: ProgressListener = no_progress,
) -> tuple[KeyedStateHandle, dict[str, int]]:
    """Writes all states of a backend, registered or not, as Parquet files.

    The files are ``<directory>/<state>/<part>.parquet`` with the state's name escaped as in a URL (`path_segment`); the
    second result is the number of rows of each state. A state without entries has no file. What has expired is left out
    (`KeyedStateBackend.row_filter`). Files are made in ``scratch_directory``, by default that of the system, one at a
    time. ``progress`` hears how far each state is.
    """
    files: list[FileHandle] = []
    files_by_state: dict[str, tuple[StateFile, ...]] = {}
    rows_by_state: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="statebackend-export-", dir=scratch_directory) as local_directory:
        for state in backend.current_meta().states:
            local = os.path.join(local_directory, "part" + CANONICAL_SUFFIX)
            row_filter = backend.row_filter(state.name)
            told = StateProgress(progress, Operation.SAVEPOINT, backend.parameters.operator_uid, state.name)
            batches = kept_batches(row_filter, backend.export_state(state.name))
            rows = write_canonical(local, _counted(batches, told))
            rows_by_state[state.name] = rows
            references: tuple[StateFile, ...] = ()
            if rows:
                target = f"{directory}/{path_segment(state.name)}/{part}{CANONICAL_SUFFIX}"
                references = (StateFile(len(files), state_id),)
                files.append(file_system.upload(local, target))
                told.add(size_bytes=files[-1].size_bytes)
            told.done()
            os.unlink(local)
            files_by_state[state.name] = references
    # Taken after the rows were written, for serializers that learn from what they write.
    meta = backend.current_meta()
    states = tuple(state.with_files(files_by_state[state.name]) for state in meta.states)
    key_groups = backend.key_group_range
    handle = KeyedStateHandle(
        state_id,
        CANONICAL_BACKEND,
        key_groups.start,
        key_groups.end,
        encode_meta(evolve(meta, states=states)),
        tuple(files),
    )
    return handle, rows_by_state


def _counted(batches: Iterable[CanonicalBatch], told: StateProgress) -> Iterator[CanonicalBatch]:
    for batch in batches:
        yield batch
        told.add(batch.row_count)
