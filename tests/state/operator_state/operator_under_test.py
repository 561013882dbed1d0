"""An operator of several subtasks that is started, snapshotted and restored as in a runtime."""

import itertools

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.state.operator_state_backend import (
    OperatorStateBackend,
    OperatorStateBackendParameters,
    export_operator_state,
)
from statebackend.state.operator_state_handles import encode_operator_state
from statebackend.state.operator_state_redistribution import restored_operator_state


class OperatorUnderTest:
    """The store of one operator, whose subtasks have no keyed state."""

    def __init__(self, directory):
        self.directory = directory
        self.file_system = CheckpointFileSystem.from_uri(directory / "store")
        self.numbers = itertools.count(1)

    def start(self, parts=(), parallelism=1, source=None):
        """The backends of all subtasks, new or restored from the operator parts."""
        restored = (
            restored_operator_state(parts, source or self.file_system, parallelism) if parts else (None,) * parallelism
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

    def snapshot(self, backends):
        """The operator parts of one checkpoint of all subtasks."""
        number = next(self.numbers)
        return [encode_operator_state(backend.snapshot(number, f"snapshot-{number}").handle) for backend in backends]

    def restart(self, backends, parallelism=None):
        """A snapshot of all subtasks, restored with a parallelism."""
        parts = self.snapshot(backends)
        for backend in backends:
            backend.close()
        return self.start(parts, parallelism or len(backends))

    def savepoint(self, parts):
        """The operator parts of a savepoint, and its store."""
        target = CheckpointFileSystem.from_uri(self.directory / f"savepoint-{next(self.numbers)}")
        exported = []
        for index, part in enumerate(parts):
            copied, _ = export_operator_state(part, self.file_system, target, "operator", f"part-{index:05d}")
            exported.append(copied)
        return exported, target
