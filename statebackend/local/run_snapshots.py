"""What a run does at barriers, and when a checkpoint is complete or fails: a `CheckpointedRun`.

    a barrier at a source       the source acknowledges; where it is in time belongs to the checkpoint
    at a subtask                its state is frozen; it is written, and then acknowledged
    at the end of the network   what came out before belongs to the checkpoint; it is complete: the sinks are given it

What came out before the barrier of a checkpoint that failed goes to the sinks with the next one: subtasks have not gone
back, and its records have their effect in the state of that.

Files of checkpoints that were given up, while the run goes on that wrote them.

A subtask that stays open builds each snapshot upon the files of the one before, whether or not the checkpoint of that
was ever completed. So a file of a checkpoint that failed may be part of the next one, and cannot be deleted when the
checkpoint fails. It can be when a newer checkpoint is complete and nothing else is under way: then what subtasks build
upon is what that checkpoint has, and what it does not have nobody will ask for.

What is not deleted by then is deleted by the next start, which finds files that no checkpoint refers to.

Complete checkpoints that snapshots may still be built upon: they are kept, however few are to be retained.

A subtask builds a snapshot upon files of a checkpoint that it knows to be complete, or of one that is under way. While
that snapshot is on its way, newer checkpoints may complete that do not have those files, and drop the one that has:

    0 is complete, and told        1 was frozen before that: it has written its files again
    2 is frozen                    it refers to files of 0
    1 is complete                  0 is one too many; 2 cannot be completed without its files

So of each checkpoint that is begun is noted what the subtasks were told by then: it refers to nothing older. What
neither any that is under way nor the next one can refer to is dropped as usual.

Invariant: every complete checkpoint from the least id on that a snapshot may refer to is pinned in the store.

What is measured of the checkpoints of a run, and so of its epochs, each of which ends with a complete one.

Who writes the snapshots of a run: the run itself, as one move among others, or a few threads beside it.

Both only write. What follows, the acknowledgement, is an mail of the run, so that subtasks and the coordinator belong
to one thread. A snapshot that nobody waits for any more is given up.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol

from attrs import field, frozen

from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.barriers.elements import AbortReason
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.coordinator.checkpoint_coordinator import CheckpointCoordinator
from statebackend.checkpoint.coordinator.job_checkpoints import JobCheckpoints
from statebackend.checkpoint.coordinator.pending_checkpoint import CheckpointTask, CompletedCheckpoint, TaskStatus
from statebackend.checkpoint.coordinator.requests import (
    CheckpointFailureReason,
    CheckpointLimits,
    CheckpointRequestKind,
    FailurePolicy,
)
from statebackend.checkpoint.fs.retries import monotonic_ms
from statebackend.checkpoint.invariants import MAX_ID, path_segment
from statebackend.checkpoint.metadata import CheckpointMetadata, SavepointIdentity
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.local.channel_state import ChannelStateParts, RecordForms, forms_of_operators, write_channel_state
from statebackend.local.job_network import JobNetwork
from statebackend.local.network.channel import SubtaskId
from statebackend.local.network.channel_barriers import SubtaskCapture
from statebackend.local.network.subtasks import LastBarrier, Mail, OperatorSubtask, OutputSubtask
from statebackend.local.network_watermarks import BarrierTimes
from statebackend.local.operator import LocalOperator
from statebackend.local.run_checkpoints import CheckpointAnswer, RunCheckpoints
from statebackend.local.sinks import SinkRecords, StagedSinks, give_to_sinks
from statebackend.local.split_feed import SplitPositions
from statebackend.local.subtask import CurrentEpoch, LocalSubtask, SnapshotWork
from statebackend.streaming.metrics import CheckpointCost, RunBarriers, SinkMetrics, SubtaskMetrics
from statebackend.streaming.observing.job_recorder import JobRecorder
from statebackend.streaming.runtime.checkpoint_writing import store_checkpoint
from statebackend.streaming.runtime.event_time import EventTime
from statebackend.streaming.runtime.subtask import FrozenSubtask
from statebackend.streaming.runtime.worker_functions import check_broadcast_copies
from statebackend.streaming.time.job_watermarks import watermark_state

__all__ = [
    "AbandonedFiles",
    "CheckpointMetrics",
    "CheckpointSettings",
    "Finished",
    "InlineWriter",
    "PinnedCheckpoints",
    "RunSnapshots",
    "RunSnapshotsParts",
    "SnapshotWriter",
    "ThreadedWriter",
    "Work",
]


class AbandonedFiles:
    """The states that wait until nobody can refer to their files."""

    def __init__(self) -> None:
        self._states: list[SubtaskState] = []

    def add(self, states: Iterable[SubtaskState]) -> None:
        """States of a checkpoint that is given up."""
        self._states += states

    def taken(self, completed_id: int, newest_id: int, *, is_quiet: bool) -> Sequence[SubtaskState]:
        """The states to discard, now that a checkpoint is complete: all, or none as long as more is under way.

        ``newest_id`` is the newest checkpoint that was begun, ``is_quiet`` says that no snapshot waits to be written.
        """
        if not is_quiet or completed_id < newest_id:
            return ()
        return self.all_taken()

    def all_taken(self) -> Sequence[SubtaskState]:
        """All of them, for who knows that no subtask is open."""
        states, self._states = self._states, []
        return states


_NONE = -1


class PinnedCheckpoints:
    """See the module. ``tasks`` are those that build upon what they have written."""

    def __init__(self, store: CompletedCheckpointStore, tasks: Iterable[TaskId]) -> None:
        self._store = store
        self._pins: dict[int, contextlib.ExitStack] = {}
        latest = store.latest()
        if latest is not None:
            self.completed(latest.checkpoint_id)
        self._notified = dict.fromkeys(tasks, _NONE if latest is None else latest.checkpoint_id)
        self._oldest_usable: dict[int, int] = {}

    def triggered(self, checkpoint_id: int) -> None:
        """A checkpoint is begun, of which no snapshot is taken yet."""
        self._oldest_usable[checkpoint_id] = self._oldest_notified

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint is in the store, and has dropped none that is kept."""
        if checkpoint_id not in self._pins:
            pin = self._pins[checkpoint_id] = contextlib.ExitStack()
            pin.enter_context(self._store.pin(checkpoint_id))

    def notified(self, task: TaskId, checkpoint_id: int) -> None:
        """A task knows that a checkpoint is complete."""
        if task in self._notified:
            self._notified[task] = max(self._notified[task], checkpoint_id)

    def release(self, under_way: Collection[int]) -> None:
        """Drops what is too many and nobody can refer to, where these are the checkpoints that are under way."""
        self._oldest_usable = {known: least for known, least in self._oldest_usable.items() if known in under_way}
        least = min((self._oldest_notified, *self._oldest_usable.values()))
        for known in [one for one in self._pins if one < least]:
            self._pins.pop(known).close()

    def close(self) -> None:
        """Drops what is too many: no snapshot is on its way any more. Raises what the store raises, behind the last."""
        with contextlib.ExitStack() as closing:
            for pin in self._pins.values():
                closing.callback(pin.close)
            self._pins = {}

    @property
    def _oldest_notified(self) -> int:
        return min(self._notified.values(), default=MAX_ID)


