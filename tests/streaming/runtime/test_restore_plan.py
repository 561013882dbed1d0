"""State rejected before a start, and the handles of each subtask, on both sides of every limit."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from snapshots import snapshot_to_bytes
from statebackend import JobRestoreError, ValueStateDescriptor
from statebackend.checkpoint import (
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    CorruptFileError,
    FileHandle,
    KeyedStateHandle,
    MissingFileError,
    OpaqueStateHandle,
    OperatorState,
    SubtaskState,
)
from statebackend.savepoint.restored_state import RestoredState
from statebackend.state import backend_parameters
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.operator_state_descriptors import OperatorStateMode
from statebackend.state.operator_state_handles import (
    OperatorStateHandle,
    OperatorStateMeta,
    StatePart,
    encode_operator_state,
)
from statebackend.state.state_backend import state_backend
from statebackend.state.state_meta import KeyedStateMeta, decode_meta, encode_meta, meta_of_descriptor
from statebackend.streaming.compatibility_check import CompatibilityChecker, DescribedJob
from statebackend.streaming.runtime.restore_plan import restores_by_subtask
from statebackend.streaming.runtime.state_registration import RegisteredStates
from typeserializers import LongSerializer


def restored(fs: CheckpointFileSystem, *uids: str, backend: str = "heap", files: Any = ()) -> RestoredState:
    """State of operators with two subtasks of two key groups each; the files belong to the last subtask."""
    operators = tuple(
        OperatorState(
            uid,
            uid,
            4,
            (
                SubtaskState(KeyedStateHandle(f"{uid}-0", "heap", 0, 1, b"", ())),
                SubtaskState(KeyedStateHandle(f"{uid}-1", backend, 2, 3, b"", tuple(files))),
            ),
        )
        for uid in uids
    )
    metadata = CheckpointMetadata(
        checkpoint_id=7,
        kind=CheckpointKind.SAVEPOINT,
        job_id="job",
        job_name="count",
        timestamp_ms=5,
        max_parallelism=4,
        operators=operators,
    )
    return RestoredState(metadata, fs)


def checker(state: RestoredState, *uids: str, max_parallelism: int = 4) -> CompatibilityChecker:
    """The checker of a job with operators of these uids, which register no state."""
    return CompatibilityChecker(DescribedJob(dict.fromkeys(uids, StartingOperatorOfTest()), max_parallelism), state)


def start(
    state: RestoredState, *uids: str, parallelism: int = 2, allow_non_restored_state: bool = False
) -> Mapping[str, Any]:
    """The reports of a start with operators of these uids."""
    return checker(state, *uids).check_start(
        backend=state_backend("heap"), parallelism=parallelism, allow_non_restored_state=allow_non_restored_state
    )


@attrs.frozen
class StartingOperatorOfTest:
    key_serializer: Any = None
    states: RegisteredStates = attrs.field(factory=RegisteredStates)


@pytest.fixture
def fs(tmp_path: Path) -> CheckpointFileSystem:
    return CheckpointFileSystem.from_uri(tmp_path)


@pytest.mark.parametrize("max_parallelism", [2, 3, 5, 8])
def test_a_smaller_and_a_larger_max_parallelism_are_rejected(fs: CheckpointFileSystem, max_parallelism: int) -> None:
    with pytest.raises(JobRestoreError, match=rf"has max_parallelism 4, the job {max_parallelism}:.*Set max_par.*=4"):
        checker(restored(fs, "a"), "a", max_parallelism=max_parallelism).check_operators(True)
    checker(restored(fs, "a"), "a").check_operators(False)


def test_operators_missing_in_the_job_are_rejected_unless_they_may_be_dropped(fs: CheckpointFileSystem) -> None:
    state = restored(fs, "a", "b", "c")
    checker(state, "a", "b", "c", "new").check_operators(False)
    with pytest.raises(JobRestoreError, match=r"the job does not have: 'a', 'c' \(the job has 'b', 'new'\)"):
        checker(state, "b", "new").check_operators(False)
    checker(state, "b").check_operators(True)


def test_files_are_checked_for_operators_of_the_job(fs: CheckpointFileSystem) -> None:
    file = fs.write_file("state", b"data")
    checker(restored(fs, "a", files=[file]), "a").check_files()
    short, none = FileHandle("state", 5, file.checksum), FileHandle("none", 4, file.checksum)
    for wrong, error in ((short, CorruptFileError), (none, MissingFileError)):
        with pytest.raises(error):
            checker(restored(fs, "a", files=[wrong]), "b", "a").check_files()
        checker(restored(fs, "a", files=[wrong]), "b").check_files()


@pytest.mark.parametrize("part", ["input_channels", "output_channels"])
def test_records_in_flight_are_rejected_and_not_ignored(fs: CheckpointFileSystem, part: str) -> None:
    file = fs.write_file("records", b"data")
    on_their_way: dict[str, Any] = {part: OpaqueStateHandle("channels", b"", (file,))}
    [operator] = restored(fs, "a").metadata.operators
    first, second = operator.subtasks
    unaligned = attrs.evolve(operator, subtasks=(first, attrs.evolve(second, **on_their_way)))
    state = RestoredState(attrs.evolve(restored(fs).metadata, operators=(unaligned,)), fs)
    with pytest.raises(JobRestoreError, match=r"subtask 1 of operator 'a' has records in flight.*take a savepoint"):
        start(state, "a")
    assert start(state, allow_non_restored_state=True) == {}, "an operator that is dropped needs none of its state"


def test_state_in_the_native_format_of_another_backend_is_rejected(fs: CheckpointFileSystem) -> None:
    checker(restored(fs, "a"), "a").check_backend(state_backend("heap"))
    with pytest.raises(JobRestoreError, match=r"operator 'b' at .* written by the backend 'other'.*'heap' does not"):
        checker(restored(fs, "b", backend="other"), "b").check_backend(state_backend("heap"))


def test_the_state_of_an_operator_is_found_by_its_uid(fs: CheckpointFileSystem) -> None:
    state = restored(fs, "a", "b")
    found = {uid: state.operator(uid) for uid in ("a", "b", "c")}
    assert {uid: operator and operator.uid for uid, operator in found.items()} == {"a": "a", "b": "b", "c": None}


def written_by(fs: CheckpointFileSystem, *types: Any) -> RestoredState:
    """An operator whose subtasks, of one key group each, have one state of these types."""
    subtasks = []
    for index, kind in enumerate(types):
        state = meta_of_descriptor(ValueStateDescriptor("state", kind), VOID_NAMESPACE_SERIALIZER)
        meta = encode_meta(KeyedStateMeta(LongSerializer().snapshot_configuration(), 0, (state,)))
        subtasks.append(SubtaskState(KeyedStateHandle(f"a-{index}", "heap", index, index, meta, ())))
    operator = OperatorState("a", "a", len(types), tuple(subtasks))
    return RestoredState(attrs.evolve(restored(fs).metadata, max_parallelism=len(types), operators=(operator,)), fs)


def test_schemas_that_one_subtask_would_have_to_merge_are_rejected_before_the_run(fs: CheckpointFileSystem) -> None:
    mixed = written_by(fs, int, int, int, str)
    for apart in (4, 3):
        checker(mixed, "a").check_merges(apart)
    for together in (2, 1):
        with pytest.raises(JobRestoreError, match=f"'a' cannot go from parallelism 4 to {together}; nothing was"):
            checker(mixed, "other", "a").check_merges(together)
    with pytest.raises(JobRestoreError, match="cannot go from parallelism 4 to 1; nothing was"):
        start(mixed, "a", parallelism=1)
    checker(mixed, "other").check_merges(1)
    checker(written_by(fs, int, int, int, int), "a").check_merges(1)


def element_envelope() -> bytes:
    return snapshot_to_bytes(LongSerializer().snapshot_configuration())


def test_a_start_checks_files_and_unregistered_state_of_kept_operators(
    fs: CheckpointFileSystem,
) -> None:
    state = written_by(fs, int, int, int, int)
    with pytest.raises(JobRestoreError, match=r"stored state that its open\(\) does not register: 'state'"):
        start(state, "a")
    assert set(start(state, "a", allow_non_restored_state=True)) == {"a"}
    with pytest.raises(JobRestoreError, match="operators that the job does not have: 'a'"):
        start(state, "b")
    [operator] = state.metadata.operators
    names = OperatorStateMeta("names", OperatorStateMode.SPLIT, (StatePart({"element": element_envelope()}),))
    part = encode_operator_state(OperatorStateHandle((names,)))
    with_names = attrs.evolve(operator.subtasks[0], operator=part)
    operators = (attrs.evolve(operator, subtasks=(with_names, *operator.subtasks[1:])),)
    with pytest.raises(JobRestoreError, match=r"does not register: 'state', 'names' \(operator state\)"):
        start(RestoredState(attrs.evolve(state.metadata, operators=operators), fs), "a")
    handle = operator.subtasks[3].keyed
    assert handle is not None
    absent = SubtaskState(attrs.evolve(handle, files=(FileHandle("absent", 4, "xxh3:" + "0" * 32),)))
    operators = (attrs.evolve(operator, subtasks=(*operator.subtasks[:3], absent)),)
    without_file = RestoredState(attrs.evolve(state.metadata, operators=operators), fs)
    with pytest.raises(MissingFileError, match="absent"):
        start(without_file, "a", allow_non_restored_state=True)
    assert start(without_file, allow_non_restored_state=True) == {}


def test_the_check_and_all_subtasks_decode_the_metadata_once(
    fs: CheckpointFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []

    def decode_and_count(data: bytes, file_count: int) -> KeyedStateMeta:
        decoded.append(data)
        return decode_meta(data, file_count)

    monkeypatch.setattr(backend_parameters, "decode_meta", decode_and_count)
    state = written_by(fs, int, int, int, int)
    start(state, "a", parallelism=4, allow_non_restored_state=True)
    for subtask in restores_by_subtask(state, "a", 4):
        assert [handle.meta.states[0].name for handle in subtask.keyed] == ["state"]
    assert len(decoded) == 4
    [copied] = pickle.loads(pickle.dumps(restores_by_subtask(state, "a", 4)[0])).keyed
    assert copied.meta.states[0].name == "state"
    assert len(decoded) == 5, "a worker decodes its own copy"
