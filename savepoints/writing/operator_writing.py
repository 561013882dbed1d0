"""One operator of the new savepoint: which of its states go on as files, and which as tasks, and in which parts.

Where the operator keeps its key groups it keeps its subtasks, too, and each state goes the shortest way there is:

    nothing has changed            its files are copied, of an operator that nobody touched all of them
    entries change, order does not each part is rewritten by itself
    entries are given, or come
    from several operators         everything is collected and sorted, then written part by part

Where keys get other key groups (another `max_parallelism`, other keys, operators split or merged) the parts are those
of the new parallelism, and every state is collected. A checkpoint's files are never copied, since they are a backend's
own: they are exported, or rewritten.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import define, field, frozen

from checkpointing.errors import SavepointError
from checkpointing.handles.operator_states import OperatorState
from checkpointing.handles.relative_path import path_segment
from checkpointing.handles.state_handles import KeyedStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from savepoints.handle_export import ExportedSubtask, ExportTask
from savepoints.restored_state import RestoredState
from savepoints.writing.drafts import OperatorDraft, StateDraft
from savepoints.writing.key_placement import KeyPlacement
from savepoints.writing.new_files import CopiedFile, LocalFile, NewFile, NewKeyedState, NewOperator, NewSubtask, path_in
from savepoints.writing.new_operator_state import new_operator_states, with_files_at
from savepoints.writing.repeated_entries import repeated_in
from savepoints.writing.sorted_rows import fewer_runs
from savepoints.writing.staged_entries import StagedEntries
from savepoints.writing.state_tasks import (
    Collected,
    CollectTask,
    RewriteTask,
    RowSource,
    ScratchPart,
    StoredState,
    ToldAs,
    WriteTask,
    all_runs,
)
from statebackend.api.descriptors import Descriptor
from statebackend.api.key_groups import KeyGroupRange, key_group_range_of_subtask
from statebackend.keyed.state_meta import (
    CANONICAL_BACKEND,
    KeyedStateMeta,
    StateFile,
    StateMeta,
    decode_meta,
    merge_metas,
)
from statebackend.operator_state import decode_operator_state
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["Run", "WritingContext", "copied_operator", "written_operator"]

Run = Callable[[Sequence[Any]], list[Any]]
"""Runs tasks, and gives what they return in their order."""


@frozen
class WritingContext:
    """What the operators of one savepoint share. ``run`` runs tasks, which work in ``scratch_directory``."""

    source: RestoredState | None
    max_parallelism: int
    parallelism: int | None
    scratch_directory: str
    now_ms: int
    run: Run
    known: tuple[TypeSerializer[Any], ...] = ()
    """Serializers of the program, of whose classes the functions of the plan are given records."""

    def stored(self, uid: str) -> OperatorState:
        """A stored operator. Raises `SavepointError` if it has records on their way, which no savepoint can hold."""
        assert self.source is not None
        operator = self.source.operator(uid)
        assert operator is not None
        for index, subtask in enumerate(operator.subtasks):
            if subtask.has_records_on_their_way:
                raise SavepointError(
                    f"subtask {index} of operator {uid!r} has records on their way among its state, which a savepoint "
                    f"cannot hold: take a savepoint of a checkpoint whose barriers were aligned, and rewrite that"
                )
        return operator


def copied_operator(draft: OperatorDraft, context: WritingContext) -> NewOperator:
    """An operator whose state is copied, or migrated as a start would, under the uid that it has from here on."""
    assert context.source is not None
    [origin] = draft.origins
    stored, file_system = context.stored(origin), context.source.file_system
    is_canonical = all(
        part is None or part.format == CANONICAL_BACKEND for part in (subtask.operator for subtask in stored.subtasks)
    ) and all(handle.backend == CANONICAL_BACKEND for handle in stored.keyed_handles)
    rows, operator_state_rows = Counter[str](), Counter[str]()
    if draft.registered or not is_canonical:
        exported = _exported(stored, context, draft.registered)
        if draft.registered:
            for one in exported:
                # A Counter's update adds, and keeps states without rows.
                rows.update(one.rows)
                operator_state_rows.update(one.operator_state_rows)
        states = tuple(one.state for one in exported)
        stored = OperatorState(stored.uid, stored.name, stored.max_parallelism, states)
        file_system = _scratch_store(context)
    files: list[NewFile] = []
    subtasks = []
    for subtask in stored.subtasks:
        keyed = None
        if subtask.keyed is not None:
            handle = subtask.keyed
            copies = [
                CopiedFile(path_in(draft.uid, file.path, draft.origins), file, file_system) for file in handle.files
            ]
            files += copies
            meta = decode_meta(handle.meta, len(handle.files))
            groups = KeyGroupRange(handle.key_group_start, handle.key_group_end)
            keyed = NewKeyedState(handle.state_id, groups, meta, tuple(one.path for one in copies))
        operator, operator_files = with_files_at(
            decode_operator_state(subtask.operator), lambda path: path_in(draft.uid, path, draft.origins), file_system
        )
        files += operator_files
        subtasks.append(NewSubtask(keyed, operator))
    return NewOperator(
        draft.uid, draft.name, tuple(subtasks), tuple(files), rows, operator_state_rows, {}, draft.origins
    )


def _exported(
    stored: OperatorState,
    context: WritingContext,
    registered: Sequence[tuple[Descriptor, TypeSerializer[Any]]],
) -> list[ExportedSubtask]:
    """The operator's subtasks in canonical form, in scratch space, their entries as these descriptors write them."""
    assert context.source is not None
    target = _scratch_store(context)
    tasks = [
        ExportTask(
            stored.uid,
            index,
            stored.max_parallelism,
            subtask,
            context.source.file_system,
            target,
            {},
            context.now_ms,
            registered=registered,
        )
        for index, subtask in enumerate(stored.subtasks)
    ]
    return context.run(tasks)


