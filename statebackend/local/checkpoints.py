"""The checkpoints of a run. The coordinator decides; this module carries its actions out on the network.

A message to or from a task, the writing of a snapshot and the storing of a checkpoint are *mails* of the network: each
is one move, which the scheduler orders among all others. So messages may be late or overtake each other;
`CheckpointSettings.post` may also lose or duplicate them.

    barrier at a source      the source acknowledges; its event time and positions belong to the checkpoint
    barrier at a subtask     the frozen state is written, then acknowledged
    barrier at the output    the results so far belong to the checkpoint; the sinks get them when it is complete

The results before the barrier of a failed checkpoint go to the sinks with the next one, because subtasks have not
rolled back and the next state contains their effect.

A subtask builds each snapshot upon the files of the one before, whether or not its checkpoint completed. Two rules
follow:

* *Abandoned files*: a file of a failed checkpoint may be part of the next one. It is deleted when a newer checkpoint is
  complete and no snapshot is in progress. The next start deletes the rest, as files that no checkpoint refers to.
* *Pinned checkpoints*: a snapshot may refer to files of an older complete checkpoint, which stays in the store
  (`PinnedCheckpoints`).

Snapshots are written by the run itself, as moves, or by threads. In either case the acknowledgement is a mail, so that
subtasks and the coordinator belong to one thread.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from attrs import define, evolve, field, frozen

from statebackend.checkpoint.barriers.elements import AbortReason
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.coordinator.checkpoint_coordinator import CheckpointCoordinator
from statebackend.checkpoint.coordinator.job_checkpoints import JobCheckpoints
from statebackend.checkpoint.coordinator.messages import (
    Acknowledged,
    AnswerRequest,
    AssignId,
    CheckpointFailed,
    CheckpointNumbered,
    CheckpointProgressed,
    CheckpointRequested,
    CoordinatorEvent,
    Declined,
    DiscardStates,
    FailJob,
    InitializeLocation,
    NotifyAborted,
    NotifyComplete,
    PeriodicTimerFired,
    RemoveLocation,
    RunMasterHooks,
    SchedulerStarted,
    SchedulerStopped,
    Shutdown,
    SnapshotOperatorCoordinators,
    StartPeriodicTimer,
    StartTimeout,
    StopPeriodicTimer,
    StopTimeout,
    StoreCheckpoint,
    TasksChanged,
    TimedOut,
    TriggerTasks,
)
from statebackend.checkpoint.coordinator.pending_checkpoint import CheckpointTask, CompletedCheckpoint, TaskStatus
from statebackend.checkpoint.coordinator.requests import CheckpointFailureReason, CheckpointRequestKind, FailurePolicy
from statebackend.checkpoint.invariants import path_segment
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.checkpoint.store.completed_checkpoint_store import PinnedCheckpoints
from statebackend.local.channel_state import RecordForms, forms_of_operators, write_channel_state
from statebackend.local.job_parts import LocalJobParts
from statebackend.local.network.channel_barriers import SubtaskCapture
from statebackend.local.network.network import Network
from statebackend.local.network.subtasks import LastBarrier, Mail
from statebackend.local.network_watermarks import BarrierTimes
from statebackend.local.sinks import LocalSinks
from statebackend.local.source import SplitPositions
from statebackend.local.subtask import LocalSubtask
from statebackend.state.operator_state_handles import encode_operator_state
from statebackend.streaming.errors import StreamJobError
from statebackend.streaming.metrics import (
    CheckpointCost,
    RunBarriers,
    SinkMetrics,
    SubtaskBarriers,
    SubtaskMetrics,
)
from statebackend.streaming.observing.job_recorder import JobRecorder
from statebackend.streaming.runtime.checkpoint_writing import store_checkpoint
from statebackend.streaming.runtime.subtask import FrozenSubtask
from statebackend.streaming.runtime.worker_functions import check_broadcast_copies
from statebackend.streaming.sink import SinkEpoch, SinkLineage
from statebackend.streaming.time.job_watermarks import watermark_state


class CheckpointFailedError(StreamJobError):
    """A requested checkpoint failed, or more checkpoints failed than the job tolerates."""


@frozen
class CheckpointAnswer:
    """The result of a request: ``failure`` is None if its checkpoint is complete."""

    checkpoint_id: int | None
    failure: CheckpointFailureReason | None = None
    detail: str = ""
    error: BaseException | None = field(default=None, eq=False)
    """The exception that made it fail, if any."""


class CheckpointMetrics:
    """Reports complete checkpoints to the recorder.

    What tasks counted up to a failed checkpoint belongs to the epoch that the next complete one ends.
    """

    def __init__(self, recorder: JobRecorder) -> None:
        self.barriers = RunBarriers()
        """The barriers of complete checkpoints."""
        self._recorder = recorder
        self._subtasks: dict[TaskId, SubtaskMetrics] = {}
        self._triggered_s: dict[int, float] = {}
        self._ended_s = time.monotonic()

    def triggered(self, checkpoint_id: int, pending: Collection[int]) -> None:
        """A checkpoint is triggered while these are pending."""
        self._triggered_s = {known: triggered_s for known, triggered_s in self._triggered_s.items() if known in pending}
        self._triggered_s[checkpoint_id] = time.monotonic()

    def acknowledged(self, acknowledgement: Acknowledgement) -> None:
        """Add the metrics of a task that acknowledged a checkpoint, which may still fail."""
        task, metrics = acknowledgement.task, SubtaskMetrics.of(acknowledgement)
        known = self._subtasks.get(task)
        self._subtasks[task] = metrics if known is None else known.followed_by(metrics)

    def completed(
        self, checkpoint_id: int, acknowledgements: Sequence[Acknowledgement], sinks: Mapping[str, SinkMetrics]
    ) -> None:
        """Record the epoch of a complete checkpoint, after the sinks have its output."""
        self.barriers.add(acknowledgements)
        now_s, ended_s = time.monotonic(), self._ended_s
        self._ended_s = now_s
        cost = CheckpointCost(
            duration_s=now_s - ended_s, checkpoint_s=now_s - self._triggered_s.pop(checkpoint_id, now_s)
        )
        subtasks, self._subtasks = self._subtasks, {}
        self._recorder.epoch_completed(checkpoint_id, acknowledgements, cost, subtasks=subtasks, sinks=sinks)


@define(eq=False)
class SnapshotWork:
    """A snapshot of a task. Any thread may write or cancel it; the thread of the run acknowledges it afterwards."""

    checkpoint_id: int
    task: TaskId
    write: Callable[[], None]
    """Writes the files; after the return they are durable."""
    cancel: Callable[[], object]
    acknowledgement: Callable[[], Acknowledgement]
    written_state: Callable[[], Sequence[SubtaskState]] = tuple
    """The durable part of a snapshot that could not be written whole."""


Finished = Callable[[SnapshotWork, BaseException | None], None]
"""Is called on the thread of the run when a snapshot is written, or with the exception."""


class SnapshotWriter:
    """Writes snapshots as moves of the run, or on ``threads``. `collect` takes what threads have written."""

    def __init__(self, send: Callable[[Mail], None], finished: Finished, threads: int = 0) -> None:
        self._send = send
        self._finished = finished
        self._in_progress: list[SnapshotWork] = []
        self._written: queue.SimpleQueue[tuple[SnapshotWork, BaseException | None]] = queue.SimpleQueue()
        self._executor: ThreadPoolExecutor | None = None
        if threads:
            self._executor = ThreadPoolExecutor(threads, thread_name_prefix="statebackend-snapshot")

    @property
    def is_writing(self) -> bool:
        """Whether threads write anything."""
        return self._executor is not None and bool(self._in_progress)

    def submit(self, work: SnapshotWork) -> None:
        """Write a snapshot."""
        self._in_progress.append(work)
        if self._executor is None:
            self._send(Mail("write", work.checkpoint_id, work.task, lambda: self._write(work)))
        else:
            self._executor.submit(self._write_on_thread, work)

    def collect(self, wait_s: float | None = 0.0) -> None:
        """Wait for a snapshot that a thread writes (None: without limit), and make a mail of it."""
        if not self.is_writing:
            return
        with contextlib.suppress(queue.Empty):
            work, error = self._written.get(wait_s is None or wait_s > 0, wait_s)
            self._in_progress.remove(work)
            self._send(Mail("write", work.checkpoint_id, work.task, lambda: self._finished(work, error)))

    def cancel(self, checkpoint_id: int) -> None:
        """Cancel the snapshots of a checkpoint."""
        for work in [one for one in self._in_progress if one.checkpoint_id == checkpoint_id]:
            if self._executor is None:
                self._in_progress.remove(work)
            work.cancel()

    def close(self) -> None:
        """Cancel what threads write, and wait for it. The backends cancel what was not started."""
        if self._executor is not None:
            for work in self._in_progress:
                work.cancel()
            self._executor.shutdown(wait=True)

    def _write(self, work: SnapshotWork) -> None:
        if work not in self._in_progress:
            return
        self._in_progress.remove(work)
        try:
            work.write()
        except Exception as error:
            self._finished(work, error)
        else:
            self._finished(work, None)

    def _write_on_thread(self, work: SnapshotWork) -> None:
        error: BaseException | None = None
        try:
            work.write()
        except BaseException as raised:
            # The run waits for this thread, so it must get any exception.
            error = raised
        self._written.put((work, error))


class RunCheckpoints:
    """The checkpoints of a run, by the clock and on request. `begin` comes first.

    Times are milliseconds of the clock of `CheckpointSettings`. Timers fire in `fire_due`.
    """

    def __init__(self, parts: LocalJobParts, sinks: LocalSinks, positions: Mapping[str, SplitPositions]) -> None:
        identity, latest, program = parts.directory.identity, parts.store.latest(), parts.program
        settings = self._settings = program.checkpoints
        self.coordinator = JobCheckpoints(
            CheckpointCoordinator(
                identity.job_id,
                parts.directory.run_id,
                settings.timeout_ms,
                max_parallelism=identity.max_parallelism,
                operator_names={uid: one.node.name for uid, one in program.prepared.operators.items()},
                last_checkpoint_id=latest.checkpoint_id if latest is not None else None,
                max_concurrent_checkpoints=None,
            ),
            limits=settings.limits,
            failures=FailurePolicy(settings.tolerable_failures),
            are_checkpoints_unaligned=settings.mode.may_be_unaligned,
            last_completed_id=parts.point.restored_id,
        )
        self.failure: BaseException | None = None
        """Why the job fails, after more failures than it tolerates."""
        self.last_id = -1 if parts.point.restored_id is None else parts.point.restored_id
        """The newest checkpoint that was triggered, or that the run continues from."""
        self.completed_count = 0
        """How many checkpoints completed, including those without any state, which are not stored."""
        self.newest: CheckpointMetadata | None = None
        """The newest checkpoint that the run has stored."""
        self.metrics = CheckpointMetrics(parts.recorder)
        self.forms: RecordForms = {}
        """How overtaken records are written; empty if no barrier overtakes."""
        if settings.mode.may_be_unaligned:
            self.forms = forms_of_operators({uid: one.row_schemas for uid, one in program.prepared.operators.items()})
        self.writer = SnapshotWriter(self._send, self._written, threads=2 if settings.has_threads else 0)
        self._parts = parts
        self._sinks = sinks
        self._positions = positions
        self._last_request_id = 0
        self._events: deque[CoordinatorEvent] = deque()
        self._is_handling = False
        self._interval_ms = 0
        self._asked: set[int] = set()
        self._answers: dict[int, CheckpointAnswer] = {}
        self._errors: dict[int, BaseException] = {}
        self._last_error: BaseException | None = None
        self._timeouts: dict[int, int] = {}
        self._periodic_ms: int | None = None
        self._acknowledgements: dict[int, list[Acknowledgement]] = {}
        self._without_state: dict[int, set[str]] = {}
        self._times: dict[int, BarrierTimes] = {}
        self._triggered: dict[TaskId, set[int]] = {}
        self._abandoned: list[SubtaskState] = []

    def begin(self, network: Network, subtasks: Iterable[LocalSubtask]) -> None:
        """Start with the network of the run, and its open subtasks."""
        self._network = network
        self._sources = {one.task.operator_uid: one for one in network.sources}
        self._subtasks = {one.task: one for one in subtasks}
        tasks = [CheckpointTask(one.task, TaskStatus.RUNNING) for one in network.sources]
        for reader in (*network.operators, network.output):
            senders = frozenset(channel.sender for channel in reader.channels)
            tasks.append(CheckpointTask(reader.task, TaskStatus.RUNNING, senders))
        self._tasks_changed = TasksChanged(tasks)
        positions = (one.task for one in network.sources if one.task.operator_uid in self._positions)
        self._pinned = PinnedCheckpoints(self._parts.store, [*self._subtasks, *positions])

    @property
    def due_ms(self) -> int | None:
        """When the next timer is due; None if there is none."""
        periodic = () if self._periodic_ms is None else (self._periodic_ms,)
        return min((*self._timeouts.values(), *periodic), default=None)

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint is pending and no request waits."""
        return not self.coordinator.pending_ids and not self.coordinator.waiting_requests

    def start(self, interval_ms: int) -> None:
        """Take checkpoints periodically."""
        self._interval_ms = interval_ms
        self._handle(SchedulerStarted(interval_ms, self._now_ms()))

    def stop(self) -> None:
        """Take no more periodic checkpoints."""
        self._handle(SchedulerStopped())

    def close(self) -> None:
        """Abort what is pending, except checkpoints that are being stored; no more checkpoints are triggered."""
        with contextlib.suppress(Exception):
            self._handle(Shutdown(self._now_ms()))
        self.writer.close()
        # A later run drops what cannot be dropped now.
        with contextlib.suppress(Exception):
            self._pinned.close()

    def discard_abandoned(self) -> None:
        """Delete the abandoned files, when no subtask is open. The next start deletes what remains."""
        abandoned, self._abandoned = self._abandoned, []
        with contextlib.suppress(Exception):
            self._parts.store.discard(abandoned)

    def request(self, kind: CheckpointRequestKind) -> int:
        """Request a checkpoint; returns the number for `take_answer`.

        A savepoint is requested as a checkpoint without in-flight data, from which `LocalJob.savepoint` is written. The
        run continues from it as from any other.
        """
        self._last_request_id += 1
        request_id = self._last_request_id
        self._handle(self._tasks_changed)
        self._asked.add(request_id)
        self._handle(CheckpointRequested(request_id, kind, self._now_ms()))
        return request_id

    def take_answer(self, request_id: int) -> CheckpointAnswer | None:
        """The result of a request, once; None as long as there is none."""
        return self._answers.pop(request_id, None)

    def fire_due(self, *, starts_periodic: bool = True) -> bool:
        """Fire the timers that are due, with ``starts_periodic`` that of periodic checkpoints too.

        Returns whether there were any.
        """
        now_ms = self._now_ms()
        late = [checkpoint_id for checkpoint_id, at_ms in self._timeouts.items() if at_ms <= now_ms]
        for checkpoint_id in late:
            if self._timeouts.pop(checkpoint_id, None) is not None:
                self._handle(TimedOut(checkpoint_id, now_ms))
        if not starts_periodic or self._periodic_ms is None or self._periodic_ms > now_ms:
            return bool(late)
        if any(one.kind.is_periodic for one in self.coordinator.waiting_requests):
            # One waiting request is enough: more would follow it without a pause.
            self._periodic_ms = now_ms + self._interval_ms
            return True
        self._periodic_ms = None
        self._last_request_id += 1
        self._handle(self._tasks_changed)
        self._handle(PeriodicTimerFired(self._last_request_id, now_ms))
        return True

    def barrier_at_source(self, task: TaskId, checkpoint_id: int) -> None:
        """A source sends a barrier."""
        self._times_of(checkpoint_id).note_source(self._sources[task.operator_uid])
        positions = self._positions.get(task.operator_uid)
        if positions is None:
            self._acknowledge(self._stateless(task, checkpoint_id))
        else:
            self.writer.submit(self._work_of_positions(task, checkpoint_id, positions))

    def barrier_at_operator(self, subtask: LocalSubtask, capture: SubtaskCapture, frozen: FrozenSubtask | None) -> None:
        """Barriers have arrived at a subtask; ``frozen`` is None without state."""
        checkpoint_id, uid = capture.checkpoint_id, subtask.operator.uid
        self._times_of(checkpoint_id).note_operator(subtask.task, capture.time)
        without_state = self._without_state.setdefault(checkpoint_id, set())
        not_ready = CheckpointFailureReason.DECLINED_NOT_READY
        if frozen is None and subtask.holds_back_records:
            reason = "records wait until a record gives the types of its keys"
            self._decline(checkpoint_id, subtask.task, not_ready, reason)
        elif frozen is not None and uid in without_state:
            frozen.cancel()
            reason = "the types of its keys became known after the first barrier"
            self._decline(checkpoint_id, subtask.task, not_ready, reason)
        else:
            if frozen is None:
                without_state.add(uid)
            self.writer.submit(self._work_of_subtask(subtask, capture, frozen))

    def barrier_at_output(self, task: TaskId, checkpoint_id: int) -> None:
        """A barrier has arrived at the output."""
        directory, parent = self._parts.directory, self._parts.point.restored_from

        def epoch_of(uid: str) -> SinkEpoch:
            return SinkEpoch(SinkLineage(uid, directory.identity.job_id, parent), checkpoint_id, directory.run_id)

        self._sinks.end_epoch(checkpoint_id, epoch_of)
        self._acknowledge(self._stateless(task, checkpoint_id))

    def aborted(self, task: TaskId, checkpoint_id: int, reason: AbortReason) -> None:
        """Barriers abort a checkpoint at a task."""
        self._decline(checkpoint_id, task, _DECLINED[reason], reason.value)

    def _now_ms(self) -> int:
        return self._settings.now_ms()

    def _handle(self, event: CoordinatorEvent) -> None:
        """Pass an event to the coordinator and carry out its actions; events of those follow after them."""
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                for action in self.coordinator.handle(self._events.popleft()):
                    _ACTIONS[type(action)](self, action)
        finally:
            self._is_handling = False

    def _send(self, mail: Mail) -> None:
        # Only messages can be lost: storing and writing happen here.
        is_message = mail.task is not None and mail.name != "write"
        for one in self._settings.post(mail) if is_message else (mail,):
            self._network.send(one)

    def _acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Send the acknowledgement of a task to the coordinator."""

        def deliver() -> None:
            self._handle(Acknowledged(acknowledgement, self._now_ms()))

        self._send(Mail("acknowledge", acknowledgement.checkpoint_id, acknowledgement.task, deliver))

    def _decline(
        self,
        checkpoint_id: int,
        task: TaskId,
        reason: CheckpointFailureReason,
        detail: str,
        error: BaseException | None = None,
    ) -> None:
        """Send to the coordinator that a task cannot take part in a checkpoint."""
        job_id, run_id = self._parts.directory.identity.job_id, self._parts.directory.run_id

        def deliver() -> None:
            # The error of a checkpoint that is over is not needed.
            if error is not None and checkpoint_id in self.coordinator.pending_ids:
                self._errors.setdefault(checkpoint_id, error)
            self._handle(Declined(job_id, run_id, checkpoint_id, task, reason, detail, self._now_ms()))

        self._send(Mail("decline", checkpoint_id, task, deliver))

    def _assign_id(self, action: AssignId) -> None:
        """Assign an id greater than all before, and than that of the checkpoint or savepoint of the start."""
        request_id = action.request.request_id
        try:
            checkpoint_id = max(self.last_id + 1, self._parts.store.next_checkpoint_id())
        except Exception as error:
            reason = CheckpointFailureReason.IO_ERROR
            self._handle(CheckpointFailed(reason, str(error), self._now_ms(), request_id=request_id))
            return
        self.last_id = checkpoint_id
        self._pinned.triggered(checkpoint_id)
        self.metrics.triggered(checkpoint_id, self.coordinator.pending_ids)
        self._handle(CheckpointNumbered(request_id, checkpoint_id, self._now_ms()))

    def _progress(self, action: InitializeLocation | SnapshotOperatorCoordinators | RunMasterHooks) -> None:
        # The store creates the location of a checkpoint, and no operator has a part outside of its tasks.
        self._handle(CheckpointProgressed(action.checkpoint_id, self._now_ms()))

    def _trigger(self, action: TriggerTasks) -> None:
        for task in action.tasks:
            trigger = partial(self._trigger_source, task, action.checkpoint_id, action.kind)
            self._send(Mail("trigger", action.checkpoint_id, task, trigger))

    def _trigger_source(self, task: TaskId, checkpoint_id: int, kind: CheckpointRequestKind) -> None:
        """Let a source send a barrier before it reads on. A source declines a barrier that follows a newer one."""
        pending = self.coordinator.pending_ids
        sent = self._triggered[task] = {one for one in self._triggered.get(task, ()) if one in pending}
        if checkpoint_id not in sent and any(one > checkpoint_id for one in sent):
            self.aborted(task, checkpoint_id, AbortReason.SUBSUMED)
            return
        sent.add(checkpoint_id)
        barrier = self._settings.mode.barrier(checkpoint_id, self._now_ms(), is_savepoint=kind.is_savepoint)
        self._sources[task.operator_uid].trigger(barrier, _LAST.get(kind))

    def _start_timeout(self, action: StartTimeout) -> None:
        self._timeouts[action.checkpoint_id] = action.at_ms

    def _stop_timeout(self, action: StopTimeout) -> None:
        self._timeouts.pop(action.checkpoint_id, None)

    def _start_periodic(self, action: StartPeriodicTimer) -> None:
        self._periodic_ms = action.at_ms

    def _stop_periodic(self, action: StopPeriodicTimer) -> None:
        self._periodic_ms = None

    def _store(self, action: StoreCheckpoint) -> None:
        checkpoint_id = action.completed.checkpoint_id

        def store() -> None:
            try:
                self._store_completed(action.completed)
            except Exception as error:
                self._errors[checkpoint_id] = error
                reason = CheckpointFailureReason.FINALIZE_FAILED
                self._handle(CheckpointFailed(reason, str(error), self._now_ms(), checkpoint_id))
                return
            self._handle(CheckpointProgressed(checkpoint_id, self._now_ms()))
            if action.kind.is_savepoint and not action.kind.stops_job:
                # The coordinator notifies no task of a savepoint, but here a start would continue from it.
                self._completed(checkpoint_id)

        self._send(Mail("store", checkpoint_id, None, store))

    def _store_completed(self, completed: CompletedCheckpoint) -> None:
        """Store a checkpoint, unless no task has state and no sink has staged anything."""
        check_broadcast_copies(completed)
        parts, newest = self._parts, self._parts.store.latest()
        if newest is not None and newest.checkpoint_id > completed.checkpoint_id:
            # A savepoint does not subsume older checkpoints, and may be stored first. It contains all of this one.
            return
        operators = tuple(one for one in completed.operators if any(state != _NO_STATE for state in one.subtasks))
        committables = self._sinks.committables(completed.checkpoint_id)
        if not operators and not committables:
            return
        event_time = parts.program.event_time
        watermarks = None
        if event_time is not None:
            times = self._times[completed.checkpoint_id]
            watermarks = watermark_state(event_time.nodes or event_time.source_names, times.channels(), times.nodes())
        self.newest = store_checkpoint(
            parts.store,
            parts.directory.identity,
            CompletedCheckpoint(
                checkpoint_id=completed.checkpoint_id,
                operators=operators,
                channel_timestamps=completed.channel_timestamps,
                timers_due=completed.timers_due,
            ),
            processing_time_ms=parts.epoch.clock.now_ms,
            restored_from=parts.point.restored_from,
            sink_committables=committables,
            sink_identities={uid: one for uid, one in self._sinks.identities.items() if uid in committables},
            watermarks=watermarks,
        )
        self._pinned.completed(completed.checkpoint_id)

    def _notify_complete(self, action: NotifyComplete) -> None:
        self._completed(action.checkpoint_id)
        for task in action.tasks:
            notify = partial(self._notify_task, task, action.checkpoint_id)
            self._send(Mail("notify complete", action.checkpoint_id, task, notify))

    def _completed(self, checkpoint_id: int) -> None:
        """Give the sinks the results before its barrier, unless another driver leads the job and has done so."""
        self.completed_count += 1
        epoch = self._parts.epoch
        epoch.epoch_id = max(epoch.epoch_id, checkpoint_id + 1)
        acknowledgements = self._acknowledgements.get(checkpoint_id, ())
        self._forget(checkpoint_id)
        is_quiet = not self.writer.is_writing and not any(one.name == "write" for one in self._network.mails)
        if self._abandoned and is_quiet and checkpoint_id >= self.last_id:
            abandoned, self._abandoned = self._abandoned, []
            self._parts.store.discard(abandoned, frozenset())
        self._parts.directory.leadership.check()
        self._sinks.complete(checkpoint_id)
        self.metrics.completed(checkpoint_id, acknowledgements, self._sinks.take_metrics(checkpoint_id))

    def _notify_task(self, task: TaskId, checkpoint_id: int) -> None:
        if task.operator_uid in self._positions:
            self._positions[task.operator_uid].notify_checkpoint_complete(checkpoint_id)
        if task in self._subtasks:
            self._subtasks[task].notify_checkpoint_complete(checkpoint_id)
        self._pinned.notified(task, checkpoint_id)
        self._pinned.release(self.coordinator.pending_ids)

    def _notify_aborted(self, action: NotifyAborted) -> None:
        self.writer.cancel(action.checkpoint_id)
        self._forget(action.checkpoint_id)
        for task in action.tasks:
            cancel = partial(self._cancel_task, task, action.checkpoint_id)
            self._send(Mail("notify aborted", action.checkpoint_id, task, cancel))

    def _cancel_task(self, task: TaskId, checkpoint_id: int) -> None:
        if task in self._subtasks:
            self._subtasks[task].cancel_snapshot(checkpoint_id)

    def _discard(self, action: DiscardStates) -> None:
        # Subtasks may build upon their files.
        self._abandoned += (one for one in action.states if one.files)

    def _nothing(self, action: RemoveLocation) -> None:
        """A store that failed leaves nothing."""

    def _answer(self, action: AnswerRequest) -> None:
        checkpoint_id = action.checkpoint_id
        error = self._last_error = None if checkpoint_id is None else self._errors.pop(checkpoint_id, None)
        if action.request_id in self._asked:
            # Nobody takes the answers to periodic requests.
            self._asked.remove(action.request_id)
            answer = CheckpointAnswer(checkpoint_id, action.failure, action.detail, error)
            self._answers[action.request_id] = answer
        # What is aborted at the end of the run has not failed.
        if action.failure not in (None, CheckpointFailureReason.SHUTDOWN) and checkpoint_id is not None:
            self._parts.recorder.checkpoint_failed(checkpoint_id, action.detail)

    def _fail_job(self, action: FailJob) -> None:
        # The exception itself helps more than the report that there was one.
        self.failure = self._last_error or CheckpointFailedError(action.detail)

    def _work_of_subtask(
        self, subtask: LocalSubtask, capture: SubtaskCapture, frozen: FrozenSubtask | None
    ) -> SnapshotWork:
        checkpoint_id, task, channels = capture.checkpoint_id, subtask.task, SubtaskState()

        def write() -> None:
            nonlocal channels
            if frozen is not None:
                frozen.write()
            if self._settings.mode.may_be_unaligned:
                directory = self._parts.directory
                # A later run may use the id of a failed checkpoint again, so the run is part of the name.
                prefix = f"shared/{path_segment(task.operator_uid)}/{task.subtask_index:05d}-{directory.run_id}"
                channels = write_channel_state(capture, task, self.forms, directory.file_system, prefix)

        def cancel() -> None:
            if frozen is not None:
                frozen.cancel()

        def acknowledgement() -> Acknowledgement:
            made = self._stateless(task, checkpoint_id) if frozen is None else subtask.acknowledged(frozen)
            barriers = SubtaskBarriers(
                is_unaligned=capture.is_unaligned,
                start_delay_ms=capture.metrics.start_delay_ms,
                alignment_ms=capture.metrics.alignment_ms,
                capture_ms=capture.metrics.capture_ms,
                in_flight_bytes=sum(file.size_bytes for file in channels.files),
            )
            made = evolve(made, metrics={**made.metrics, **barriers.to_metrics()})
            inputs, outputs = channels.input_channels, channels.output_channels
            return evolve(made, state=evolve(made.state, input_channels=inputs, output_channels=outputs))

        def written_state() -> Sequence[SubtaskState]:
            return () if frozen is None or frozen.snapshot is None else (frozen.snapshot.state,)

        return SnapshotWork(checkpoint_id, task, write, cancel, acknowledgement, written_state)

    def _work_of_positions(self, task: TaskId, checkpoint_id: int, positions: SplitPositions) -> SnapshotWork:
        frozen, state = positions.freeze(checkpoint_id), SubtaskState()

        def write() -> None:
            nonlocal state
            state = SubtaskState(operator=encode_operator_state(frozen.run().handle))

        def acknowledgement() -> Acknowledgement:
            return evolve(self._stateless(task, checkpoint_id), state=state)

        return SnapshotWork(checkpoint_id, task, write, frozen.cancel, acknowledgement)

    def _stateless(self, task: TaskId, checkpoint_id: int) -> Acknowledgement:
        """The acknowledgement of a task without state."""
        directory = self._parts.directory
        return Acknowledgement(
            job_id=directory.identity.job_id,
            run_id=directory.run_id,
            checkpoint_id=checkpoint_id,
            operator_uid=task.operator_uid,
            subtask_index=task.subtask_index,
            attempt_id="0",
            digest="0" * 32,
            state=_NO_STATE,
        )

    def _written(self, work: SnapshotWork, error: BaseException | None) -> None:
        if error is not None:
            self._abandoned += work.written_state()
            reason = CheckpointFailureReason.ASYNCHRONOUS_PART_FAILED
            self._decline(work.checkpoint_id, work.task, reason, str(error), error)
            return
        acknowledgement = work.acknowledgement()
        self._acknowledgements.setdefault(work.checkpoint_id, []).append(acknowledgement)
        self.metrics.acknowledged(acknowledgement)
        self._acknowledge(acknowledgement)

    def _times_of(self, checkpoint_id: int) -> BarrierTimes:
        source_order = [one.task for one in self._sources.values()]
        return self._times.setdefault(checkpoint_id, BarrierTimes(source_order))

    def _forget(self, checkpoint_id: int) -> None:
        """Forget what was noted of checkpoints up to this one that are over."""
        pending = self.coordinator.pending_ids
        noted: tuple[dict[int, Any], ...] = (self._acknowledgements, self._without_state, self._times)
        for by_id in noted:
            for known in [one for one in by_id if one <= checkpoint_id and one not in pending]:
                del by_id[known]
        self._pinned.release(pending)


_ACTIONS: Final[Mapping[type, Callable[[RunCheckpoints, Any], None]]] = {
    AssignId: RunCheckpoints._assign_id,
    InitializeLocation: RunCheckpoints._progress,
    SnapshotOperatorCoordinators: RunCheckpoints._progress,
    RunMasterHooks: RunCheckpoints._progress,
    TriggerTasks: RunCheckpoints._trigger,
    StartTimeout: RunCheckpoints._start_timeout,
    StopTimeout: RunCheckpoints._stop_timeout,
    StartPeriodicTimer: RunCheckpoints._start_periodic,
    StopPeriodicTimer: RunCheckpoints._stop_periodic,
    StoreCheckpoint: RunCheckpoints._store,
    NotifyComplete: RunCheckpoints._notify_complete,
    NotifyAborted: RunCheckpoints._notify_aborted,
    DiscardStates: RunCheckpoints._discard,
    RemoveLocation: RunCheckpoints._nothing,
    AnswerRequest: RunCheckpoints._answer,
    FailJob: RunCheckpoints._fail_job,
}


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

_NO_STATE: Final = SubtaskState()
