"""Writes one operator of the new savepoint and chooses the cheapest way for each state.

If the operator keeps its key groups, it keeps its subtasks:

| Change of the state | Work |
|---|---|
| none | its files are copied; if the operator has no changes, all its files |
| entries change, their order does not | each part is rewritten separately |
| entries from the plan or from several operators | everything is collected, sorted and written part by part |

If keys get other key groups (another `max_parallelism`, other keys, split or merged operators), the new parallelism
determines the parts and every state is collected. Files of a checkpoint have the format of a backend. They are exported
or rewritten, never copied.

If two entries have the same address, the merge function merges their values. Equal timers become one timer. Otherwise
the entries are rejected. Session state is special: two overlapping or touching sessions of one key must become one
session with one timer. A plan changes each state separately and cannot do that, so such keys are rejected.

Operator state is distributed, filtered or replaced; unfiltered state is copied. Elements from the plan form one file
that the subtasks share: each subtask refers to its range of rows, or for broadcast state to all rows.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
from attrs import define, evolve, field, frozen

from snapshots.errors import SerializationError, format_value
from statebackend.checkpoint.errors import SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import path_segment
from statebackend.checkpoint.state_handles import KeyedStateHandle, OperatorState
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import EntryError, PlanError, RepeatedKeyError, failed_function
from statebackend.savepoint.export import ExportedSubtask, ExportTask
from statebackend.savepoint.foreign.flink_files import FlinkFiles
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.rewrite.drafts import Merge, OperatorDraft, OperatorStateDraft, PlannedElements, StateDraft
from statebackend.savepoint.rewrite.entry_codec import decoded, encoded, key_of, times_after_change
from statebackend.savepoint.rewrite.key_placement import KeyPlacement
from statebackend.savepoint.rewrite.new_files import (
    CopiedFile,
    FileInMemory,
    LocalFile,
    NewFile,
    NewKeyedState,
    NewOperator,
    NewSubtask,
    path_in,
)
from statebackend.savepoint.rewrite.sorted_rows import MergingRepeated, RejectingRepeated, Repeated, fewer_runs
from statebackend.savepoint.rewrite.staged_entries import StagedEntries
from statebackend.savepoint.rewrite.state_tasks import (
    Collected,
    CollectTask,
    ProgressLabel,
    RewriteTask,
    RowSource,
    ScratchPart,
    StoredState,
    WriteTask,
    all_runs,
)
from statebackend.savepoint.tables.state_tables import decoded_cell
from statebackend.state.descriptors import Descriptor
from statebackend.state.key_groups import KeyGroupRange, key_group_range_of_subtask
from statebackend.state.operator_state_descriptors import OperatorStateMode
from statebackend.state.operator_state_handles import (
    FileSlice,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorStateRow,
    StatePart,
    decode_operator_state,
    encoded_rows,
    envelopes_of,
    read_slices,
)
from statebackend.state.operator_state_redistribution import redistribute
from statebackend.state.state_meta import (
    CANONICAL_BACKEND,
    KeyedStateMeta,
    StateFile,
    StateMeta,
    decode_meta,
    merge_metas,
)
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.times.timers import TimeWindow, TimeWindowSerializer

__all__ = [
    "Run",
    "WritingContext",
    "are_sessions",
    "copied_operator",
    "new_operator_states",
    "overlap_of_sessions",
    "repeated_in",
    "with_files_at",
    "written_operator",
]


Pair = tuple[TimeWindow, TimeWindow]

_PAIR_OF_WINDOWS = TupleSerializer((TimeWindowSerializer(), TimeWindowSerializer()))


def are_sessions(serializers: Mapping[str, TypeSerializer[Any]]) -> bool:
    """Whether list elements with these serializers are session windows."""
    return list(serializers.values()) == [_PAIR_OF_WINDOWS]


def overlap_of_sessions(sessions: Sequence[Pair]) -> str | None:
    """Describe two sessions of a key that overlap or touch, and how to fix it; None if there are none."""
    for (one, _), (other, _) in pairwise(sorted(sessions)):
        if other.start <= one.end:
            return (
                f"the sessions {format_value(one)} and {format_value(other)} would become one, and a plan cannot merge "
                "their contents. Let them end first (stop the job with drain=True), or leave one out in all states "
                "(keep_entries)"
            )
    return None


def repeated_in(operator_uid: str, state: StateDraft) -> Repeated | None:
    """Return the function for sorted rows with the same address, or None if there are no such rows."""
    if not state.may_collide:
        return None
    if state.schema.is_queue:
        return MergingRepeated(_first)
    if state.merge is not None:
        return MergingRepeated(_Merging(state.schema, state.merge))
    return RejectingRepeated(_Rejection(operator_uid, state.schema))


def _first(rows: pa.RecordBatch) -> bytes:
    """Return the first of equal timers. Timers have no value."""
    return b""


@frozen
class _Merging:
    """Merges the values of one address pairwise, in their order."""

    schema: EntrySchema
    function: Merge

    def __call__(self, rows: pa.RecordBatch) -> bytes:
        schema = self.schema
        values = decoded(schema, rows, "value")
        # The function may modify its arguments.
        elements = list(chain.from_iterable(values)) if schema.is_list else []
        try:
            merged = reduce(self.function, values)
        except Exception as error:
            # Add state and key to the error of the user's function.
            raise failed_function(schema.name, key_of(schema, rows), error) from error
        overlap = overlap_of_sessions(merged) if are_sessions(schema.serializers) else None
        if overlap is not None:
            raise PlanError(
                f"state {schema.name!r}, key {format_value(key_of(schema, rows))}: {overlap}. Nothing was written"
            )
        columns: dict[str, list[Any]] = {"value": [merged]}
        if schema.is_timed:
            times = decoded(schema, rows, "last_access_ms")
            columns["last_access_ms"] = [
                times_after_change(elements, merged, sum(times, ())) if schema.is_list else max(times)
            ]
        value: bytes = encoded(schema, columns, lambda: [key_of(schema, rows)])["value"][0].as_py()
        return value


@frozen
class _Rejection:
    """Creates the error for two entries with the same address."""

    uid: str
    schema: EntrySchema

    def __call__(self, rows: pa.RecordBatch) -> RepeatedKeyError:
        schema = self.schema
        place = [f"key {format_value(key_of(schema, rows))}"]
        place += [
            f"{column.replace('_', ' ')} {format_value(decoded(schema, rows.slice(0, 1), column)[0])}"
            for column in ("namespace", "user_key")
            if column in rows.schema.names
        ]
        return RepeatedKeyError(
            f"operator {self.uid!r}, state {schema.name!r}: two entries have the same {', '.join(place)}. Nothing was "
            f"written. Leave one of them out, or pass a function of two values that makes one of them (merge)"
        )


Result = tuple[list[OperatorStateHandle], list[NewFile], dict[str, int], dict[str, Counter[int]]]


@frozen
class _Reading:
    """The source of stored elements, the known record classes, and the numbers of removed elements by change."""

    source: CheckpointFileSystem
    known: tuple[TypeSerializer[Any], ...]
    left_out: Counter[int]


def new_operator_states(
    draft: OperatorDraft,
    stored: Sequence[OperatorState],
    source: CheckpointFileSystem | None,
    parallelism: int,
    known: Sequence[TypeSerializer[Any]] = (),
) -> Result:
    """Return the operator state of each subtask, its files, the rows of each state, and the removed rows by change.

    Predicates receive records of the classes in ``known``.
    """
    files: dict[str, NewFile] = {}
    handles = [OperatorStateHandle() for _ in range(parallelism)]
    counts: dict[str, int] = {}
    left_out = {
        one.name: Counter(dict.fromkeys(numbers, 0))
        for one in draft.operator_states.values()
        if (numbers := [number for _, number in one.predicates])
    }
    for state in draft.operator_states.values():
        if state.given is not None:
            metas = _given(draft.uid, state.name, state.given, parallelism, files)
        else:
            assert source is not None
            reading = _Reading(source, tuple(known), left_out.get(state.name, Counter()))
            metas = _stored(draft, state, stored, reading, parallelism, files)
        counts[state.name] = sum(meta.row_count for meta in metas)
        handles = [evolve(one, states=(*one.states, meta)) for one, meta in zip(handles, metas, strict=True)]
    return handles, list(files.values()), counts, left_out


def with_files_at(
    handle: OperatorStateHandle, place: Callable[[str], str], source: CheckpointFileSystem
) -> tuple[OperatorStateHandle, list[NewFile]]:
    """Return the state with its files at ``place``."""
    files: dict[str, NewFile] = {}
    states = tuple(
        evolve(state, parts=tuple(_copied(part, place, source, files) for part in state.parts))
        for state in handle.states
    )
    return OperatorStateHandle(states), list(files.values())


def _copied(
    part: StatePart, place: Callable[[str], str], source: CheckpointFileSystem, files: dict[str, NewFile]
) -> StatePart:
    slices = []
    for one in part.slices:
        path = place(one.file.path)
        file: CopiedFile | FileInMemory = CopiedFile(path, one.file, source)
        if isinstance(source, FlinkFiles):
            file = FileInMemory(path, source.read_file(one.file))
        files[path] = file
        slices.append(FileSlice(file.handle, one.start, one.stop))
    return evolve(part, slices=tuple(slices))


def _stored(
    draft: OperatorDraft,
    state: OperatorStateDraft,
    stored: Sequence[OperatorState],
    reading: _Reading,
    parallelism: int,
    files: dict[str, NewFile],
) -> list[OperatorStateMeta]:
    handles = []
    for operator_uid, name in state.stored:
        [operator] = [one for one in stored if one.uid == operator_uid]
        for subtask in operator.subtasks:
            meta = decode_operator_state(subtask.operator).state(name)
            handles.append(OperatorStateHandle(() if meta is None else (evolve(meta, name=state.name),)))
    parts: list[tuple[StatePart, ...]]
    if len(handles) == parallelism:
        parts = [tuple(part for meta in one.states for part in meta.parts) for one in handles]
        envelopes = next(own for own in parts if own)[0].envelopes
        parts = [own or (StatePart(envelopes),) for own in parts]
    else:
        parts = [one[0].carried for one in redistribute(handles, parallelism)]

    def place(path: str) -> str:
        return path_in(draft.uid, path, draft.origins)

    metas = []
    for index, own in enumerate(parts):
        if state.predicates:
            kept = tuple(
                _filtered(draft.uid, state, part, f"part-{index:05d}-{number}", reading, files)
                for number, part in enumerate(own)
            )
        else:
            kept = tuple(_copied(part, place, reading.source, files) for part in own)
        metas.append(OperatorStateMeta(state.name, state.mode, kept))
    return metas


def _filtered(
    uid: str,
    state: OperatorStateDraft,
    part: StatePart,
    stem: str,
    reading: _Reading,
    files: dict[str, NewFile],
) -> StatePart:
    role = "key" if state.mode is OperatorStateMode.BROADCAST else "element"
    serializer = restored_with(part.snapshot(state.name, role), *reading.known)
    rows = []
    for key, value in read_slices(reading.source, part.slices):
        cell = (key if state.mode is OperatorStateMode.BROADCAST else value) or b""
        element = decoded_cell(state.name, serializer, cell)
        rejecting = (number for predicate, number in state.predicates if not _holds(predicate, element, state.name))
        number = next(rejecting, None)
        if number is None:
            rows.append((key, value))
        else:
            reading.left_out[number] += 1
    return _part_of(uid, state.name, state.mode, part.envelopes, rows, stem, files)


def _holds(predicate: Callable[[Any], bool], element: Any, name: str) -> bool:
    try:
        flag = predicate(element)
    except Exception as error:
        raise PlanError(
            f"operator state {name!r}, {format_value(element)}: a function of the plan failed with "
            f"{type(error).__name__}: {error}. Nothing was written"
        ) from error
    if flag is not True and flag is not False:
        raise PlanError(f"operator state {name!r}: a predicate returned {format_value(flag)}, neither True nor False")
    return flag


def _part_of(
    uid: str,
    name: str,
    mode: OperatorStateMode,
    envelopes: Mapping[str, bytes],
    rows: Sequence[OperatorStateRow],
    stem: str,
    files: dict[str, NewFile],
) -> StatePart:
    if not rows:
        return StatePart(envelopes)
    # Add a suffix: a copied file of an earlier savepoint may have the same name.
    own = uuid.uuid4().hex[:16]
    path = f"operators/{path_segment(uid)}/operator={mode.value}/{path_segment(name)}/{stem}-{own}.parquet"
    file = FileInMemory(path, encoded_rows(rows))
    files[path] = file
    return StatePart(envelopes, (FileSlice(file.handle, 0, len(rows)),))


def _given(
    uid: str, name: str, given: PlannedElements, parallelism: int, files: dict[str, NewFile]
) -> list[OperatorStateMeta]:
    descriptor = given.descriptor
    serializers = descriptor.serializers
    rows = _broadcast_rows(given) if descriptor.mode is OperatorStateMode.BROADCAST else _list_rows(given)
    # Serializers may learn types while they write, so take their snapshots afterwards.
    part = _part_of(uid, name, descriptor.mode, envelopes_of(serializers), rows, "part-00000", files)
    if descriptor.mode is OperatorStateMode.BROADCAST or not part.slices:
        return [OperatorStateMeta(name, descriptor.mode, (part,))] * parallelism
    [whole] = part.slices
    bounds = [whole.stop * index // parallelism for index in range(parallelism + 1)]
    runs = [(FileSlice(whole.file, start, stop),) if start < stop else () for start, stop in itertools.pairwise(bounds)]
    return [OperatorStateMeta(name, descriptor.mode, (evolve(part, slices=run),)) for run in runs]


def _list_rows(given: PlannedElements) -> list[OperatorStateRow]:
    if isinstance(given.elements, (Mapping, str, bytes)) or not isinstance(given.elements, Iterable):
        raise EntryError(
            f"operator state {given.descriptor.name!r}: {format_value(given.elements)} is not an iterable of "
            "list elements"
        )
    serializer = given.descriptor.serializers["element"]
    rows: list[OperatorStateRow] = []
    for position, element in enumerate(given.elements):
        if element is None:
            raise EntryError(f"operator state {given.descriptor.name!r}: [{position}]: None cannot be an element")
        rows.append((None, _encoded(serializer, element, given.descriptor.name)))
    return rows


def _broadcast_rows(given: PlannedElements) -> list[OperatorStateRow]:
    if not isinstance(given.elements, Mapping):
        raise EntryError(
            f"operator state {given.descriptor.name!r}: the entries of a broadcast state must be a mapping"
        )
    keys, values = (given.descriptor.serializers[role] for role in ("key", "value"))
    name = given.descriptor.name
    return [
        (_encoded(keys, key, name), None if value is None else _encoded(values, value, name))
        for key, value in given.elements.items()
    ]


def _encoded(serializer: Any, value: Any, name: str) -> bytes:
    try:
        encoded: bytes = serializer.to_bytes(value)
    except SerializationError as error:
        raise EntryError(f"operator state {name!r}: {error}") from error
    return encoded


Run = Callable[[Sequence[Any]], list[Any]]
"""Runs tasks and returns their results in order."""


@frozen
class WritingContext:
    """The settings that the operators of one savepoint share. ``run`` runs tasks, which use ``scratch_directory``."""

    source: RestoredState | None
    max_parallelism: int
    parallelism: int | None
    scratch_directory: str
    now_ms: int
    run: Run
    known: tuple[TypeSerializer[Any], ...] = ()
    """Serializers of the program. The functions of the plan receive records of their classes."""

    def stored(self, uid: str) -> OperatorState:
        """Return a stored operator. Raises `SavepointError` for in-flight records, which savepoints do not support."""
        assert self.source is not None
        operator = self.source.operator(uid)
        assert operator is not None
        for index, subtask in enumerate(operator.subtasks):
            if subtask.has_in_flight_records:
                raise SavepointError(
                    f"subtask {index} of operator {uid!r} has records in flight among its state, which a savepoint "
                    f"cannot hold: take a savepoint of a checkpoint with aligned barriers, and rewrite that"
                )
        return operator


def copied_operator(draft: OperatorDraft, context: WritingContext) -> NewOperator:
    """Copy an operator's state to its new uid, or migrate it as the start of a job does."""
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
                # Counter.update adds the numbers, also for states without rows.
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
    """Export the subtasks in canonical form to scratch space, migrated to the descriptors."""
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
    """Write a changed operator. Raises errors of reading, of the plan's functions and of serializers."""
    return _OperatorWriting(draft, context).written()