def _scratch_store(context: WritingContext) -> CheckpointFileSystem:
    return CheckpointFileSystem.from_uri(f"{context.scratch_directory}/exported")


def written_operator(draft: OperatorDraft, context: WritingContext) -> NewOperator:
    """An operator whose state has changed. Raises what reading, the plan's functions and the serializers raise."""
    return _OperatorWriting(draft, context).written()


@define
class _Part:
    """One subtask in the making: its files, and of each state what is in them."""

    key_groups: KeyGroupRange
    origin: KeyedStateHandle | None
    paths: list[str] = field(factory=list)
    states: list[StateMeta] = field(factory=list)

    def add(self, meta: StateMeta, paths: Sequence[str], state_id: str) -> None:
        references = tuple(StateFile(len(self.paths) + number, state_id) for number in range(len(paths)))
        self.paths += paths
        self.states.append(meta.with_files(references))


class _OperatorWriting:
    def __init__(self, draft: OperatorDraft, context: WritingContext) -> None:
        self._draft = draft
        self._context = context
        self._run = context.run
        self._writing_id = uuid.uuid4().hex
        self._files: list[NewFile] = []
        self._rows: dict[str, int] = {}
        self._earliest: dict[str, int] = {}
        self._left_out: dict[str, Counter[int]] = {}
        self._has_copied_timers = False
        self._stored = [context.stored(uid) for uid in draft.origins]
        self._parallelism = self._new_parallelism()
        self._is_aligned = (
            len(self._stored) == 1 and not draft.is_placed_anew and self._parallelism == self._stored[0].parallelism
        )

    def _new_parallelism(self) -> int:
        wanted = self._context.parallelism
        if wanted is None:
            wanted = max((one.parallelism for one in self._stored), default=1)
        return min(wanted, self._context.max_parallelism)

    def written(self) -> NewOperator:
        draft, parts = self._draft, self._parts()
        if draft.states:
            self._placement = None if self._keeps_key_groups else self._new_placement()
            for state in draft.states.values():
                self._write_state(state, parts)
        keyed = [self._keyed_state(part) for part in parts] if parts else [None] * self._parallelism
        operator_states, files, counts, left_out = new_operator_states(
            draft,
            self._stored,
            None if self._context.source is None else self._context.source.file_system,
            len(keyed),
            self._context.known,
        )
        subtasks = tuple(NewSubtask(*both) for both in zip(keyed, operator_states, strict=True))
        every = (*self._files, *files)
        return NewOperator(
            draft.uid,
            draft.name,
            subtasks,
            every,
            self._rows,
            counts,
            self._earliest,
            draft.origins,
            self._has_copied_timers,
            {**self._left_out, **left_out},
        )

    @property
    def _keeps_key_groups(self) -> bool:
        return bool(self._stored) and not self._draft.is_placed_anew and not self._has_given

    @property
    def _has_given(self) -> bool:
        return any(state.given for state in self._draft.states.values())

    def _new_placement(self) -> KeyPlacement:
        return KeyPlacement(self._draft.key_columns, self._context.max_parallelism)

    def _parts(self) -> list[_Part]:
        # Without a state it still has keys, whose types a start judges, and the next plan goes by.
        if self._draft.key_serializer is None:
            return []
        if self._is_aligned and len(self._stored[0].keyed_handles) == self._parallelism:
            return [
                _Part(KeyGroupRange(handle.key_group_start, handle.key_group_end), handle)
                for handle in self._stored[0].keyed_handles
            ]
        self._is_aligned = False
        highest = self._context.max_parallelism
        return [
            _Part(key_group_range_of_subtask(index, self._parallelism, highest), None)
            for index in range(self._parallelism)
        ]

    def _write_state(self, state: StateDraft, parts: Sequence[_Part]) -> None:
        name, scratch = state.schema.name, self._context.scratch_directory
        told = [ToldAs(self._draft.uid, name, index) for index in range(len(parts))]
        if self._is_aligned and not state.given and not state.may_collide and len(state.stored) == 1:
            [stored] = state.stored
            is_copy = not stored.steps and stored.schema.is_like(state.schema)
            if is_copy and all(part.origin is not None and part.origin.backend == CANONICAL_BACKEND for part in parts):
                self._copy(name, stored.state_name, parts)
                self._has_copied_timers |= state.schema.is_timers
                return
            rewrites = [
                RewriteTask(source, state.schema, scratch, one)
                for source, one in zip(self._sources(state), told, strict=True)
            ]
            self._take(name, self._run(rewrites), parts, ())
            return
        collected = self._collected(state)
        repeated, runs = repeated_in(self._draft.uid, state), fewer_runs(all_runs(collected), scratch)
        writes = [
            WriteTask(runs, state.schema, part.key_groups, repeated, scratch, one)
            for part, one in zip(parts, told, strict=True)
        ]
        self._take(name, self._run(writes), parts, collected)

    def _collected(self, state: StateDraft) -> list[Collected]:
        scratch, name = self._context.scratch_directory, state.schema.name
        given = [one for one in state.given if not isinstance(one, StagedEntries)]
        sources: list[RowSource] = [*self._sources(state), *given]
        collected: list[Collected] = self._run(
            [
                CollectTask(source, state.schema, self._placement, scratch, ToldAs(self._draft.uid, name, index))
                for index, source in enumerate(sources)
            ]
        )
        for one in state.given:
            if isinstance(one, StagedEntries):
                collected += one.collected(state.schema, self._context.max_parallelism, scratch)
        return collected

    def _sources(self, state: StateDraft) -> Iterator[StoredState]:
        source = self._context.source
        for one in state.stored:
            assert source is not None
            stored = self._context.stored(one.operator_uid)
            for handle in stored.keyed_handles:
                yield StoredState(
                    handle,
                    one.state_name,
                    source.file_system,
                    stored.max_parallelism,
                    one.schema,
                    one.steps,
                    joins_chunks=state.may_collide,
                    uncounted_steps=one.uncounted_steps,
                )

    def _copy(self, name: str, stored_name: str, parts: Sequence[_Part]) -> None:
        assert self._context.source is not None
        origins = self._draft.origins
        for part in parts:
            assert part.origin is not None
            meta = decode_meta(part.origin.meta, len(part.origin.files)).state(stored_name)
            if meta is None:
                continue
            files = [part.origin.files[one.index] for one in meta.files]
            copies = [
                CopiedFile(path_in(self._draft.uid, file.path, origins), file, self._context.source.file_system)
                for file in files
            ]
            self._files += copies
            renamed = StateMeta(name, meta.kind, meta.parts)
            part.add(renamed, [one.path for one in copies], self._writing_id)

    def _take(
        self, name: str, written: Sequence[ScratchPart], parts: Sequence[_Part], collected: Sequence[Collected]
    ) -> None:
        meta = self._merged_meta([*(one.meta for one in collected), *(one.meta for one in written)])
        directory = f"operators/{path_segment(self._draft.uid)}/{path_segment(name)}"
        for index, (one, part) in enumerate(zip(written, parts, strict=True)):
            paths = []
            if one.path is not None:
                # A file of an earlier savepoint that is copied may have the name without the end.
                paths = [f"{directory}/part-{index:05d}-{self._writing_id[:8]}.parquet"]
                self._files.append(LocalFile(paths[0], one.path))
            part.add(meta, paths, f"{self._writing_id}-{index}")
        self._rows[name] = sum(one.rows for one in written)
        left_out = [*(one.left_out for one in collected), *(one.left_out for one in written)]
        if any(left_out):
            self._left_out[name] = sum(left_out, Counter())
        earliest = [one.earliest_ms for one in written if one.earliest_ms is not None]
        if earliest:
            self._earliest[name] = min(earliest)

    def _merged_meta(self, metas: Sequence[StateMeta]) -> StateMeta:
        first = metas[0]
        if all(one is first or one.has_schema_of(first) for one in metas[1:]):
            return first
        merged = merge_metas([self._meta((one,)) for one in metas])
        assert merged is not None
        return merged.states[0]

    def _meta(self, states: tuple[StateMeta, ...]) -> KeyedStateMeta:
        assert self._draft.key_serializer is not None
        return KeyedStateMeta(self._draft.key_serializer.snapshot_configuration(), 0, states)

    def _keyed_state(self, part: _Part) -> NewKeyedState:
        state_id = uuid.uuid4().hex
        return NewKeyedState(state_id, part.key_groups, self._meta(tuple(part.states)), tuple(part.paths))