class CheckpointMetrics:
    """Tells the recorder of what is complete and of what failed.

    What was counted and acknowledged to a checkpoint that failed is of the epoch that the next complete one ends.
    """

    def __init__(self, recorder: JobRecorder) -> None:
        self.barriers = RunBarriers()
        """The barriers of complete checkpoints."""
        self._recorder = recorder
        self._subtasks: dict[TaskId, SubtaskMetrics] = {}
        self._triggered_s: dict[int, float] = {}
        self._ended_s = time.monotonic()

    def triggered(self, checkpoint_id: int, pending: Collection[int]) -> None:
        """A checkpoint is begun while these are under way; others are over."""
        self._triggered_s = {known: triggered_s for known, triggered_s in self._triggered_s.items() if known in pending}
        self._triggered_s[checkpoint_id] = time.monotonic()

    def acknowledged(self, acknowledgement: Acknowledgement) -> None:
        """Add the metrics of a task that acknowledged a checkpoint, whether the checkpoint completes or not."""
        task, metrics = acknowledgement.task, SubtaskMetrics.of(acknowledgement)
        known = self._subtasks.get(task)
        self._subtasks[task] = metrics if known is None else known.followed_by(metrics)

    def completed(
        self, checkpoint_id: int, acknowledgements: Sequence[Acknowledgement], sinks: Mapping[str, SinkMetrics]
    ) -> None:
        """Record the epoch of a complete checkpoint, after its output was given to the sinks."""
        self.barriers.add(acknowledgements)
        now_s, ended_s = time.monotonic(), self._ended_s
        self._ended_s = now_s
        cost = CheckpointCost(
            duration_s=now_s - ended_s, checkpoint_s=now_s - self._triggered_s.pop(checkpoint_id, now_s)
        )
        subtasks, self._subtasks = self._subtasks, {}
        self._recorder.epoch_completed(checkpoint_id, acknowledgements, cost, subtasks=subtasks, sinks=sinks)

    def answered(self, answer: CheckpointAnswer) -> None:
        """A request is over; what is given up at the end of the run has not failed."""
        if answer.failure not in (None, CheckpointFailureReason.SHUTDOWN) and answer.checkpoint_id is not None:
            self._recorder.checkpoint_failed(answer.checkpoint_id, answer.detail)


