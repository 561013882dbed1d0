"""Writes a new savepoint with a plan, from data or from another savepoint or checkpoint.

    SavepointWriter.new("/savepoints/first", max_parallelism=128).write(
        Plan().add_operator("per shop", "string").add_state("per shop", ValueStateDescriptor("sales", int), sales)
    )
    SavepointWriter.copy_of("/savepoints/first", "/savepoints/second").write(Plan().rename_operator("per shop", "shop"))

Imports of foreign state also use it: `new` for entries with descriptors, `copy_of` for a Flink savepoint. Keys then get
the key groups of Statebackend.

1. All changes apply to drafts. If any is invalid, nothing is written, and the error lists all problems.
2. Tasks read, transform and sort entries in scratch space: in this process, or in spawned processes (`TaskRunner`).
   For processes, tasks are pickled, so functions must be importable. They report progress when a task ends.
3. The files are moved to the target and the metadata is written last. On an error the target is emptied. What a killed
   writer has left at the target is deleted by the next one.

`carried_metadata` adapts watermarks and timers to new uids. Each part of a split operator gets the watermarks of the
old operator. A merged operator keeps a watermark only if it is the same in all its origins. Otherwise it starts with
the next watermark. A channel from merged operators gets the earlier watermark, and is idle if both were idle.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

from attrs import evolve, frozen

from snapshots.errors import StateFormatError, format_value
from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.ha.services import JobServices
from statebackend.checkpoint.metadata import (
    SOURCE_PROGRESS_DIRECTORY,
    CheckpointKind,
    CheckpointMetadata,
    InputChannel,
    InputWatermark,
    NodeWatermark,
    SavepointIdentity,
    SourcePositions,
    TimersDue,
    WatermarkState,
)
from statebackend.checkpoint.state_handles import FileHandle, OperatorState
from statebackend.checkpoint.store.savepoint_directory import (
    SavedSourceProgress,
    check_savepoint_directory,
    reserved_directory,
    write_savepoint,
    write_source_progress,
)
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.foreign.flink_files import FlinkFiles
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.rewrite.changes import Change
from statebackend.savepoint.rewrite.drafts import Drafts, OperatorDraft
from statebackend.savepoint.rewrite.new_files import NewOperator
from statebackend.savepoint.rewrite.operator_writer import WritingContext, copied_operator, written_operator
from statebackend.savepoint.rewrite.plan import Plan
from statebackend.savepoint.rewrite.staged_entries import scratch_space
from statebackend.savepoint.state_location import find_state
from statebackend.state.clock import wall_clock
from statebackend.state.descriptors import as_serializer
from statebackend.state.errors import StateBackendError
from statebackend.state.key_groups import check_parallelism
from statebackend.state.priority_queue import TimeDomain, timer_state_name
from statebackend.state.progress import ProgressListener, no_progress
from typeserializers.kernel.type_serializer import TypeSerializer

REWRITTEN_FROM: Final = "rewritten_from"
"""The savepoint property with the origin: job id, checkpoint id and time, separated by slashes."""


def carried_metadata(base: CheckpointMetadata, drafts: Drafts, operators: Sequence[NewOperator]) -> CheckpointMetadata:
    """Return the metadata sections for the new operators, without operators and files."""
    watermarks = None
    if base.watermarks is not None and "watermarks" not in drafts.dropped:
        nodes = _carried_nodes(base.watermarks.nodes, drafts.successors)
        watermarks = WatermarkState(base.watermarks.watermark_ms, base.watermarks.channels, nodes)
    return evolve(
        base,
        watermarks=watermarks,
        timers_due=_timers_due(base.timers_due, operators),
        source_positions=None if "source_progress" in drafts.dropped else base.source_positions,
    )


def _carried_nodes(
    nodes: Sequence[NodeWatermark], successors: Mapping[str, Sequence[str]]
) -> tuple[NodeWatermark, ...]:
    carried: dict[str, NodeWatermark | None] = {}
    for node in nodes:
        inputs = tuple(kept for one in node.inputs if (kept := _carried_input(one, successors)) is not None)
        for uid in successors.get(node.node, (node.node,)):
            own = evolve(node, node=uid, inputs=inputs)
            # Different watermarks of origins result in None.
            carried[uid] = own if uid not in carried or carried[uid] == own else None
    return tuple(node for node in carried.values() if node is not None)


def _carried_input(one: InputWatermark, successors: Mapping[str, Sequence[str]]) -> InputWatermark | None:
    channels: dict[str, InputChannel] = {}
    for channel in one.channels:
        for uid in successors.get(channel.channel, (channel.channel,)):
            own = evolve(channel, channel=uid)
            channels[uid] = _earlier(channels[uid], own) if uid in channels else own
    return InputWatermark(one.watermark_ms, tuple(channels.values())) if channels else None


def _earlier(one: InputChannel, other: InputChannel) -> InputChannel:
    times = (one.watermark_ms, other.watermark_ms)
    watermark_ms = None if None in times else min(time for time in times if time is not None)
    return InputChannel(one.channel, watermark_ms, is_idle=one.is_idle and other.is_idle)


def _timers_due(known: Sequence[TimersDue], operators: Sequence[NewOperator]) -> tuple[TimersDue, ...]:
    """Return the earliest timers of each operator.

    For copied state, the earliest timer of the old operator is a lower bound. If it is too early, this costs one
    lookup.
    """
    former = {one.operator_uid: one for one in known}
    due = []
    for operator in operators:
        own = TimersDue(operator.uid, _earliest(operator, "event"), _earliest(operator, "processing"))
        if operator.has_copied_timers:
            for origin in operator.origins:
                if origin in former:
                    own = own.earliest(former[origin])
        if (own.event_time_ms, own.processing_time_ms) != (None, None):
            due.append(own)
    return tuple(due)


def _earliest(operator: NewOperator, domain: TimeDomain) -> int | None:
    prefix = timer_state_name(domain, "")
    return min((ms for name, ms in operator.earliest_timers_ms.items() if name.startswith(prefix)), default=None)


class TaskRunner:
    """Runs tasks in this process, or in ``processes`` spawned processes, which end with the context."""

    def __init__(self, processes: int, listener: ProgressListener) -> None:
        if type(processes) is not int or processes < 1:
            raise PlanError(f"processes is {processes!r}; it must be a whole number of at least 1")
        self._listener = listener
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        if processes > 1:
            self._pool = concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))

    def __enter__(self) -> TaskRunner:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        """Return the results of the tasks, in order. Raises the error of the first task that fails."""
        if self._pool is None:
            return [task.run(self._listener) for task in tasks]
        results = []
        for result, reports in self._in_processes(self._pool, tasks):
            results.append(result)
            for one in reports:
                self._listener(one)
        return results

    def _in_processes(self, pool: concurrent.futures.ProcessPoolExecutor, tasks: Sequence[Any]) -> Iterator[Any]:
        try:
            # Pickle here, because a pool reports pickling errors late and without details.
            for task in tasks:
                pickle.dumps(task)
        except Exception as error:
            raise PlanError(
                f"a task cannot be sent to another process: {error}. Use functions of a module that can be "
                f"imported, and entries as lists, or use one process"
            ) from error
        try:
            yield from pool.map(_ran, tasks)
        except BrokenProcessPool as error:
            raise PlanError(
                "a process of the plan ended early: it was killed, for example because memory ran out, or a function "
                "of the plan ended it. Nothing was written"
            ) from error


def _ran(task: Any) -> tuple[Any, list[Any]]:
    last: dict[Any, Any] = {}

    def keep(one: Any) -> None:
        last[one.operation, one.operator_uid, one.state_name, one.subtask_index] = one

    return task.run(keep), list(last.values())


_REJECTIONS: Final = (CheckpointError, StateBackendError, StateFormatError)


@frozen
class WrittenSavepoint:
    """A written savepoint.

    Attributes:
        rows: The entries of each keyed state that was not copied, by operator. A list is one entry.
        operator_state_rows: The elements of each operator state that was not copied, by operator.
        left_out: The rows that ``keep_...`` changes removed, by operator and state.
        changes_without_effect: The ``keep_...`` changes that removed nothing, by their number in the plan, from 1.
        copied_operators: The operators that were copied unchanged.
    """

    uri: str
    rows: Mapping[str, Mapping[str, int]]
    operator_state_rows: Mapping[str, Mapping[str, int]]
    left_out: Mapping[str, Mapping[str, int]]
    changes_without_effect: Mapping[int, str]
    copied_operators: tuple[str, ...]
    files: int
    size_bytes: int
    duration_s: float


@frozen(kw_only=True)
class ForeignProgress:
    """The progress of a job of another engine, for a savepoint with its state.

    Attributes:
        properties: The properties of the savepoint that describe its origin.
        source_files: The files of the engine's source log: relative name to content.
    """

    checkpoint_id: int
    processing_time_ms: int
    properties: Mapping[str, str]
    watermarks: WatermarkState | None
    source_positions: SourcePositions
    source_files: Mapping[str, bytes]


class SavepointWriter:
    """Writes one savepoint. Create it with `new` or `copy_of`."""

    def __init__(
        self,
        uri: str | os.PathLike[str],
        source: RestoredState | None,
        max_parallelism: int | None,
        job_name: str,
        known: Iterable[TypeSerializer[Any] | type[Any]],
        scratch_directory: str | None,
        processes: int,
        foreign: ForeignProgress | None = None,
    ) -> None:
        self._uri = uri
        self._foreign = foreign
        self._source = source
        self._max_parallelism = max_parallelism
        self._job_name = job_name
        self._known = [as_serializer(one) for one in known]
        self._scratch_directory = scratch_directory
        self._processes = processes

    @classmethod
    def new(
        cls,
        uri: str | os.PathLike[str],
        *,
        max_parallelism: int,
        job_name: str = "job",
        scratch_directory: str | None = None,
        processes: int = 1,
        foreign: ForeignProgress | None = None,
    ) -> SavepointWriter:
        """Return a writer that starts without state.

        Args:
            uri: The target directory, absent or empty.
            max_parallelism: The number of key groups of the job that will start from the savepoint.
            job_name: The name of the job.
            scratch_directory: The directory for sorting. It needs space for all rows. Default: the system's temporary
                one.
            processes: The number of processes that run tasks.
            foreign: The progress of the job of another engine, if the state was imported.
        """
        return cls(uri, None, max_parallelism, job_name, (), scratch_directory, processes, foreign)

    @classmethod
    def copy_of(
        cls,
        source: str | os.PathLike[str],
        uri: str | os.PathLike[str],
        *,
        checkpoint_id: int | None = None,
        known: Iterable[TypeSerializer[Any] | type[Any]] = (),
        scratch_directory: str | None = None,
        processes: int = 1,
        high_availability: JobServices | None = None,
        moved: Mapping[str, str] | None = None,
    ) -> SavepointWriter:
        """Return a writer that starts from a savepoint, a checkpoint or a job directory. The source is not changed.

        Args:
            source: The path of the source, which may be a Flink savepoint.
            uri: The target directory, absent or empty.
            checkpoint_id: The checkpoint of a job directory; None for the newest.
            known: Classes or serializers of the program, as in `Savepoint.open`. Functions of the plan receive their
                records.
            scratch_directory: The directory for sorting. Default: the system's temporary one.
            processes: The number of processes that run tasks.
            high_availability: The services of the job, as in `Savepoint.open`.
            moved: New locations of directories of a Flink checkpoint, as in `Savepoint.open`.

        Raises:
            SavepointError: There is no state at the source. See `Savepoint.open` for more.
        """
        restored = find_state(source, checkpoint_id, high_availability, moved)
        return cls.copy_of_restored(restored, uri, known, scratch_directory, processes)

    @classmethod
    def copy_of_restored(
        cls,
        source: RestoredState,
        uri: str | os.PathLike[str],
        known: Iterable[TypeSerializer[Any] | type[Any]] = (),
        scratch_directory: str | None = None,
        processes: int = 1,
    ) -> SavepointWriter:
        """Return a writer that starts from opened state. Arguments as in `copy_of`."""
        return cls(uri, source, None, "job", known, scratch_directory, processes)

    def write(self, plan: Plan, progress: ProgressListener = no_progress) -> WrittenSavepoint:
        """Execute the plan. If this fails, the target is emptied.

        Raises:
            PlanError: The plan is invalid. The message lists all problems.
            EntryError: An entry does not fit its state.
            RepeatedKeyError: Two entries have the same address.
            SavepointExistsError: The target is not empty.
            StorageError: The target cannot be written.
        """
        started_s = time.monotonic()
        check_savepoint_directory(self._uri, may_clear=True)
        drafts = self._drafts(plan)
        base = self._base_metadata(drafts)
        with scratch_space(self._scratch_directory) as scratch:
            with TaskRunner(self._processes, progress) as runner:
                context = WritingContext(
                    self._source,
                    base.max_parallelism,
                    drafts.parallelism,
                    scratch,
                    wall_clock(),
                    runner.run,
                    tuple(self._known),
                )
                operators = [self._operator(draft, context) for draft in drafts.operators.values()]
            metadata = carried_metadata(base, drafts, operators)
            return self._placed(metadata, operators, drafts, scratch, started_s)

    def _operator(self, draft: OperatorDraft, context: WritingContext) -> NewOperator:
        return written_operator(draft, context) if draft.is_opened else copied_operator(draft, context)

    def _drafts(self, plan: Plan) -> Drafts:
        if not isinstance(plan, Plan):
            raise PlanError(f"pass a Plan, not {type(plan).__name__}; did the function that makes it return it?")
        drafts = Drafts(self._source, self._known)
        if self._source is None:
            drafts.max_parallelism = self._max_parallelism
        problems = []
        for number, change in enumerate(plan.changes, 1):
            rejection = _rejection(change, drafts)
            if rejection is not None:
                problems.append(f"change {number} ({type(change).__name__}): {rejection}")
        if self._source is not None and isinstance(self._source.file_system, FlinkFiles) and not problems:
            # Flink computes key groups with another hash.
            problems += drafts.place_all_keys()
        try:
            if type(drafts.max_parallelism) is not int:
                raise TypeError(f"max_parallelism must be a whole number, not {format_value(drafts.max_parallelism)}")
            check_parallelism(1 if drafts.parallelism is None else drafts.parallelism, drafts.max_parallelism)
        except (ValueError, TypeError) as error:
            problems.append(str(error))
        if problems:
            raise PlanError("the plan cannot be carried out; nothing was written:\n" + "\n".join(problems))
        return drafts

    def _base_metadata(self, drafts: Drafts) -> CheckpointMetadata:
        assert drafts.max_parallelism is not None
        if self._source is None:
            foreign = self._foreign
            return CheckpointMetadata(
                checkpoint_id=0 if foreign is None else foreign.checkpoint_id,
                processing_time_ms=None if foreign is None else foreign.processing_time_ms,
                source_positions=None if foreign is None else foreign.source_positions,
                watermarks=None if foreign is None else foreign.watermarks,
                properties={} if foreign is None else foreign.properties,
                kind=CheckpointKind.SAVEPOINT,
                job_id=uuid.uuid4().hex,
                job_name=self._job_name,
                timestamp_ms=wall_clock(),
                max_parallelism=drafts.max_parallelism,
                operators=(),
            )
        metadata = self._source.metadata
        is_checkpoint = metadata.kind is CheckpointKind.CHECKPOINT
        if metadata.sink_committables and "sinks" not in drafts.dropped:
            raise PlanError(
                f"sinks of the checkpoint {metadata.checkpoint_id} have output to commit "
                f"({', '.join(sorted(metadata.sink_committables))}), which another job cannot do. Start the job once "
                f"and take a savepoint, or, if it was committed, drop it: drop_sinks() of a plan, --drop-sinks of "
                f"migrate"
            )
        if is_checkpoint and metadata.source_positions is not None and "source_progress" not in drafts.dropped:
            raise PlanError(
                f"Spark's log of the sources is next to the checkpoint {metadata.checkpoint_id}, not in "
                f"it: take a savepoint of the job and rewrite that, or let the sources be read again: "
                f"drop_source_progress() of a plan, --drop-source-progress of migrate"
            )
        identity = SavepointIdentity(metadata.job_id, metadata.checkpoint_id, metadata.timestamp_ms)
        now_ms = wall_clock()
        return evolve(
            metadata,
            kind=CheckpointKind.SAVEPOINT,
            # The new savepoint differs from its source only by the time.
            timestamp_ms=now_ms if now_ms != metadata.timestamp_ms else now_ms + 1,
            max_parallelism=drafts.max_parallelism,
            operators=(),
            parent_checkpoint_id=None,
            parent_digest=None,
            source_progress_files=(),
            sink_committables={},
            sink_identities={},
            properties={**metadata.properties, REWRITTEN_FROM: str(identity)},
        )

    def _placed(
        self,
        metadata: CheckpointMetadata,
        operators: Sequence[NewOperator],
        drafts: Drafts,
        scratch: str,
        started_s: float,
    ) -> WrittenSavepoint:
        source_files: Mapping[str, bytes] = {}
        if self._foreign is not None and "source_progress" not in drafts.dropped:
            source_files = self._foreign.source_files
        if self._source is not None and "source_progress" not in drafts.dropped:
            source_files = SavedSourceProgress(self._source.file_system, self._source.metadata)
        paths = [file.path for operator in operators for file in operator.files]
        paths += [f"{SOURCE_PROGRESS_DIRECTORY}/{name}" for name in source_files]
        with reserved_directory(self._uri, dict.fromkeys(paths)) as target:
            progress = write_source_progress(target, source_files)
            files: dict[str, FileHandle] = {}
            for operator in operators:
                for file in operator.files:
                    if file.path not in files:
                        files[file.path] = file.put(target, scratch)
            states = tuple(
                OperatorState(
                    one.uid,
                    one.name,
                    metadata.max_parallelism,
                    tuple(subtask.state(files) for subtask in one.subtasks),
                )
                for one in operators
            )
            complete = evolve(metadata, operators=states, source_progress_files=progress)
            write_savepoint(target, complete)
        return WrittenSavepoint(
            target.uri,
            {one.uid: one.rows for one in operators},
            {one.uid: one.operator_state_rows for one in operators},
            {one.uid: {name: counts.total() for name, counts in one.left_out.items()} for one in operators},
            _without_effect(drafts, operators),
            tuple(draft.uid for draft in drafts.operators.values() if draft.is_copied),
            len(complete.files),
            complete.size_bytes,
            time.monotonic() - started_s,
        )


def _rejection(change: Change, drafts: Drafts) -> Exception | None:
    try:
        change.apply(drafts)
    except _REJECTIONS as error:
        return error
    return None


def _without_effect(drafts: Drafts, operators: Sequence[NewOperator]) -> dict[int, str]:
    with_effect = {
        number for one in operators for counts in one.left_out.values() for number, count in counts.items() if count
    }
    return {number: change for number, change in drafts.keeping.items() if number not in with_effect}
