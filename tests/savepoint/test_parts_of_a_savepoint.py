"""The parts of a subtask's state that a savepoint contains, and those that it rejects."""

from __future__ import annotations

from pathlib import Path

import pytest

from statebackend import ListStateDescriptor, StateTtlConfig
from statebackend.checkpoint import CheckpointFileSystem, FileHandle, OpaqueStateHandle, SavepointError, SubtaskState
from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.savepoint.export import ExportTask
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends.harness import BackendHarness, ManualClock
from typeserializers import PickleSerializer


def task(tmp_path: Path, state: SubtaskState) -> ExportTask:
    source, target = (CheckpointFileSystem.from_uri(tmp_path / name) for name in ("source", "target"))
    return ExportTask("counter", 1, 4, state, source, target, {}, 0)


@pytest.mark.parametrize("part", ["input_channels", "output_channels"])
def test_records_in_flight_are_rejected_and_not_ignored(tmp_path: Path, part: str) -> None:
    file = FileHandle("records", 1, checksum_of_bytes(b"r"))
    export = task(tmp_path, SubtaskState(**{part: OpaqueStateHandle("records", b"", (file,))}))
    with pytest.raises(SavepointError, match=r"subtask 1 of operator 'counter' has records in flight"):
        export.run()
    assert export.target.list_files() == ()


def test_empty_channels_are_accepted(tmp_path: Path) -> None:
    without_files = OpaqueStateHandle("records", b"what was known of time")
    exported = task(tmp_path, SubtaskState(input_channels=without_files, output_channels=without_files)).run()
    assert exported.state == SubtaskState()


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_keys_and_elements_of_unknown_serializers_are_exported_undecoded(tmp_path: Path, backend: str) -> None:
    harness = BackendHarness(str(tmp_path))
    harness.clock = clock = ManualClock(1_000)
    keys = PickleSerializer(str)
    elements = ListStateDescriptor("elements", PickleSerializer(str), ttl=StateTtlConfig(500))
    opened = harness.open(state_backend(backend), key_serializer=keys)
    harness.at(opened, "key")
    opened.get_state(elements).add("expired")
    clock.now_ms = 1_400
    opened.get_state(elements).add("kept")
    handle = harness.snapshot(opened).handle
    target = CheckpointFileSystem.from_uri(tmp_path / "target")
    exported = ExportTask(
        "counter", 0, harness.max_parallelism, SubtaskState(handle), harness.file_system, target,
        {"elements": StateTtlConfig(500)}, 1_600,
    ).run()  # fmt: skip
    assert exported.state.keyed is not None
    restored = BackendHarness(str(tmp_path))
    restored.file_system, restored.clock = target, ManualClock(1_600)
    reopened = restored.open(state_backend(backend), exported.state.keyed, key_serializer=keys)
    restored.at(reopened, "key")
    assert reopened.get_state(elements).get() == ["kept"]
    assert exported.rows == {"elements": 1}
    harness.close()
    restored.close()


def test_a_subtask_without_state_is_exported(tmp_path: Path) -> None:
    exported = task(tmp_path, SubtaskState()).run()
    assert (exported.state, exported.rows, exported.operator_state_rows) == (SubtaskState(), {}, {})
