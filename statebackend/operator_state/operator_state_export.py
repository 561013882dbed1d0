"""Operator state in a savepoint: the same rows, in one file per state, schema and subtask, and in no other's store.

The files are ``<directory>/operator=<mode>/<state>/<part>.parquet``, with the name of the state escaped as in a URL
(`path_segment`), which never leaves a ``=``: nothing of keyed state can lie there. A second schema of a state goes to
``<part>.1.parquet``, and so on. Nothing is decoded: state that nobody registers is exported as any other.
"""

from __future__ import annotations

from checkpointing.handles.relative_path import path_segment
from checkpointing.handles.state_handles import OpaqueStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.keyed.state_meta import CANONICAL_BACKEND
from statebackend.operator_state.operator_snapshot_task import FILE_SUFFIX
from statebackend.operator_state.operator_state_handles import (
    FileSlice,
    OperatorStateHandle,
    OperatorStateMeta,
    StatePart,
    decode_operator_state,
    encode_operator_state,
)
from statebackend.operator_state.operator_state_rows import encoded_rows, read_slices


def export_operator_state(
    part: OpaqueStateHandle | None,
    source: CheckpointFileSystem,
    target: CheckpointFileSystem,
    directory: str,
    file_stem: str,
) -> tuple[OpaqueStateHandle | None, dict[str, int]]:
    """Copies the operator part of a subtask's state; returns that part in the target and the rows of each state."""
    states = []
    for state in decode_operator_state(part).states:
        prefix = f"{directory}/operator={state.mode.value}/{path_segment(state.name)}/{file_stem}"
        parts = []
        for number, old in enumerate(state.parts):
            slices: tuple[FileSlice, ...] = ()
            if old.slices:
                data = encoded_rows(read_slices(source, old.slices))
                path = prefix + (f".{number}" if number else "") + FILE_SUFFIX
                slices = (FileSlice(target.write_file(path, data), 0, old.row_count),)
            parts.append(StatePart(old.envelopes, slices, old.digest))
        states.append(OperatorStateMeta(state.name, state.mode, tuple(parts)))
    exported = encode_operator_state(OperatorStateHandle(tuple(states)), CANONICAL_BACKEND)
    return exported, {state.name: state.row_count for state in states}
