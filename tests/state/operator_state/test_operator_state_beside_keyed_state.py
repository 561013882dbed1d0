"""Keyed and operator state of one operator, through a checkpoint's metadata, on both backends."""

import pytest

from statebackend import ValueStateDescriptor
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.state_handles import OperatorState, SubtaskState
from statebackend.checkpoint.store.savepoint_directory import (
    create_savepoint_directory,
    read_savepoint,
    write_savepoint,
)
from statebackend.state.canonical_files import export_canonical_handle
from statebackend.state.operator_state_backend import (
    OperatorStateBackend,
    OperatorStateBackendParameters,
    export_operator_state,
)
from statebackend.state.operator_state_descriptors import SplitListStateDescriptor
from statebackend.state.operator_state_handles import decode_operator_state, encode_operator_state
from statebackend.state.operator_state_redistribution import restored_operator_state
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends.harness import OPERATOR_UID, BackendHarness

TOTAL = ValueStateDescriptor("same name", int)
OFFSETS = SplitListStateDescriptor("same name", int)
MAX_PARALLELISM = 10


class OperatorWithBoth:
    """Subtasks whose keyed and operator state share a store and a file prefix."""

    def __init__(self, directory, backend):
        self.harness = BackendHarness(str(directory), MAX_PARALLELISM)
        self.backend = state_backend(backend)

    def start(self, states, parallelism, file_system=None):
        store, self.harness.file_system = self.harness.file_system, file_system or self.harness.file_system
        split = [state.keyed for state in states]
        parts = [state.operator for state in states]
        operator = restored_operator_state(parts, self.harness.file_system, parallelism) if states else ()
        keyed = []
        for subtask in range(parallelism):
            own = self.harness.parameters(subtask=subtask, parallelism=parallelism).key_group_range
            overlapping = [
                handle for handle in split if handle.key_group_start <= own.end and own.start <= handle.key_group_end
            ]
            keyed.append(self.harness.open(self.backend, *overlapping, subtask=subtask, parallelism=parallelism))
        self.harness.file_system = store
        return [
            (
                one,
                OperatorStateBackend(
                    OperatorStateBackendParameters(
                        operator_uid=OPERATOR_UID,
                        file_system=store,
                        file_prefix=one.parameters.file_prefix,
                        restore=operator[subtask] if operator else None,
                    )
                ),
            )
            for subtask, one in enumerate(keyed)
        ]

    def checkpoint(self, subtasks, number):
        states = []
        for index, (keyed, operator) in enumerate(subtasks):
            state_id = f"state-{number}-{index}"
            own, ours = keyed.snapshot(number, state_id), operator.snapshot(number, state_id)
            state = SubtaskState(own.handle, encode_operator_state(ours.handle))
            acknowledgement = Acknowledgement("job", "run", number, OPERATOR_UID, index, "attempt", own.digest, state)
            states.append(Acknowledgement.decode(acknowledgement.encode()).state)
        return states

    def contents(self, subtasks):
        totals = {}
        for keyed, _ in subtasks:
            state = keyed.get_state(TOTAL)
            for key in keyed.get_keys(TOTAL.name):
                self.harness.at(keyed, key)
                totals[key] = state.value()
        return totals, [operator.get_state(OFFSETS).get() for _, operator in subtasks]


def metadata_of(states):
    return CheckpointMetadata(
        checkpoint_id=9,
        kind=CheckpointKind.SAVEPOINT,
        job_id="job",
        job_name="job",
        timestamp_ms=0,
        max_parallelism=MAX_PARALLELISM,
        operators=(OperatorState(OPERATOR_UID, "operator", MAX_PARALLELISM, tuple(states)),),
    )


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_both_are_restored_from_a_checkpoint_and_from_a_savepoint(tmp_path, backend, parallelism):
    operator = OperatorWithBoth(tmp_path, backend)
    subtasks = operator.start([], 2)
    for key in range(10):
        keyed = subtasks[0 if key < 5 else 1][0]
        state = keyed.get_state(TOTAL)
        operator.harness.at(keyed, key)
        state.update(key * 100)
    for index, (_, own) in enumerate(subtasks):
        own.get_state(OFFSETS).add_all(range(index * 10, index * 10 + 3))
    states = operator.checkpoint(subtasks, 1)
    totals, expected = {key: key * 100 for key in range(10)}, [0, 1, 2, 10, 11, 12]

    restored = operator.contents(operator.start(states, parallelism))
    assert restored[0] == totals
    assert [offset for part in restored[1] for offset in part] == expected

    target = create_savepoint_directory(str(tmp_path / "savepoint"))
    exported = []
    for index, (keyed, _) in enumerate(operator.start(states, 2)):
        canonical, _ = export_canonical_handle(keyed, target, "operators/o", f"part-{index}", f"savepoint-{index}")
        own = states[index].operator
        copied, rows = export_operator_state(own, operator.harness.file_system, target, "operators/o", f"part-{index}")
        assert rows == {"same name": 3}
        exported.append(SubtaskState(canonical, copied))
    write_savepoint(target, metadata_of(exported))
    source, metadata = read_savepoint(str(tmp_path / "savepoint"))
    states = list(metadata.operators[0].subtasks)
    assert states == exported
    restored = operator.contents(operator.start(states, parallelism, source))
    assert restored[0] == totals
    assert [offset for part in restored[1] for offset in part] == expected
    operator.harness.close()


def test_a_file_can_be_shared_by_the_states_of_several_subtasks(tmp_path):
    operator = OperatorWithBoth(tmp_path, "heap")
    subtasks = operator.start([], 1)
    keyed, own = subtasks[0]
    state = keyed.get_state(TOTAL)
    operator.harness.at(keyed, 1)
    state.update(1)
    own.get_state(OFFSETS).add_all(range(6))
    rescaled = operator.start(operator.checkpoint(subtasks, 1), 3)
    states = operator.checkpoint(rescaled, 2)
    assert len({file.path for state in states for file in decode_operator_state(state.operator).files}) == 1
    target = CheckpointFileSystem.from_uri(operator.harness.file_system.uri)
    target.verify_present(metadata_of(states).files)
    assert operator.contents(operator.start(states, 3)) == ({1: 1}, [[0, 1], [2, 3], [4, 5]])
    operator.harness.close()