@define
class _Part:
    """One subtask under construction: its files and the states in them."""

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
            len(self._stored) == 1 and not draft.has_new_key_groups and self._parallelism == self._stored[0].parallelism
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
        return bool(self._stored) and not self._draft.has_new_key_groups and not self._has_given

    @property
    def _has_given(self) -> bool:
        return any(state.given for state in self._draft.states.values())

    def _new_placement(self) -> KeyPlacement:
        return KeyPlacement(self._draft.key_columns, self._context.max_parallelism)

    def _parts(self) -> list[_Part]:
        # An operator without state still has a key type, which a start checks and later plans use.
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
        labels = [ProgressLabel(self._draft.uid, name, index) for index in range(len(parts))]
        if self._is_aligned and not state.given and not state.may_collide and len(state.stored) == 1:
            [stored] = state.stored
            is_copy = not stored.steps and stored.schema.is_like(state.schema)
            if is_copy and all(part.origin is not None and part.origin.backend == CANONICAL_BACKEND for part in parts):
                self._copy(name, stored.state_name, parts)
                self._has_copied_timers |= state.schema.is_timers
                return
            rewrites = [
                RewriteTask(source, state.schema, scratch, one)
                for source, one in zip(self._sources(state), labels, strict=True)
            ]
            self._take(name, self._run(rewrites), parts, ())
            return
        collected = self._collected(state)
        repeated, runs = repeated_in(self._draft.uid, state), fewer_runs(all_runs(collected), scratch)
        writes = [
            WriteTask(runs, state.schema, part.key_groups, repeated, scratch, one)
            for part, one in zip(parts, labels, strict=True)
        ]
        self._take(name, self._run(writes), parts, collected)

    def _collected(self, state: StateDraft) -> list[Collected]:
        scratch, name = self._context.scratch_directory, state.schema.name
        given = [one for one in state.given if not isinstance(one, StagedEntries)]
        sources: list[RowSource] = [*self._sources(state), *given]
        collected: list[Collected] = self._run(
            [
                CollectTask(source, state.schema, self._placement, scratch, ProgressLabel(self._draft.uid, name, index))
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
                # Add a suffix: a copied file of an earlier savepoint may have the same name.
                paths = [f"{directory}/part-{index:05d}-{self._writing_id[:8]}.parquet"]
                self._files.append(LocalFile(paths[0], one.path))
            part.add(meta, paths, f"{self._writing_id}-{index}")
        self._rows[name] = sum(one.entries for one in written)
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