class Work(Protocol):
    """What is to be written for a checkpoint, and then acknowledged."""

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that it is of."""

    @property
    def task(self) -> TaskId:
        """Whose it is."""

    def write(self) -> None:
        """Writes the files, on any thread."""

    def cancel(self) -> None:
        """Nobody waits for it any more; on any thread."""

    @property
    def left_behind(self) -> Sequence[SubtaskState]:
        """What is durable of it although the rest could not be written."""

    def acknowledgement(self, of_nothing: Callable[[TaskId, int], Acknowledgement]) -> Acknowledgement:
        """What is acknowledged when it is written; ``of_nothing`` makes that of a task without state."""


Finished = Callable[[Work, BaseException | None], None]
"""Is told, on the thread of the run, that a snapshot is written, or what was raised."""


class SnapshotWriter(Protocol):
    """Writes what it is given; belongs to the thread of the run."""

    @property
    def is_writing(self) -> bool:
        """Whether anything is under way outside of the moves of the run."""

    def submit(self, work: Work) -> None:
        """Has a snapshot written."""

    def collect(self, wait_s: float | None = 0.0) -> bool:
        """Makes mails of what was written meanwhile, after a wait if nothing was; returns whether anything was.

        If ``wait_s`` is None it waits until something is.
        """

    def cancel(self, checkpoint_id: int) -> None:
        """Nobody waits for the snapshots of a checkpoint any more."""

    def close(self) -> None:
        """Gives up what is under way, and waits until nothing is."""


class InlineWriter:
    """Writes on the thread of the run, when the scheduler says so."""

    is_writing = False

    def __init__(self, send: Callable[[Mail], None], finished: Finished) -> None:
        self._send = send
        self._finished = finished
        self._under_way: list[Work] = []

    def submit(self, work: Work) -> None:
        self._under_way.append(work)
        self._send(Mail("write", work.checkpoint_id, work.task, lambda: self._write(work)))

    def collect(self, wait_s: float | None = 0.0) -> bool:
        return False

    def cancel(self, checkpoint_id: int) -> None:
        for work in [one for one in self._under_way if one.checkpoint_id == checkpoint_id]:
            self._under_way.remove(work)
            work.cancel()

    def close(self) -> None:
        """Nothing: the backends give up what nobody writes."""

    def _write(self, work: Work) -> None:
        if work not in self._under_way:
            # It was given up.
            return
        self._under_way.remove(work)
        try:
            work.write()
        except Exception as error:
            self._finished(work, error)
            return
        self._finished(work, None)


class ThreadedWriter:
    """Writes on threads of its own; what was written waits to be collected."""

    def __init__(self, send: Callable[[Mail], None], finished: Finished, threads: int = 2) -> None:
        self._send = send
        self._finished = finished
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="statebackend-snapshot")
        self._written: queue.SimpleQueue[tuple[Work, BaseException | None]] = queue.SimpleQueue()
        self._under_way: list[Work] = []

    @property
    def is_writing(self) -> bool:
        return bool(self._under_way)

    def submit(self, work: Work) -> None:
        self._under_way.append(work)
        self._executor.submit(self._write, work)

    def collect(self, wait_s: float | None = 0.0) -> bool:
        if not self._under_way:
            return False
        try:
            work, error = self._written.get(wait_s is None or wait_s > 0, wait_s)
        except queue.Empty:
            return False
        self._under_way.remove(work)
        self._send(Mail("write", work.checkpoint_id, work.task, lambda: self._finished(work, error)))
        return True

    def cancel(self, checkpoint_id: int) -> None:
        for work in self._under_way:
            if work.checkpoint_id == checkpoint_id:
                work.cancel()

    def close(self) -> None:
        for work in self._under_way:
            work.cancel()
        self._executor.shutdown(wait=True)

    def _write(self, work: Work) -> None:
        error: BaseException | None = None
        try:
            work.write()
        except BaseException as raised:
            # Whatever it is, the run has to hear of it: it waits for this thread.
            error = raised
        self._written.put((work, error))


def only_it(mail: Mail) -> Iterable[Mail]:
    """What becomes of an mail where nothing is lost or doubled."""
    return (mail,)


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
    now_ms: Callable[[], int] = monotonic_ms
    wait: Callable[[float], object] = time.sleep
    has_threads: bool = False
    post: Callable[[Mail], Iterable[Mail]] = only_it


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
        self.metrics = CheckpointMetrics(parts.recorder)
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
        self._abandoned = AbandonedFiles()
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
        self._pinned = PinnedCheckpoints(parts.store, [*self._subtasks, *positions])
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
        """Makes mails of what threads have written; waits for so long if nothing was, and for any if that is None."""
        self._writer.collect(wait_s)

    def close(self) -> None:
        """Gives up what is under way; no checkpoint is begun any more."""
        with contextlib.suppress(Exception):
            self._checkpoints.shut_down()
        self._writer.close()
        # What could not be dropped is by a later run.
        with contextlib.suppress(Exception):
            self._pinned.close()

    def discard_abandoned(self) -> None:
        """Deletes what was acknowledged and is part of no checkpoint; to be called when no subtask is open."""
        # What goes wrong here is put right by the next start.
        with contextlib.suppress(Exception):
            self._parts.store.discard(self._abandoned.all_taken())

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
        self._pinned.triggered(self.last_id)
        self.metrics.triggered(self.last_id, self._checkpoints.coordinator.pending_ids)
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
        event_time = self._parts.event_time
        watermarks = None
        if event_time is not None:
            times = self._times[completed.checkpoint_id]
            names = event_time.nodes or event_time.source_names
            watermarks = watermark_state(names, times.channels(), times.nodes())
        self.newest = store_checkpoint(
            self._parts.store,
            self._parts.directory.identity,
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
        self._pinned.completed(completed.checkpoint_id)

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Gives the sinks what came out before its barrier, unless another run leads the job now, which has done it."""
        self.completed_count += 1
        self._epoch.epoch_id = max(self._epoch.epoch_id, checkpoint_id + 1)
        acknowledgements = self._acknowledgements.get(checkpoint_id, ())
        self._forget(checkpoint_id)
        self._release()
        states = self._abandoned.taken(checkpoint_id, self.last_id, is_quiet=self._is_quiet)
        if states:
            self._parts.store.discard(states, frozenset())
        self._parts.directory.leadership.check()
        with contextlib.ExitStack() as stack:
            # What a plain sink raises keeps no other from what is its own.
            stack.callback(give_to_sinks, self._output.taken(checkpoint_id))
            self._parts.staged.commit(checkpoint_id)
        self.metrics.completed(checkpoint_id, acknowledgements, self._output.sink_metrics(checkpoint_id))

    def checkpoint_failed(self, checkpoint_id: int) -> None:
        """Nobody waits for what is being written for it."""
        self._writer.cancel(checkpoint_id)
        self._forget(checkpoint_id)
        self._release()

    def answered(self, answer: CheckpointAnswer) -> None:
        """Notes what became of a request."""
        self.metrics.answered(answer)

    def notify_complete(self, task: TaskId, checkpoint_id: int) -> None:
        """Tells a subtask or a source; the end of the network has its records given already."""
        if task.operator_uid in self._parts.positions:
            self._parts.positions[task.operator_uid].notify_checkpoint_complete(checkpoint_id)
        if task in self._subtasks:
            self._subtasks[task].notify_checkpoint_complete(checkpoint_id)
        self._pinned.notified(task, checkpoint_id)
        self._release()

    def notify_aborted(self, task: TaskId, checkpoint_id: int) -> None:
        """Lets a subtask give up what it has frozen; what is being written is given up for all at once."""
        if task in self._subtasks:
            self._subtasks[task].cancel_snapshot(checkpoint_id)

    def discard_states(self, states: Sequence[SubtaskState]) -> None:
        """Keeps them in mind: what subtasks write next may build upon them."""
        self._abandoned.add(states)

    @property
    def _is_quiet(self) -> bool:
        return not self._writer.is_writing and not any(one.name == "write" for one in self._network.mails)

    def _send(self, mail: Mail) -> None:
        # Storing is no message, and what is written is known to be.
        for one in (mail,) if mail.task is None or mail.name == "write" else self._parts.settings.post(mail):
            self._network.send(one)

    def _channel_writer(self, subtask: LocalSubtask, capture: SubtaskCapture) -> Callable[[], ChannelStateParts]:
        if not self._parts.settings.mode.may_be_unaligned:
            return ChannelStateParts
        directory, name = self._parts.directory, SubtaskId(subtask.operator.uid, subtask.index)
        # The run is in the name: an id is given again where a run before gave it to a checkpoint that failed.
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
            self._abandoned.add(work.left_behind)
            reason = CheckpointFailureReason.ASYNCHRONOUS_PART_FAILED
            self._checkpoints.decline(work.checkpoint_id, work.task, reason, str(error), error)
            return
        acknowledgement = work.acknowledgement(self._nothing_of)
        self._acknowledgements.setdefault(work.checkpoint_id, []).append(acknowledgement)
        self.metrics.acknowledged(acknowledgement)
        self._checkpoints.acknowledge(acknowledgement)

    def _times_of(self, checkpoint_id: int) -> BarrierTimes:
        source_order = [one.subtask_id for one in self._sources.values()]
        return self._times.setdefault(checkpoint_id, BarrierTimes(source_order))

    def _release(self) -> None:
        self._pinned.release(self._checkpoints.coordinator.pending_ids)

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
