"""The rows of keyed state in canonical form, from the files of any backend, for a range of key groups.

The files of a savepoint are canonical rows and are read as they are, a batch at a time. Those of a checkpoint are a
backend's own: the backend restores them into a private scratch directory, only the key groups that are asked for, and
gives its rows. Either way memory holds a batch; the scratch directory is removed when the reading ends, however it
does.

Rows come sorted by key group, key, namespace and user key, subtask by subtask.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

from checkpointing.handles.state_handles import KeyedStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.api.key_groups import KeyGroupRange
from statebackend.canonical.canonical_entries import CanonicalBatch
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters, RestoredHandle
from statebackend.keyed.backend_registry import state_backend
from statebackend.keyed.canonical_file import CanonicalFile
from statebackend.keyed.state_meta import CANONICAL_BACKEND, KeyedStateMeta, StateMeta

__all__ = ["stored_rows"]


def stored_rows(
    handle: KeyedStateHandle,
    meta: KeyedStateMeta,
    state: StateMeta,
    file_system: CheckpointFileSystem,
    max_parallelism: int,
    key_groups: KeyGroupRange,
) -> Iterator[CanonicalBatch]:
    """The rows of one state of a subtask whose key group is in the range; files outside of it are not read.

    Raises `CheckpointError`s for missing or damaged files, `StateRestoreError` for what is not state, and
    `UnknownStateBackendError` for the files of a backend that is not installed.
    """
    held = KeyGroupRange(handle.key_group_start, handle.key_group_end)
    if not held.overlaps(key_groups) or not state.files:
        return
    wanted = KeyGroupRange(max(held.start, key_groups.start), min(held.end, key_groups.end))
    with tempfile.TemporaryDirectory(prefix="statebackend-reading-") as directory:
        if handle.backend == CANONICAL_BACKEND:
            for file in state.files:
                yield from CanonicalFile(file_system, handle.files[file.index]).batches(wanted, directory)
            return
        parameters = KeyedStateBackendParameters(
            operator_uid="reading",
            key_serializer=meta.key_snapshot.restore_serializer(),
            max_parallelism=max_parallelism,
            key_group_range=wanted,
            file_system=file_system,
            file_prefix="unused",
            local_directory=os.path.join(directory, "state"),
            restore=(RestoredHandle(handle, file_system),),
        )
        with state_backend(handle.backend).create_keyed_state_backend(parameters) as backend:
            yield from backend.export_state(state.name)
