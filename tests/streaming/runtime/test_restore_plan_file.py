"""Restore plans as files: each subtask reads its own part; damaged and missing plans are reported."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle, OperatorState, SubtaskState
from statebackend.savepoint.restored_state import RestoredState
from statebackend.state.backend_parameters import RestoredHandle
from statebackend.state.key_groups import key_group_range_of_subtask
from statebackend.state.operator_state_descriptors import OperatorStateMode
from statebackend.state.operator_state_handles import (
    FileSlice,
    OperatorStateHandle,
    OperatorStateMeta,
    StatePart,
    encode_operator_state,
)
from statebackend.state.operator_state_redistribution import AssignedState, RestoredOperatorState
from statebackend.streaming.errors import JobRestoreError
from statebackend.streaming.runtime.restore_plan import (
    SubtaskRestore,
    continued_subtask,
    restores_by_subtask,
    write_restore_plan,
)


def restored_state(fs: CheckpointFileSystem, operator: OperatorState) -> RestoredState:
    metadata = CheckpointMetadata(
        checkpoint_id=1,
        kind=CheckpointKind.SAVEPOINT,
        job_id="job",
        job_name="job",
        timestamp_ms=5,
        max_parallelism=16,
        operators=(operator,),
    )
    return RestoredState(metadata, fs)


def handle_of(start: int, end: int) -> KeyedStateHandle:
    file = FileHandle(f"shared/op/{start}.sst", 3, f"xxh3:{start:032x}")
    return KeyedStateHandle(f"state {start}", "heap", start, end, b"meta", (file,))


@pytest.mark.parametrize("most_travelling_bytes", [0, 16 << 10])
def test_each_subtask_reads_its_restore_handles(tmp_path: Path, most_travelling_bytes: int) -> None:
    plans = CheckpointFileSystem.from_uri(tmp_path)
    state_files = CheckpointFileSystem.from_uri(tmp_path / "savepoint")
    file = FileHandle("operators/op/part.parquet", 9, f"xxh3:{5:032x}")
    slices = (FileSlice(file, 0, 4), FileSlice(file, 6, 9))
    everything = (StatePart({"element": b"envelope"}, slices, bytes(range(16))),)
    own = (StatePart({"element": b"envelope"}),)
    operator_state = RestoredOperatorState(
        (AssignedState("names", OperatorStateMode.UNION, everything, own),), state_files, may_refer=False
    )
    of_a_checkpoint = RestoredOperatorState(
        (AssignedState("names", OperatorStateMode.SPLIT, own, everything),), state_files, may_refer=True
    )
    old = RestoredHandle(handle_of(0, 7), state_files)
    restores = (
        SubtaskRestore((old,), operator_state, is_restored=True),
        SubtaskRestore((old, RestoredHandle(handle_of(8, 9), state_files)), None, is_restored=True),
        SubtaskRestore((), of_a_checkpoint, is_restored=True),
        SubtaskRestore(),
    )
    continued = (SubtaskState(handle_of(0, 4)), SubtaskState(handle_of(5, 9)))
    by_operator = {"first": restores, "second": continued}
    sections = write_restore_plan(plans, "plans/1", by_operator, most_travelling_bytes)
    assert plans.list_files() == (("plans/1",) if most_travelling_bytes == 0 else ())
    for index, restore in enumerate(restores):
        read = sections["first"].read(plans, state_files, index)
        assert [one.handle for one in read.keyed] == [one.handle for one in restore.keyed]
        assert read.is_restored is restore.is_restored
        assert (read.operator is None) == (restore.operator is None)
        if read.operator is not None and restore.operator is not None:
            assert read.operator.states == restore.operator.states
            assert read.operator.may_refer is restore.operator.may_refer
            for state, expected in zip(read.operator.states, restore.operator.states, strict=True):
                assert [part.digest for part in state.content] == [part.digest for part in expected.content]
                assert [part.digest for part in state.carried] == [part.digest for part in expected.carried]
    for index, state in enumerate(continued):
        read = sections["second"].read(plans, plans, index)
        assert [one.handle for one in read.keyed] == [state.keyed]
        assert not read.is_restored


def test_handles_of_several_subtasks_are_written_once(tmp_path: Path) -> None:
    plans = CheckpointFileSystem.from_uri(tmp_path)
    old = RestoredHandle(KeyedStateHandle("state", "heap", 0, 127, bytes(100_000)), plans)
    write_restore_plan(plans, "plans/1", {"op": [SubtaskRestore((old,), None, is_restored=True) for _ in range(100)]})
    assert plans.size("plans/1") < 120_000


class MadeOnDemand(Sequence[SubtaskRestore]):
    """Restore handles that are created on request and not kept."""

    def __init__(self, file_system: CheckpointFileSystem) -> None:
        self.file_system = file_system

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: Any) -> Any:
        if index >= len(self):
            raise IndexError(index)
        return SubtaskRestore((RestoredHandle(handle_of(index, index), self.file_system),), None, is_restored=True)


def test_a_handle_collected_during_writing_is_not_confused_with_a_later_one(tmp_path: Path) -> None:
    plans = CheckpointFileSystem.from_uri(tmp_path)
    section = write_restore_plan(plans, "plans/1", {"op": MadeOnDemand(plans)})["op"]
    for index in range(20):
        assert [one.handle for one in section.read(plans, plans, index).keyed] == [handle_of(index, index)]


def test_only_a_small_plan_is_sent_with_the_tasks(tmp_path: Path) -> None:
    plans = CheckpointFileSystem.from_uri(tmp_path)
    large = [SubtaskState(handle_of(start, start)) for start in range(1000)]
    for count, has_file in ((10, False), (1000, True)):
        section = write_restore_plan(plans, "plans/1", {"op": large[:count]})["op"]
        assert plans.exists("plans/1") is has_file
        assert len(pickle.dumps(section)) < 20_000
        assert [one.handle for one in section.read(plans, plans, count - 1).keyed] == [large[count - 1].keyed]


def test_a_damaged_or_missing_plan_has_advice(tmp_path: Path) -> None:
    plans = CheckpointFileSystem.from_uri(tmp_path)
    section = write_restore_plan(plans, "plans/1", {"op": [SubtaskState(handle_of(0, 9))]}, 0)["op"]
    data = plans.read_file("plans/1")
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x40
        plans.write_file("plans/1", bytes(changed), durable=False)
        with pytest.raises(JobRestoreError, match="is damaged"):
            section.read(plans, plans, 0)
    for size in range(len(data)):
        plans.write_file("plans/1", data[:size], durable=False)
        with pytest.raises(JobRestoreError, match="is damaged"):
            section.read(plans, plans, 0)
    plans.delete("plans/1")
    with pytest.raises(JobRestoreError, match="not on a store that the driver and all executors share"):
        section.read(plans, plans, 0)


def test_an_unreadable_plan_has_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise OSError(5, "Input/output error")

    plans = CheckpointFileSystem.from_uri(tmp_path)
    section = write_restore_plan(plans, "plans/1", {"op": [SubtaskState(handle_of(0, 9))]}, 0)["op"]
    monkeypatch.setattr(plans, "open_input", fail)
    with pytest.raises(JobRestoreError, match=r"cannot be read .*Input/output error.*start the job again"):
        section.read(plans, plans, 0)


@pytest.mark.parametrize(("old", "new"), [(1, 5), (5, 1), (3, 7), (7, 3), (4, 4)])
def test_a_subtask_gets_exactly_the_old_handles_that_overlap_its_key_groups(tmp_path: Path, old: int, new: int) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    ranges = [key_group_range_of_subtask(index, old, 16) for index in range(old)]
    subtasks = tuple(SubtaskState(handle_of(one.start, one.end)) for one in ranges)
    plan = restores_by_subtask(restored_state(fs, OperatorState("op", "op", 16, subtasks)), "op", new)
    for index, restore in enumerate(plan):
        own = set(key_group_range_of_subtask(index, new, 16))
        expected = [one.start for one in ranges if own & set(one)]
        assert [restored.handle.key_group_start for restored in restore.keyed] == expected


def test_an_operator_without_keyed_state_is_restored(tmp_path: Path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    file = fs.write_file("rows", b"rows")
    part = StatePart({"element": b"envelope"}, (FileSlice(file, 0, 6),), bytes(range(16)))
    own = OperatorStateHandle((OperatorStateMeta("names", OperatorStateMode.SPLIT, (part,)),))
    operator = OperatorState("op", "op", 16, (SubtaskState(operator=encode_operator_state(own)), SubtaskState()))
    plan = restores_by_subtask(restored_state(fs, operator), "op", 3)
    assert [restore.keyed for restore in plan] == [(), (), ()]
    assert [restore.operator.states[0].content[0].row_count for restore in plan if restore.operator] == [2, 2, 2]
    section = write_restore_plan(fs, "plans/1", {"op": operator.subtasks}, 0)["op"]
    again = section.read(fs, fs, 0)
    assert again.operator is not None
    assert (again.keyed, again.operator.states[0].content) == ((), (part,))
    assert again.operator.states[0].content[0].digest == bytes(range(16))
    assert section.read(fs, fs, 1) == SubtaskRestore()


def test_state_is_redistributed_at_a_start_and_stays_with_its_subtask_over_epochs(tmp_path: Path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    file = FileHandle("rows", 9, f"xxh3:{5:032x}")

    def own(start: int) -> SubtaskState:
        part = StatePart({"element": b"envelope"}, (FileSlice(file, start, start + 3),))
        state = OperatorStateMeta("names", OperatorStateMode.UNION, (part,))
        return SubtaskState(operator=encode_operator_state(OperatorStateHandle((state,))))

    operator = OperatorState("op", "op", 16, (own(0), own(3)))

    def rows(plan: Sequence[SubtaskRestore]) -> list[int]:
        return [sum(part.row_count for part in one.operator.states[0].content) for one in plan if one.operator]

    at_a_start = restores_by_subtask(restored_state(fs, operator), "op", 2)
    in_the_next_epoch = [continued_subtask(subtask, fs) for subtask in operator.subtasks]
    assert [one.is_restored for one in (*at_a_start, *in_the_next_epoch)] == [True, True, False, False]
    assert (rows(at_a_start), rows(in_the_next_epoch)) == ([6, 6], [3, 3])
