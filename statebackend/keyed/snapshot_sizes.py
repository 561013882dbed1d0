"""How large the states of a snapshot are, as its handle says."""

from __future__ import annotations

from checkpointing.handles.state_handles import KeyedStateHandle
from statebackend.keyed.state_meta import decode_meta


def file_sizes(handle: KeyedStateHandle) -> dict[str, tuple[int, int]]:
    """By state the bytes of all its files in a handle, and of those that the snapshot itself wrote."""
    sizes = {}
    for state in decode_meta(handle.meta, len(handle.files)).states:
        files = [(handle.files[file.index].size_bytes, file.written_by) for file in state.files]
        written = sum(size_bytes for size_bytes, written_by in files if written_by == handle.state_id)
        sizes[state.name] = sum(size_bytes for size_bytes, _ in files), written
    return sizes
