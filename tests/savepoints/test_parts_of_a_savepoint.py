"""Which parts of a subtask's state a savepoint holds, and which it refuses instead of leaving them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpointing import CheckpointFileSystem, OpaqueStateHandle, SavepointError, SubtaskState
from savepoints.handle_export import ExportTask


def task(tmp_path: Path, state: SubtaskState) -> ExportTask:
    source, target = (CheckpointFileSystem.from_uri(tmp_path / name) for name in ("source", "target"))
    return ExportTask("counter", 1, 4, state, source, target, {}, 0)


@pytest.mark.parametrize("part", ["input_channels", "output_channels"])
def test_records_on_their_way_are_not_left_out_in_silence(tmp_path: Path, part: str) -> None:
    export = task(tmp_path, SubtaskState(**{part: OpaqueStateHandle("records", b"")}))
    with pytest.raises(SavepointError, match=r"subtask 1 of operator 'counter' has records on their way"):
        export.run()
    assert export.target.list_files() == ()


def test_a_subtask_without_state_is_exported_as_such(tmp_path: Path) -> None:
    exported = task(tmp_path, SubtaskState()).run()
    assert (exported.state, exported.rows, exported.operator_state_rows) == (SubtaskState(), {}, {})
