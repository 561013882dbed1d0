"""The state without keys of a new savepoint: dealt out, filtered, given anew; what nobody filters is copied as files.

Elements that a plan gives are one file, which the subtasks share: of a list each refers to its run of rows, of a
broadcast state each to all of them.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from checkpointing.handles.operator_states import OperatorState
from checkpointing.handles.relative_path import path_segment
from checkpointing.storage.file_system import CheckpointFileSystem
from savepoints.tabular.operator_state_columns import decoded_cell
from savepoints.writing.drafts import GivenElements, OperatorDraft, OperatorStateDraft
from savepoints.writing.errors import EntryError, PlanError
from savepoints.writing.new_files import CopiedFile, FileInMemory, NewFile, path_in, relocated
from snapshots.errors import SerializationError
from snapshots.value_text import shown
from statebackend.api.operator_state_descriptors import OperatorStateMode
from statebackend.operator_state import OperatorStateHandle, OperatorStateMeta, decode_operator_state
from statebackend.operator_state.operator_state_handles import FileSlice, StatePart, envelopes_of
from statebackend.operator_state.operator_state_rows import OperatorStateRow, encoded_rows, read_slices
from statebackend.operator_state.redistribution import redistribute
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["new_operator_states", "with_files_at"]

Result = tuple[list[OperatorStateHandle], list[NewFile], dict[str, int], dict[str, Counter[int]]]


@frozen
class _Reading:
    """Where stored elements are read from, as records of which classes, and how many each change has left out."""

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
    """The operator state of each subtask, the files it is in, the rows of each state, and of those that elements are
    left out of how many, by the number of the change. Predicates are given records of the classes of ``known``.
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
    """The same state, its files copied to where ``place`` says."""
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
        files[path] = CopiedFile(path, one.file, source)
        slices.append(FileSlice(relocated(one.file, path), one.start, one.stop))
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
        refusing = (number for predicate, number in state.predicates if not _holds(predicate, element, state.name))
        number = next(refusing, None)
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
            f"operator state {name!r}, {shown(element)}: a function of the plan failed with {type(error).__name__}: "
            f"{error}. Nothing was written"
        ) from error
    if flag is not True and flag is not False:
        raise PlanError(f"operator state {name!r}: a predicate returned {shown(flag)}, neither True nor False")
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
    # A file of an earlier savepoint that is copied may have any name that follows from the state and the part.
    own = uuid.uuid4().hex[:16]
    path = f"operators/{path_segment(uid)}/operator={mode.value}/{path_segment(name)}/{stem}-{own}.parquet"
    file = FileInMemory(path, encoded_rows(rows))
    files[path] = file
    return StatePart(envelopes, (FileSlice(file.handle, 0, len(rows)),))


def _given(
    uid: str, name: str, given: GivenElements, parallelism: int, files: dict[str, NewFile]
) -> list[OperatorStateMeta]:
    descriptor = given.descriptor
    serializers = descriptor.serializers
    rows = _broadcast_rows(given) if descriptor.mode is OperatorStateMode.BROADCAST else _list_rows(given)
    # What serializers have learned while they wrote is in what they are behind it.
    part = _part_of(uid, name, descriptor.mode, envelopes_of(serializers), rows, "part-00000", files)
    if descriptor.mode is OperatorStateMode.BROADCAST or not part.slices:
        return [OperatorStateMeta(name, descriptor.mode, (part,))] * parallelism
    [whole] = part.slices
    bounds = [whole.stop * index // parallelism for index in range(parallelism + 1)]
    runs = [(FileSlice(whole.file, start, stop),) if start < stop else () for start, stop in itertools.pairwise(bounds)]
    return [OperatorStateMeta(name, descriptor.mode, (evolve(part, slices=run),)) for run in runs]


def _list_rows(given: GivenElements) -> list[OperatorStateRow]:
    if isinstance(given.elements, (Mapping, str, bytes)) or not isinstance(given.elements, Iterable):
        raise EntryError(
            f"operator state {given.descriptor.name!r}: {shown(given.elements)} is no iterable of elements of a list"
        )
    serializer = given.descriptor.serializers["element"]
    rows: list[OperatorStateRow] = []
    for position, element in enumerate(given.elements):
        if element is None:
            raise EntryError(f"operator state {given.descriptor.name!r}: [{position}]: None cannot be an element")
        rows.append((None, _encoded(serializer, element, given.descriptor.name)))
    return rows


def _broadcast_rows(given: GivenElements) -> list[OperatorStateRow]:
    if not isinstance(given.elements, Mapping):
        raise EntryError(
            f"operator state {given.descriptor.name!r}: entries of a broadcast state are given as a mapping"
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
