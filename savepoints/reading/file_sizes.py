"""Which files hold which state, of one checkpoint or savepoint or of several that share files.

A file of a backend may hold several states; its bytes are then those of all of them together, told under their names
joined. Bytes are those of the files, compressed as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import field, frozen

from checkpointing.handles.state_handles import FileHandle, KeyedStateHandle, SubtaskState
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from statebackend.keyed.snapshot_sizes import files_of_states
from statebackend.operator_state import decode_operator_state

__all__ = ["CheckpointFile", "stored_files"]

CHANNELS: Final = "records on their way"
SOURCES: Final = "how far the sources are read"


@frozen
class CheckpointFile:
    """A file, the operator and the states whose it is, and the checkpoints that need it; None is no operator's."""

    path: str
    size_bytes: int
    operator_uid: str | None
    states: tuple[str, ...]
    checkpoint_ids: tuple[int, ...] = field(default=())


def stored_files(checkpoints: Sequence[CheckpointMetadata]) -> Sequence[CheckpointFile]:
    """All files that these checkpoints need, each once, by path; reads nothing.

    Raises `StateRestoreError` for meta data that is damaged.
    """
    found: dict[str, tuple[FileHandle, str | None, dict[str, None], dict[int, None]]] = {}
    for metadata in checkpoints:
        for uid, state, file in _files(metadata):
            known = found.setdefault(file.path, (file, uid, {}, {}))
            known[2][state] = None
            known[3][metadata.checkpoint_id] = None
    return [
        CheckpointFile(path, file.size_bytes, uid, tuple(states), tuple(checkpoint_ids))
        for path, (file, uid, states, checkpoint_ids) in sorted(found.items())
    ]


def _files(metadata: CheckpointMetadata) -> Iterator[tuple[str | None, str, FileHandle]]:
    for operator in metadata.operators:
        for subtask in operator.subtasks:
            for state, file in _files_of_subtask(subtask):
                yield operator.uid, state, file
    for file in metadata.source_progress_files:
        yield None, SOURCES, file


def _files_of_subtask(subtask: SubtaskState) -> Iterator[tuple[str, FileHandle]]:
    if subtask.keyed is not None:
        yield from _keyed_files(subtask.keyed)
    for state in decode_operator_state(subtask.operator).states:
        for part in state.parts:
            yield from ((state.name, one.file) for one in part.slices)
    for channels in (subtask.input_channels, subtask.output_channels):
        yield from ((CHANNELS, file) for file in (() if channels is None else channels.files))


def _keyed_files(handle: KeyedStateHandle) -> Iterator[tuple[str, FileHandle]]:
    named = set()
    for name, files in files_of_states(handle):
        for file, stored in files:
            named.add(file.index)
            yield name, stored
    # What no state names is of the backend itself.
    yield from (("", stored) for index, stored in enumerate(handle.files) if index not in named)
