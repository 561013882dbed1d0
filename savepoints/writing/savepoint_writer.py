"""Writing a savepoint by a plan, from nothing or from another savepoint or checkpoint; see the room for the order.

SavepointWriter.new("/savepoints/first", max_parallelism=128).write(
    Plan().add_operator("per shop", "string").add_state("per shop", ValueStateDescriptor("sales", int), sales)
)
SavepointWriter.copy_of("/savepoints/first", "/savepoints/second").write(Plan().rename_operator("per shop", "shop"))
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from attrs import evolve, frozen

from checkpointing.errors import CheckpointError
from checkpointing.handles.operator_states import OperatorState
from checkpointing.handles.state_handles import FileHandle
from checkpointing.metadata.checkpoint_metadata import CheckpointKind, CheckpointMetadata
from checkpointing.metadata.checkpoint_sections import SavepointIdentity
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.job_services import JobServices
from checkpointing.storage.savepoint_directory import (
    SavedSourceProgress,
    abandon_savepoint_directory,
    check_savepoint_directory,
    create_savepoint_directory,
    write_savepoint,
    write_source_progress,
)
from savepoints.reading.state_location import find_state
from savepoints.restored_state import RestoredState
from savepoints.writing.changes import Change
from savepoints.writing.drafts import Drafts, OperatorDraft
from savepoints.writing.errors import PlanError
from savepoints.writing.new_files import NewOperator
from savepoints.writing.new_metadata import WRITTEN_ANEW_FROM, carried_metadata
from savepoints.writing.operator_writing import WritingContext, copied_operator, written_operator
from savepoints.writing.plan import Plan
from savepoints.writing.scratch_space import scratch_space
from savepoints.writing.task_running import TaskRunner
from snapshots.errors import StateFormatError
from snapshots.value_text import shown
from statebackend.api.clock import wall_clock
from statebackend.api.descriptors import as_serializer
from statebackend.api.errors import StateBackendError
from statebackend.api.key_groups import check_parallelism
from statebackend.api.progress import ProgressListener, no_progress
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["SavepointWriter", "WrittenSavepoint"]

_REFUSALS: Final = (CheckpointError, StateBackendError, StateFormatError)


@frozen
class WrittenSavepoint:
    """What was written: where, the rows of each state that was not copied as it is, by operator, its size, how long.

    ``left_out`` are the rows that the plan's ``keep_...`` changes have left out, by operator and state, of states that
    one of them looked at. ``changes_without_effect`` are those that left out nothing at all: each by its number in the
    plan, from 1, and what it is.
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


