"""What a run does at barriers, and when a checkpoint is complete or fails: a `CheckpointedRun`.

    a barrier at a source       the source acknowledges; where it is in time belongs to the checkpoint
    at a subtask                its state is frozen; it is written, and then acknowledged
    at the end of the network   what came out before belongs to the checkpoint; it is complete: the sinks are given it

What came out before the barrier of a checkpoint that failed goes to the sinks with the next one: subtasks have not gone
back, and its records have their effect in the state of that.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import field, frozen

from checkpointing.barriers.barrier_elements import AbortReason
from checkpointing.barriers.checkpointing_mode import CheckpointingMode
from checkpointing.coordinator.acknowledgement import Acknowledgement, TaskId
from checkpointing.coordinator.acknowledgement_policy import CheckpointTask, TaskStatus
from checkpointing.coordinator.checkpoint_coordinator import CheckpointCoordinator
from checkpointing.coordinator.checkpoint_failures import CheckpointFailureReason
from checkpointing.coordinator.checkpoint_requests import CheckpointLimits, CheckpointRequestKind
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.job_checkpoints import JobCheckpoints
from checkpointing.coordinator.pending_checkpoint import CompletedCheckpoint
from checkpointing.handles.relative_path import path_segment
from checkpointing.handles.state_handles import SubtaskState
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.metadata.checkpoint_sections import SavepointIdentity
from checkpointing.storage.completed_checkpoint_store import CompletedCheckpointStore
from checkpointing.storage.job_directory import JobDirectory
from checkpointing.storage.steady_clock import steady_ms
from streamjobs.inprocess.channel_state.channel_state_parts import ChannelStateParts, write_channel_state
from streamjobs.inprocess.channel_state.record_forms import RecordForms, forms_of_operators
from streamjobs.inprocess.checkpoint_measures import CheckpointMeasures
from streamjobs.inprocess.given_up_files import GivenUpFiles
from streamjobs.inprocess.job_network import JobNetwork
from streamjobs.inprocess.kept_checkpoints import KeptCheckpoints
from streamjobs.inprocess.local_operator import LocalOperator
from streamjobs.inprocess.local_subtask import CurrentEpoch, LocalSubtask, SnapshotWork
from streamjobs.inprocess.network.elements import SubtaskId
from streamjobs.inprocess.network.errands import Errand
from streamjobs.inprocess.network.operator_subtask import OperatorSubtask
from streamjobs.inprocess.network.output_subtask import OutputSubtask
from streamjobs.inprocess.network.source_subtask import LastBarrier
from streamjobs.inprocess.network.subtask_capture import SubtaskCapture
from streamjobs.inprocess.network_watermarks import BarrierTimes
from streamjobs.inprocess.record_sinks import SinkRecords, give_to_sinks
from streamjobs.inprocess.run_checkpoints import CheckpointAnswer, RunCheckpoints
from streamjobs.inprocess.snapshot_writers import InlineWriter, SnapshotWriter, ThreadedWriter, Work
from streamjobs.inprocess.split_feed import SplitPositions
from streamjobs.inprocess.staged_sinks import StagedSinks
from streamjobs.observing.job_recorder import JobRecorder
from streamjobs.runtime.broadcast_copies import check_broadcast_copies
from streamjobs.runtime.checkpoint_writing import store_checkpoint
from streamjobs.runtime.epoch_events import Epoch
from streamjobs.runtime.event_time import EventTime
from streamjobs.runtime.opened_subtask import FrozenSubtask
from streamjobs.time.job_watermarks import watermark_state

__all__ = ["CheckpointSettings", "RunSnapshots", "RunSnapshotsParts"]


def only_it(errand: Errand) -> Iterable[Errand]:
    """What becomes of an errand where nothing is lost or doubled."""
    return (errand,)


@frozen(kw_only=True)
class CheckpointSettings:
    """How a run takes its checkpoints.

    ``mode`` says how barriers travel. ``interval_ms`` is None for a run that takes them only when it is asked to.
    ``timeout_ms`` is how long one may take; None is no limit. ``tolerable_failures`` in a row are endured. ``now_ms``
    is the clock of timers, apart from that of the job, and ``wait`` waits for so many seconds of it.
    ``has_threads`` lets snapshots be written beside the run; ``post`` says what becomes of messages: as a rule of each
    it alone, nothing if it is lost, several if it is doubled.
    """

    mode: CheckpointingMode = CheckpointingMode.ALIGNED
    interval_ms: int | None = None
    timeout_ms: int | None = None
    limits: CheckpointLimits = field(factory=CheckpointLimits)
    tolerable_failures: int = 0
    now_ms: Callable[[], int] = steady_ms
    wait: Callable[[float], object] = time.sleep
    has_threads: bool = False
    post: Callable[[Errand], Iterable[Errand]] = only_it


@frozen(kw_only=True)
class RunSnapshotsParts:
    """What checkpoints of a run are made of. ``restored_id`` is that of what it began from."""

    directory: JobDirectory
    store: CompletedCheckpointStore
    settings: CheckpointSettings
    operators: Mapping[str, LocalOperator]
    event_time: EventTime | None
    restored_id: int | None
    restored_from: SavepointIdentity | None
    staged: StagedSinks
    positions: Mapping[str, SplitPositions]
    recorder: JobRecorder


class RunSnapshots:
    """See the module; `begin` comes first, with the network of the run."""

    def __init__(self, parts: RunSnapshotsParts, output: SinkRecords, epoch: CurrentEpoch) -> None:
        self.last_id = -1 if parts.restored_id is None else parts.restored_id
        """The newest checkpoint that was begun, or that the run goes on from."""
        self.completed_count = 0
        """How many checkpoints were complete, or would have been if anything had state."""
        self.newest: CheckpointMetadata | None = None
        """The newest checkpoint that the run has stored."""
        self.measures = CheckpointMeasures(parts.recorder)
        """What is measured of its checkpoints."""
        self.forms: RecordForms = {}
        """In which form records are written that barriers overtake; none where nothing is overtaken."""
        if parts.settings.mode.may_be_unaligned:
            self.forms = forms_of_operators({uid: one.row_schemas for uid, one in parts.operators.items()})
        self._parts = parts
        self._output = output
        self._epoch = epoch
        self._acknowledgements: dict[int, list[Acknowledgement]] = {}
        self._without_state: dict[int, set[str]] = {}
        self._times: dict[int, BarrierTimes] = {}
        self._triggered: dict[TaskId, set[int]] = {}
        self._given_up = GivenUpFiles()
        writer = ThreadedWriter if parts.settings.has_threads else InlineWriter
        self._writer: SnapshotWriter = writer(self._send, self._written)

    def begin(self, job_network: JobNetwork) -> RunCheckpoints:
        """Knows the network from here on; returns what is asked for checkpoints."""
        network = self._network = job_network.network
        self._sources = {one.subtask_id.node: one for one in network.sources}
        self._subtasks = {one.task: one for one in job_network.subtasks}
        readers: list[OperatorSubtask | OutputSubtask] = [*network.operators, network.output]
        self._tasks = [
            *(CheckpointTask(_task(one.subtask_id), TaskStatus.RUNNING) for one in network.sources),
            *(
                CheckpointTask(
                    _task(one.subtask_id),
                    TaskStatus.RUNNING,
                    frozenset(_task(channel.sender) for channel in one.channels),
                )
                for one in readers
            ),
        ]
        parts, settings = self._parts, self._parts.settings
        positions = (_task(one.subtask_id) for one in network.sources if one.subtask_id.node in parts.positions)
        self._kept = KeptCheckpoints(parts.store, [*self._subtasks, *positions])
        identity, latest = parts.directory.identity, parts.store.latest()
        coordinator = CheckpointCoordinator(
            identity.job_id,
            parts.directory.run_id,
            settings.timeout_ms,
            max_parallelism=identity.max_parallelism,
            operator_names={uid: operator.node.name for uid, operator in parts.operators.items()},
            last_checkpoint_id=latest.checkpoint_id if latest is not None else None,
            max_concurrent_checkpoints=None,
        )
        checkpoints = JobCheckpoints(
            coordinator,
            limits=settings.limits,
            failures=FailurePolicy(settings.tolerable_failures),
            are_checkpoints_unaligned=settings.mode.may_be_unaligned,
            last_completed_id=parts.restored_id,
        )
        self._checkpoints = RunCheckpoints(
            checkpoints,
            self,
            identity=(identity.job_id, parts.directory.run_id),
            now_ms=settings.now_ms,
            send=self._send,
        )
        return self._checkpoints

    @property
    def is_writing(self) -> bool:
        """Whether threads write anything."""
        return self._writer.is_writing

    def collect(self, wait_s: float | None = 0.0) -> None:
        """Makes errands of what threads have written; waits for so long if nothing was, and for any if that is None."""
        self._writer.collect(wait_s)

    def close(self) -> None:
        """Gives up what is under way; no checkpoint is begun any more."""
        with contextlib.suppress(Exception):
            self._checkpoints.shut_down()
        self._writer.close()
        # What could not be dropped is by a later run.
        with contextlib.suppress(Exception):
            self._kept.close()

    def discard_given_up(self) -> None:
        """Deletes what was acknowledged and is part of no checkpoint; to be called when no subtask is open."""
        # What goes wrong here is put right by the next start.
        with contextlib.suppress(Exception):
            self._parts.store.discard(self._given_up.all_taken())

    def barrier_at_operator(self, subtask: LocalSubtask, capture: SubtaskCapture, frozen: FrozenSubtask | None) -> None:
        """Barriers have come to a subtask, whose snapshot is to be written; it has none without state."""
        checkpoint_id = capture.checkpoint_id
        self._times_of(checkpoint_id).note_operator(SubtaskId(subtask.operator.uid, subtask.index), capture.time)
        without_state = self._without_state.setdefault(checkpoint_id, set())
        if frozen is None and subtask.holds_back_records:
            reason = "records wait for the types of its keys, which no record has told yet"
            self._decline(checkpoint_id, subtask.task, reason)
        elif frozen is not None and subtask.operator.uid in without_state:
            frozen.cancel()
            self._decline(checkpoint_id, subtask.task, "the types of its keys became known behind the first barrier")
        else:
            if frozen is None:
                without_state.add(subtask.operator.uid)
            self._writer.submit(SnapshotWork(subtask, capture, frozen, self._channel_writer(subtask, capture)))

    def aborted_at_operator(self, subtask: LocalSubtask, checkpoint_id: int, reason: AbortReason) -> None:
        """Barriers give a checkpoint up at a subtask."""
        self._checkpoints.decline(checkpoint_id, subtask.task, _DECLINED[reason], reason.value)

    def aborted_at_the_end(self, subtask_id: SubtaskId, checkpoint_id: int, reason: AbortReason) -> None:
        """Barriers give a checkpoint up at the end of the network."""
        self._checkpoints.decline(checkpoint_id, _task(subtask_id), _DECLINED[reason], reason.value)

    def barrier_at_source(self, subtask_id: SubtaskId, checkpoint_id: int) -> None:
        """A source sends a barrier."""
        self._times_of(checkpoint_id).note_source(self._sources[subtask_id.node])
        task, positions = _task(subtask_id), self._parts.positions.get(subtask_id.node)
        if positions is None:
            self._acknowledge_nothing(task, checkpoint_id)
        else:
            self._writer.submit(positions.freeze(checkpoint_id, task, self._nothing_of(task, checkpoint_id)))

    def barrier_at_the_end(self, subtask_id: SubtaskId, checkpoint_id: int) -> None:
        """A barrier has come to the end of the network."""
        self._output.cut(checkpoint_id)
        self._acknowledge_nothing(_task(subtask_id), checkpoint_id)

    def checkpoint_tasks(self) -> Collection[CheckpointTask]:
        """All tasks: sources, the subtasks of operators, and the end of the network, where sinks are."""
        return self._tasks

    def next_checkpoint_id(self) -> int:
        """An id greater than all before, and than that of a savepoint that the run began from."""
        self.last_id = max(self.last_id + 1, self._parts.store.next_checkpoint_id())
        self._kept.begun(self.last_id)
        self.measures.begun(self.last_id, self._checkpoints.coordinator.pending_ids)
        return self.last_id

    def trigger(self, task: TaskId, checkpoint_id: int, kind: CheckpointRequestKind) -> None:
        """Lets a source send a barrier before it reads on; it declines one that comes behind a newer one."""
        settings = self._parts.settings
        pending = self._checkpoints.coordinator.pending_ids
        sent = self._triggered[task] = {one for one in self._triggered.get(task, ()) if one in pending}
        if checkpoint_id not in sent and any(one > checkpoint_id for one in sent):
            self._checkpoints.decline(checkpoint_id, task, _DECLINED[AbortReason.SUBSUMED], AbortReason.SUBSUMED.value)
            return
        sent.add(checkpoint_id)
        self._sources[task.operator_uid].trigger(
            settings.mode.barrier(checkpoint_id, settings.now_ms(), is_savepoint=kind.is_savepoint), _LAST.get(kind)
        )

    def store_checkpoint(self, completed: CompletedCheckpoint, kind: CheckpointRequestKind) -> None:
        """Stores a checkpoint, unless nothing has state: then there is nothing to go on from."""
        check_broadcast_copies(completed)
        newest = self._parts.store.latest()
        if newest is not None and newest.checkpoint_id > completed.checkpoint_id:
            # What was asked for as a savepoint ends nothing older, and may be there first: it has all of this.
            return
        operators = tuple(one for one in completed.operators if any(state != _NOTHING for state in one.subtasks))
        committables = self._parts.staged.committables(completed.checkpoint_id)
        if not operators and not committables:
            return
        epoch = Epoch(completed.checkpoint_id, completed.checkpoint_id, b"")
        event_time = self._parts.event_time
        watermarks = None
        if event_time is not None:
            times = self._times[completed.checkpoint_id]
            names = event_time.nodes or event_time.source_names
            watermarks = watermark_state(names, times.channels(), times.nodes())
        self.newest = store_checkpoint(
            self._parts.store,
            self._parts.directory.identity,
            epoch,
            CompletedCheckpoint(
                checkpoint_id=completed.checkpoint_id,
                operators=operators,
                channel_timestamps=completed.channel_timestamps,
                timers_due=completed.timers_due,
            ),
            processing_time_ms=self._epoch.processing_time_ms,
            restored_from=self._parts.restored_from,
            sink_committables=committables,
            sink_identities=self._parts.staged.identities(committables),
            watermarks=watermarks,
        )
        self._kept.completed(completed.checkpoint_id)

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Gives the sinks what came out before its barrier, unless another run leads the job now, which has done it."""
        self.completed_count += 1
        self._epoch.epoch_id = max(self._epoch.epoch_id, checkpoint_id + 1)
        acknowledgements = self._acknowledgements.get(checkpoint_id, ())
        self._forget(checkpoint_id)
        self._release()
        states = self._given_up.taken(checkpoint_id, self.last_id, is_quiet=self._is_quiet)
        if states:
            self._parts.store.discard(states, frozenset())
        self._parts.directory.leadership.check()
        with contextlib.ExitStack() as stack:
            # What a plain sink raises keeps no other from what is its own.
            stack.callback(give_to_sinks, self._output.taken(checkpoint_id))
            self._parts.staged.commit(checkpoint_id)
        self.measures.completed(checkpoint_id, acknowledgements)

    def checkpoint_failed(self, checkpoint_id: int) -> None:
        """Nobody waits for what is being written for it."""
        self._writer.cancel(checkpoint_id)
        self._forget(checkpoint_id)
        self._release()

    def answered(self, answer: CheckpointAnswer) -> None:
        """Notes what became of a request."""
        self.measures.answered(answer)

    def notify_complete(self, task: TaskId, checkpoint_id: int) -> None:
        """Tells a subtask or a source; the end of the network has its records given already."""
        if task.operator_uid in self._parts.positions:
            self._parts.positions[task.operator_uid].notify_checkpoint_complete(checkpoint_id)
        if task in self._subtasks:
            self._subtasks[task].notify_checkpoint_complete(checkpoint_id)
        self._kept.told(task, checkpoint_id)
        self._release()

    def notify_aborted(self, task: TaskId, checkpoint_id: int) -> None:
        """Lets a subtask give up what it has frozen; what is being written is given up for all at once."""
        if task in self._subtasks:
            self._subtasks[task].cancel_snapshot(checkpoint_id)

    def discard_states(self, states: Sequence[SubtaskState]) -> None:
        """Keeps them in mind: what subtasks write next may build upon them."""
        self._given_up.add(states)

    @property
    def _is_quiet(self) -> bool:
        return not self._writer.is_writing and not any(one.name == "write" for one in self._network.errands)

    def _send(self, errand: Errand) -> None:
        # Storing is no message, and what is written is known to be.
        for one in (errand,) if errand.task is None or errand.name == "write" else self._parts.settings.post(errand):
            self._network.send(one)

    def _channel_writer(self, subtask: LocalSubtask, capture: SubtaskCapture) -> Callable[[], ChannelStateParts]:
        if not self._parts.settings.mode.may_be_unaligned:
            return ChannelStateParts
        directory, name = self._parts.directory, SubtaskId(subtask.operator.uid, subtask.index)
        # The run is in the name: an id is given anew where a run before gave it to a checkpoint that failed.
        prefix = f"shared/{path_segment(name.node)}/{name.index:05d}-{directory.run_id}"
        return partial(write_channel_state, capture, name, self.forms, directory.file_system, prefix)

    def _acknowledge_nothing(self, task: TaskId, checkpoint_id: int) -> None:
        self._checkpoints.acknowledge(self._nothing_of(task, checkpoint_id))

    def _nothing_of(self, task: TaskId, checkpoint_id: int) -> Acknowledgement:
        directory = self._parts.directory
        return Acknowledgement(
            job_id=directory.identity.job_id,
            run_id=directory.run_id,
            checkpoint_id=checkpoint_id,
            operator_uid=task.operator_uid,
            subtask_index=task.subtask_index,
            attempt_id="0",
            digest=_DIGEST_OF_NOTHING,
            state=_NOTHING,
        )

    def _decline(self, checkpoint_id: int, task: TaskId, detail: str) -> None:
        self._checkpoints.decline(checkpoint_id, task, CheckpointFailureReason.DECLINED_NOT_READY, detail)

    def _written(self, work: Work, error: BaseException | None) -> None:
        if error is not None:
            self._given_up.add(work.left_behind)
            reason = CheckpointFailureReason.ASYNCHRONOUS_PART_FAILED
            self._checkpoints.decline(work.checkpoint_id, work.task, reason, str(error), error)
            return
        acknowledgement = work.acknowledgement(self._nothing_of)
        self._acknowledgements.setdefault(work.checkpoint_id, []).append(acknowledgement)
        self.measures.acknowledged(acknowledgement)
        self._checkpoints.acknowledge(acknowledgement)

    def _times_of(self, checkpoint_id: int) -> BarrierTimes:
        source_order = [one.subtask_id for one in self._sources.values()]
        return self._times.setdefault(checkpoint_id, BarrierTimes(source_order))

    def _release(self) -> None:
        self._kept.release(self._checkpoints.coordinator.pending_ids)

    def _forget(self, checkpoint_id: int) -> None:
        pending = self._checkpoints.coordinator.pending_ids
        kept_by_id: tuple[dict[int, Any], ...] = (self._acknowledgements, self._without_state, self._times)
        for kept in kept_by_id:
            for known in [one for one in kept if one <= checkpoint_id and one not in pending]:
                del kept[known]


def _task(subtask_id: SubtaskId) -> TaskId:
    return TaskId(subtask_id.node, subtask_id.index)


_DECLINED: Final[Mapping[AbortReason, CheckpointFailureReason]] = {
    AbortReason.CANCELLED: CheckpointFailureReason.DECLINED_BY_CANCELLATION,
    AbortReason.SUBSUMED: CheckpointFailureReason.DECLINED_SUBSUMED,
    AbortReason.END_OF_CHANNEL: CheckpointFailureReason.DECLINED_END_OF_INPUT,
    AbortReason.TOO_MANY_PENDING: CheckpointFailureReason.DECLINED_SUBSUMED,
}

_LAST: Final[Mapping[CheckpointRequestKind, LastBarrier]] = {
    CheckpointRequestKind.STOP_WITH_SAVEPOINT: LastBarrier.SUSPENDED,
    CheckpointRequestKind.DRAIN_WITH_SAVEPOINT: LastBarrier.DRAINED,
}

_NOTHING: Final = SubtaskState()
"""What a task acknowledges that has no state."""

_DIGEST_OF_NOTHING: Final = "0" * 32
