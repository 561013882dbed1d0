"""Which files of a snapshot hold which of its states, and how large they are, as its handle says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checkpointing.handles.state_handles import FileHandle, KeyedStateHandle
from statebackend.keyed.state_meta import StateFile, decode_meta

__all__ = ["file_sizes", "files_of_states"]


def files_of_states(handle: KeyedStateHandle) -> Iterator[tuple[str, Sequence[tuple[StateFile, FileHandle]]]]:
    """Each state by its name with its files, of which it may have none; a file may be that of several states.

    Raises `StateRestoreError` for meta data that is damaged, or another library's.
    """
    for state in decode_meta(handle.meta, len(handle.files)).states:
        yield state.name, [(file, handle.files[file.index]) for file in state.files]


def file_sizes(handle: KeyedStateHandle) -> dict[str, tuple[int, int]]:
    """By state the bytes of all its files in a handle, and of those that the snapshot itself wrote."""
    return {
        name: (
            sum(stored.size_bytes for _, stored in files),
            sum(stored.size_bytes for file, stored in files if file.written_by == handle.state_id),
        )
        for name, files in files_of_states(handle)
    }
