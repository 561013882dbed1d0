"""What holds the state of one subtask while it is open: the keyed backend, and that of operator state if there is any.

Most operators have no operator state, so its backend is made when the first state is registered, or at once if there
is restored state to carry on. Without one, the digest that is acknowledged is that of the keyed snapshot.

A snapshot is one of both. Who closes the subtask behind it takes it at once; who goes on takes it in two parts, of
which the second, the writing, may be run on any thread.
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
    """What a barrier gives: the state in its parts, a digest of its content, and what it cost."""

    state: SubtaskState
    digest: str
    entries_written: int
    bytes_written: int


class SubtaskSnapshotTask:
    """The asynchronous part of a snapshot of both backends; `run` may be called on any thread, once."""

    def __init__(self, keyed: KeyedStateSnapshotTask, operator: OperatorStateSnapshotTask | None) -> None:
        self._keyed = keyed
        self._operator = operator
        self.keyed_snapshot: KeyedStateSnapshot | None = None
        """That of the keyed state, once it has run."""

    def run(self) -> SubtaskSnapshot:
        """Writes the files; from its return on they are durable. What one part raises takes the other one back."""
        operator = None
        try:
            operator = None if self._operator is None else self._operator.run()
            self.keyed_snapshot = self._keyed.run()
        except BaseException:
            self.cancel()
            if self._operator is not None and operator is not None:
                # It has ended, which nothing cancels.
                self._operator.remove_written()
            raise
        return _joined(self.keyed_snapshot, operator)

    def cancel(self) -> None:
        """Gives up what has not ended; what it has written is removed."""
        self._keyed.cancel()
        if self._operator is not None:
            self._operator.cancel()


class SubtaskBackends:
    """See the module. The keyed backend is lent: who made it closes it."""

    def __init__(self, keyed: KeyedStateBackend, restored: RestoredOperatorState | None) -> None:
        self.keyed = keyed
        self._keyed_snapshot: KeyedStateSnapshot | None = None
        self._operator: OperatorStateBackend | None = None
        if restored is not None and restored.states:
            self._operator = self._create(restored)

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> State:
        """The operator state of a descriptor; raises as `OperatorStateBackend.get_state`."""
        if self._operator is None:
            self.keyed.check_open()
            self._operator = self._create(None)
        return self._operator.get_state(descriptor)

    @property
    def operator_state_names(self) -> tuple[str, ...]:
        """The names of all operator states, registered or only restored."""
        return () if self._operator is None else self._operator.state_names()

    def snapshot(self, checkpoint_id: int, state_id: str) -> SubtaskSnapshot:
        """One snapshot of both; ``state_id`` is unique to this attempt."""
        operator = self._operator.snapshot(checkpoint_id, state_id) if self._operator is not None else None
        # The keyed snapshot is the last act: backends that are kept go by it.
        keyed = self._keyed_snapshot = self.keyed.snapshot(checkpoint_id, state_id)
        return _joined(keyed, operator)

    def prepare_snapshot(self, checkpoint_id: int, state_id: str) -> SubtaskSnapshotTask:
        """The synchronous part of a snapshot of both: freezes them as they are; ``state_id`` as for `snapshot`."""
        operator = self._operator.prepare_snapshot(checkpoint_id, state_id) if self._operator is not None else None
        return SubtaskSnapshotTask(self.keyed.prepare_snapshot(checkpoint_id, state_id), operator)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """From now on operator state may be referred to where that checkpoint has it."""
        if self._operator is not None:
            self._operator.notify_checkpoint_complete(checkpoint_id)

    def metrics_now(self, snapshot: KeyedStateSnapshot | None) -> KeyedStateMetrics:
        """The metrics of keyed state since it was opened, with what a snapshot cost; empty if they are off."""
        return self.keyed.collect_metrics(snapshot)

    def metrics_report(self) -> Mapping[str, ReportValue]:
        """The metrics of keyed state up to the snapshot, as an acknowledgement carries them; empty if they are off."""
        if self.keyed.parameters.metrics is None:
            return {}
        return self.keyed.collect_metrics(self._keyed_snapshot).to_report()

    @property
    def operator_state_restore_reports(self) -> Sequence[StateRestoreReport]:
        """What became of each restored operator state that was registered."""
        return () if self._operator is None else self._operator.restore_reports

    def close(self) -> None:
        """Makes handles of operator state dead; may be called twice."""
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
