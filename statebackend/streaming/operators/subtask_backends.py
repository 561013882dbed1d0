"""The state backends of an open subtask: keyed state and, if used, operator state.

The backend of operator state is created with the first registration, or at once if there is restored state. Without
it, the acknowledged digest is that of the keyed snapshot. A snapshot covers both backends. A subtask that stays open
takes it in two parts: a synchronous part, and an asynchronous part that any thread may run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import xxhash
from attrs import frozen

from statebackend.checkpoint.coordinator.acknowledgement import ReportValue
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.state.backend_parameters import KeyedStateSnapshot, KeyedStateSnapshotTask, StateRestoreReport
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.metrics import KeyedStateMetrics
from statebackend.state.operator_state_backend import (
    OperatorStateBackend,
    OperatorStateBackendParameters,
    OperatorStateSnapshotTask,
)
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor
from statebackend.state.operator_state_handles import OperatorStateSnapshot, encode_operator_state
from statebackend.state.operator_state_redistribution import RestoredOperatorState
from statebackend.state.states import State


@frozen
class SubtaskSnapshot:
    """The state of a subtask at a barrier, its digest, and its cost."""

    state: SubtaskState
    digest: str
    entries_written: int
    bytes_written: int


class SubtaskSnapshotTask:
    """The asynchronous part of a snapshot of both backends. `run` may be called once, on any thread."""

    def __init__(self, keyed: KeyedStateSnapshotTask, operator: OperatorStateSnapshotTask | None) -> None:
        self._keyed = keyed
        self._operator = operator
        self.keyed_snapshot: KeyedStateSnapshot | None = None
        """The snapshot of keyed state, after `run`."""

    def run(self) -> SubtaskSnapshot:
        """Write the files durably. If one part fails, the other is discarded."""
        operator = None
        try:
            operator = None if self._operator is None else self._operator.run()
            self.keyed_snapshot = self._keyed.run()
        except BaseException:
            self.cancel()
            if self._operator is not None and operator is not None:
                # The operator part is complete and cannot be cancelled.
                self._operator.remove_written()
            raise
        return _joined(self.keyed_snapshot, operator)

    def cancel(self) -> None:
        """Cancel the parts that are running, and remove the files of complete parts."""
        self._keyed.cancel()
        if self._operator is not None:
            self._operator.cancel()


class SubtaskBackends:
    """The backends of a subtask. The caller owns and closes the keyed backend."""

    def __init__(self, keyed: KeyedStateBackend, restored: RestoredOperatorState | None) -> None:
        self.keyed = keyed
        self._keyed_snapshot: KeyedStateSnapshot | None = None
        self._operator: OperatorStateBackend | None = None
        if restored is not None and restored.states:
            self._operator = self._create(restored)

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> State:
        """Return the operator state of a descriptor. Raises as `OperatorStateBackend.get_state`."""
        if self._operator is None:
            self.keyed.check_open()
            self._operator = self._create(None)
        return self._operator.get_state(descriptor)

    @property
    def operator_state_names(self) -> tuple[str, ...]:
        """The names of all operator states, registered or only restored."""
        return () if self._operator is None else self._operator.state_names()

    def snapshot(self, checkpoint_id: int, state_id: str) -> SubtaskSnapshot:
        """Take a snapshot of both backends. ``state_id`` is unique to this attempt."""
        task = self._operator.prepare_snapshot(checkpoint_id, state_id) if self._operator is not None else None
        operator = None if task is None else task.run()
        try:
            # The keyed snapshot must be last: reused backends are identified by it.
            keyed = self._keyed_snapshot = self.keyed.snapshot(checkpoint_id, state_id)
        except BaseException:
            if task is not None:
                task.remove_written()
            raise
        return _joined(keyed, operator)

    def prepare_snapshot(self, checkpoint_id: int, state_id: str) -> SubtaskSnapshotTask:
        """Freeze both backends: the synchronous part of a snapshot. ``state_id`` is as for `snapshot`."""
        operator = self._operator.prepare_snapshot(checkpoint_id, state_id) if self._operator is not None else None
        return SubtaskSnapshotTask(self.keyed.prepare_snapshot(checkpoint_id, state_id), operator)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is complete, so that later snapshots may refer to its files."""
        if self._operator is not None:
            self._operator.notify_checkpoint_complete(checkpoint_id)

    def metrics_now(self, snapshot: KeyedStateSnapshot | None) -> KeyedStateMetrics:
        """The metrics of keyed state since it was opened, with the cost of the snapshot. Empty if metrics are off."""
        return self.keyed.collect_metrics(snapshot)

    def metrics_report(self) -> Mapping[str, ReportValue]:
        """The metrics of keyed state up to the snapshot, for the acknowledgement. Empty if metrics are off."""
        if self.keyed.parameters.metrics is None:
            return {}
        return self.keyed.collect_metrics(self._keyed_snapshot).to_report()

    @property
    def operator_state_restore_reports(self) -> Sequence[StateRestoreReport]:
        """The restore result of each registered operator state."""
        return () if self._operator is None else self._operator.restore_reports

    def close(self) -> None:
        """Invalidate handles of operator state. Idempotent."""
        if self._operator is not None:
            self._operator.close()

    def _create(self, restored: RestoredOperatorState | None) -> OperatorStateBackend:
        keyed = self.keyed.parameters
        return OperatorStateBackend(
            OperatorStateBackendParameters(
                operator_uid=keyed.operator_uid,
                file_system=keyed.file_system,
                file_prefix=keyed.file_prefix,
                restore=restored,
                progress=keyed.progress,
                rules=keyed.rules,
                conversions=keyed.conversions,
            )
        )


def _joined(keyed: KeyedStateSnapshot, operator: OperatorStateSnapshot | None) -> SubtaskSnapshot:
    part = None if operator is None else encode_operator_state(operator.handle)
    if operator is None or part is None:
        return SubtaskSnapshot(SubtaskState(keyed.handle), keyed.digest, keyed.entries_written, keyed.bytes_written)
    return SubtaskSnapshot(
        SubtaskState(keyed.handle, part),
        xxhash.xxh3_128_hexdigest(f"{keyed.digest} {operator.digest}".encode()),
        keyed.entries_written + operator.entries_written,
        keyed.bytes_written + operator.bytes_written,
    )
