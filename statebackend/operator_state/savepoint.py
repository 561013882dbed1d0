"""Operator state in a savepoint: the same rows, in one file per state, schema and subtask, and in no other's store.

The files are ``<directory>/operator=<mode>/<state>/<part>.parquet``, with the name of the state escaped as in a URL
(`path_segment`), which never leaves a ``=``: nothing of keyed state can lie there. A second schema of a state goes to
``<part>.1.parquet``, and so on. Nothing is decoded: state that nobody registers is exported as any other.
"""

from __future__ import annotations

from checkpointing.handles.relative_path import path_segment
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.operator_state.entries import encoded_rows, read_slices
from statebackend.operator_state.handles import FileSlice, OperatorStateHandle, OperatorStateMeta, StatePart
from statebackend.operator_state.snapshot_task import FILE_SUFFIX


def export_operator_state(
    handle: OperatorStateHandle,
    source: CheckpointFileSystem,
    target: CheckpointFileSystem,
    directory: str,
    part: str,
) -> tuple[OperatorStateHandle, dict[str, int]]:
    """Copies the operator state of one subtask; returns its handle in the target and the rows of each state."""
    states = []
    for state in handle.states:
        prefix = f"{directory}/operator={state.mode.value}/{path_segment(state.name)}/{part}"
        parts = []
        for number, old in enumerate(state.parts):
            slices: tuple[FileSlice, ...] = ()
            if old.slices:
                data = encoded_rows(read_slices(source, old.slices))
                path = prefix + (f".{number}" if number else "") + FILE_SUFFIX
                slices = (FileSlice(target.write_file(path, data), 0, old.row_count),)
            parts.append(StatePart(old.envelopes, slices))
        states.append(OperatorStateMeta(state.name, state.mode, tuple(parts)))
    return OperatorStateHandle(tuple(states)), {state.name: state.row_count for state in states}
