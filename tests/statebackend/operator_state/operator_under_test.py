"""An operator of several subtasks that is started, snapshotted and restored as a runtime would do it."""

import itertools

from checkpointing.handles.state_handles import KeyedStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.api.key_groups import key_group_range_of_subtask
from statebackend.keyed.state_meta import CANONICAL_BACKEND, KeyedStateMeta, encode_meta
from statebackend.operator_state import (
    OperatorStateBackend,
    OperatorStateBackendParameters,
    export_operator_state,
    join_handles,
    restored_operator_state,
    split_handle,
)
from typeserializers import LongSerializer

MAX_PARALLELISM = 16


class OperatorUnderTest:
    """The store of one operator, and handles of its subtasks in which there is no keyed state."""

    def __init__(self, directory):
        self.directory = directory
        self.file_system = CheckpointFileSystem.from_uri(directory / "store")
        self.numbers = itertools.count(1)

    def start(self, handles=(), parallelism=1, source=None):
        """The backends of all subtasks, fresh or restored from the handles of all subtasks."""
        restored = (
            restored_operator_state(handles, source or self.file_system, parallelism)
            if handles
            else (None,) * parallelism
        )
        return [
            OperatorStateBackend(
                OperatorStateBackendParameters(
                    operator_uid="operator-under-test",
                    file_system=self.file_system,
                    file_prefix=f"state/operator-under-test-{index}",
                    restore=one,
                )
            )
            for index, one in enumerate(restored)
        ]

    def keyed_handle(self, index, parallelism, backend="heap"):
        key_groups = key_group_range_of_subtask(index, parallelism, MAX_PARALLELISM)
        meta = encode_meta(KeyedStateMeta(LongSerializer().snapshot_configuration(), 0, ()))
        return KeyedStateHandle(f"state-{next(self.numbers)}", backend, key_groups.start, key_groups.end, meta)

    def snapshot(self, backends):
        """The handles of one checkpoint of all subtasks."""
        number = next(self.numbers)
        return [
            join_handles(self.keyed_handle(index, len(backends)), backend.snapshot(number, f"snapshot-{number}").handle)
            for index, backend in enumerate(backends)
        ]

    def restart(self, backends, parallelism=None):
        """A snapshot of all subtasks, restored at a parallelism."""
        handles = self.snapshot(backends)
        for backend in backends:
            backend.close()
        return self.start(handles, parallelism or len(backends))

    def savepoint(self, handles):
        """The handles of a savepoint, and the store that it is in."""
        target = CheckpointFileSystem.from_uri(self.directory / f"savepoint-{next(self.numbers)}")
        exported = []
        for index, handle in enumerate(handles):
            operator = split_handle(handle)[1]
            copied, _ = export_operator_state(operator, self.file_system, target, "operator", f"part-{index:05d}")
            exported.append(join_handles(self.keyed_handle(index, len(handles), CANONICAL_BACKEND), copied))
        return exported, target