class SavepointWriter:
    """See the module; made by `new` or `copy_of`."""

    def __init__(
        self,
        uri: str | os.PathLike[str],
        source: RestoredState | None,
        max_parallelism: int | None,
        job_name: str,
        known: Iterable[TypeSerializer[Any] | type[Any]],
        scratch_directory: str | None,
        processes: int,
    ) -> None:
        self._uri = uri
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
    ) -> SavepointWriter:
        """Writes to a directory that is absent or empty, what a plan adds to nothing.

        ``max_parallelism`` is that of the job that is to start from it. ``scratch_directory`` is where rows are sorted,
        by default the system's; it needs room for all of them. With ``processes`` above one, tasks run in so many.
        """
        return cls(uri, None, max_parallelism, job_name, (), scratch_directory, processes)

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
    ) -> SavepointWriter:
        """Writes to a directory what a plan makes of a savepoint, a checkpoint or a job directory; changes neither.

        ``known`` are classes of the program, as of `Savepoint.open`: functions of the plan are given records of them.
        ``high_availability`` is how a job directory is led, as of `Savepoint.open`.
        Raises what `Savepoint.open` raises.
        """
        return cls(
            uri, find_state(source, checkpoint_id, high_availability), None, "job", known, scratch_directory, processes
        )

    def write(self, plan: Plan, progress: ProgressListener = no_progress) -> WrittenSavepoint:
        """Carries the plan out. Nothing is at the target before all of it has been; then all, or nothing.

        Raises `PlanError` for a plan that cannot be carried out, with all that is wrong; `EntryError` for an entry that
        does not fit, `RepeatedKeyError` for two of one address, `SavepointExistsError` for a target that holds
        something, `StorageError`, and what damaged state raises. ``progress`` is told how far it is.
        """
        started_s = time.monotonic()
        check_savepoint_directory(self._uri)
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
            raise PlanError(f"a Plan is needed, not {type(plan).__name__}; did the function that makes it return it?")
        drafts = Drafts(self._source, self._known)
        if self._source is None:
            drafts.max_parallelism = self._max_parallelism
        problems = []
        for number, change in enumerate(plan.changes, 1):
            refusal = _refusal(change, drafts)
            if refusal is not None:
                problems.append(f"change {number} ({type(change).__name__}): {refusal}")
        try:
            if type(drafts.max_parallelism) is not int:
                raise TypeError(f"max_parallelism is a whole number, not {shown(drafts.max_parallelism)}")
            check_parallelism(1 if drafts.parallelism is None else drafts.parallelism, drafts.max_parallelism)
        except (ValueError, TypeError) as error:
            problems.append(str(error))
        if problems:
            raise PlanError("the plan cannot be carried out; nothing was written:\n" + "\n".join(problems))
        return drafts

    def _base_metadata(self, drafts: Drafts) -> CheckpointMetadata:
        assert drafts.max_parallelism is not None
        if self._source is None:
            return CheckpointMetadata(
                checkpoint_id=0,
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
                f"({', '.join(sorted(metadata.sink_committables))}), which no other job can do. Start the job once and "
                f"take a savepoint, or, if it was committed, drop it from the plan (drop_sinks)"
            )
        if is_checkpoint and metadata.source_positions is not None and "source_progress" not in drafts.dropped:
            raise PlanError(
                f"the log of what was read of the sources lies beside the checkpoint {metadata.checkpoint_id}, not in "
                f"it: take a savepoint of the job and rewrite that, or let the sources be read anew "
                f"(drop_source_progress)"
            )
        identity = SavepointIdentity(metadata.job_id, metadata.checkpoint_id, metadata.timestamp_ms)
        now_ms = wall_clock()
        return evolve(
            metadata,
            kind=CheckpointKind.SAVEPOINT,
            # The time alone tells it from what it was made of.
            timestamp_ms=now_ms if now_ms != metadata.timestamp_ms else now_ms + 1,
            max_parallelism=drafts.max_parallelism,
            operators=(),
            parent_checkpoint_id=None,
            parent_digest=None,
            source_progress={},
            source_progress_files=(),
            sink_committables={},
            sink_identities={},
            properties={**metadata.properties, WRITTEN_ANEW_FROM: str(identity)},
        )

    def _placed(
        self,
        metadata: CheckpointMetadata,
        operators: Sequence[NewOperator],
        drafts: Drafts,
        scratch: str,
        started_s: float,
    ) -> WrittenSavepoint:
        with _reserved(self._uri) as target:
            progress: tuple[FileHandle, ...] = ()
            if self._source is not None and "source_progress" not in drafts.dropped:
                progress = write_source_progress(
                    target, SavedSourceProgress(self._source.file_system, self._source.metadata)
                )
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


def _refusal(change: Change, drafts: Drafts) -> Exception | None:
    try:
        change.apply(drafts)
    except _REFUSALS as error:
        return error
    return None


def _without_effect(drafts: Drafts, operators: Sequence[NewOperator]) -> dict[int, str]:
    with_effect = {
        number for one in operators for counts in one.left_out.values() for number, count in counts.items() if count
    }
    return {number: change for number, change in drafts.keeping.items() if number not in with_effect}


@contextmanager
def _reserved(uri: str | os.PathLike[str]) -> Iterator[CheckpointFileSystem]:
    """The target, reserved; emptied again if the block is left by an exception before the savepoint is complete."""
    target = create_savepoint_directory(uri)
    try:
        yield target
    except BaseException:
        abandon_savepoint_directory(target)
        raise
