"""Assigns operator state to the subtasks of a new run, by moving references to rows, never rows.

A pure function of the old subtasks' handles and the new parallelism, as Flink's
``RoundRobinOperatorStateRepartitioner``:

* *split*: unchanged if the parallelism is unchanged. Otherwise the elements of all subtasks, in order, are cut into one
  run per new subtask. The subtasks with one element more rotate over all states, so that loads differ by at most one,
  per state and in total.
* *union*: every subtask gets everything.
* *broadcast*: new subtask i gets the whole copy of old subtask ``i % old parallelism``.

Each subtask *carries* a share of an unregistered state. A carried union state is split like a list: exactly one subtask
carries each element, so that carrying does not multiply it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import field, frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import OpaqueStateHandle
from statebackend.state.errors import StateRestoreError
from statebackend.state.operator_state_descriptors import OperatorStateMode
from statebackend.state.operator_state_handles import (
    FileSlice,
    OperatorStateHandle,
    OperatorStateMeta,
    StatePart,
    check_overlaps,
    decode_operator_state,
)
from statebackend.state.state_meta import CANONICAL_BACKEND

Parts = tuple[StatePart, ...]


@frozen
class AssignedState:
    """One state for one new subtask: its ``content`` if it is registered, and the ``carried`` parts otherwise."""

    name: str
    mode: OperatorStateMode
    content: Parts
    carried: Parts


@frozen
class RestoredOperatorState:
    """The operator state that one subtask restores; picklable.

    ``may_refer`` means that later checkpoints in the same store may refer to the files; it is False for savepoints.
    """

    states: tuple[AssignedState, ...]
    file_system: CheckpointFileSystem
    may_refer: bool = field(kw_only=True)


def restored_operator_state(
    parts: Sequence[OpaqueStateHandle | None],
    file_system: CheckpointFileSystem,
    parallelism: int,
    decoded: Sequence[OperatorStateHandle] | None = None,
) -> tuple[RestoredOperatorState, ...]:
    """Redistribute the operator state of all old subtasks, in order, to the subtasks of the new run.

    ``decoded`` are the parts, if the caller has decoded them. Raises `StateRestoreError` for a malformed part, or for a
    state with different modes in different subtasks.
    """
    operators = [decode_operator_state(part) for part in parts] if decoded is None else decoded
    assigned = redistribute(operators, parallelism)
    may_refer = all(map(_may_refer, parts))
    return tuple(RestoredOperatorState(states, file_system, may_refer=may_refer) for states in assigned)


def continued_operator_state(
    parts: Sequence[OpaqueStateHandle | None], file_system: CheckpointFileSystem
) -> tuple[RestoredOperatorState, ...]:
    """Return each subtask's own state unchanged, for the next epoch of a run.

    Raises `StateRestoreError` for a malformed part.
    """
    continued = []
    for part in parts:
        states = tuple(
            AssignedState(state.name, state.mode, state.parts, state.parts)
            for state in decode_operator_state(part).states
        )
        continued.append(RestoredOperatorState(states, file_system, may_refer=_may_refer(part)))
    return tuple(continued)


def _may_refer(part: OpaqueStateHandle | None) -> bool:
    return part is None or part.format != CANONICAL_BACKEND


def redistribute(handles: Sequence[OperatorStateHandle], parallelism: int) -> tuple[tuple[AssignedState, ...], ...]:
    """Assign the states of the old subtasks, in order, to ``parallelism`` new subtasks.

    The time is proportional to states, slices and subtasks, not to elements.
    """
    if parallelism < 1:
        raise ValueError(f"parallelism is {parallelism}; it must be at least 1")
    assigned: list[list[AssignedState]] = [[] for _ in range(parallelism)]
    first = 0
    for name, mode in _modes(handles).items():
        pieces = [state.parts if (state := handle.state(name)) is not None else () for handle in handles]
        if mode is OperatorStateMode.BROADCAST:
            carried = _copies(pieces, parallelism)
        elif parallelism == len(handles):
            carried = [parts or _without_rows(pieces) for parts in pieces]
        else:
            carried = _redistributed(pieces, parallelism, first)
            first = (first + sum(part.row_count for parts in pieces for part in parts)) % parallelism
        everything = _merged(part for parts in pieces for part in parts)
        for subtask, parts in zip(assigned, carried, strict=True):
            content = everything if mode is OperatorStateMode.UNION else parts
            subtask.append(AssignedState(name, mode, content, parts))
    return tuple(tuple(states) for states in assigned)


def _modes(handles: Sequence[OperatorStateHandle]) -> dict[str, OperatorStateMode]:
    """The states of all subtasks, by name in order of first mention."""
    modes: dict[str, OperatorStateMode] = {}
    for handle in handles:
        for state in handle.states:
            known = modes.setdefault(state.name, state.mode)
            if known is not state.mode:
                raise StateRestoreError(
                    f"operator state {state.name!r} is a {known.value} state in one subtask and a "
                    f"{state.mode.value} state in another: these handles are not of one snapshot of one operator"
                )
    for name, mode in modes.items():
        if mode is OperatorStateMode.SPLIT:
            metas = [meta for handle in handles if (meta := handle.state(name)) is not None]
            check_overlaps(name, (part for meta in metas for part in meta.parts), 1)
    return modes


def _copies(pieces: Sequence[Parts], parallelism: int) -> list[Parts]:
    # A subtask that did not register the state has no copy; another subtask's copy replaces it.
    copies = [parts for parts in pieces if parts]
    return [pieces[index % len(pieces)] or copies[index % len(copies)] for index in range(parallelism)]


def _redistributed(pieces: Sequence[Parts], parallelism: int, first: int) -> list[Parts]:
    total = sum(part.row_count for parts in pieces for part in parts)
    base, remainder = divmod(total, parallelism)
    cutter = _Cutter(pieces)
    shares = []
    for index in range(parallelism):
        has_one_more = (index - first) % parallelism < remainder
        shares.append(_merged(cutter.take(base + has_one_more)) or _without_rows(pieces))
    return shares


class _Cutter:
    """Takes rows from the parts of all subtasks, in order."""

    def __init__(self, pieces: Sequence[Parts]) -> None:
        self._slices: Iterator[tuple[StatePart, FileSlice]] = (
            (part, one) for parts in pieces for part in parts for one in part.slices
        )
        self._rest: tuple[StatePart, FileSlice] | None = None

    def take(self, rows: int) -> Iterator[StatePart]:
        """Take the next ``rows`` rows, as parts of one slice each."""
        while rows > 0:
            part, one = self._rest or next(self._slices)
            stop = min(one.stop, one.start + rows)
            rows -= stop - one.start
            yield StatePart(part.envelopes, (FileSlice(one.file, one.start, stop),))
            self._rest = (part, FileSlice(one.file, stop, one.stop)) if stop < one.stop else None


def _merged(parts: Iterator[StatePart]) -> Parts:
    """Merge neighbouring parts with one schema, and slices that continue each other."""
    merged: list[StatePart] = []
    for part in parts:
        if merged and merged[-1].envelopes == part.envelopes:
            merged[-1] = StatePart(part.envelopes, _continued(merged[-1].slices, part.slices))
        else:
            merged.append(part)
    # A part without rows only holds the schema; it is not needed next to another part.
    return tuple(part for part in merged if part.slices) or tuple(merged[:1])


def _continued(slices: tuple[FileSlice, ...], more: tuple[FileSlice, ...]) -> tuple[FileSlice, ...]:
    if slices and more and slices[-1].file == more[0].file and slices[-1].stop == more[0].start:
        return (*slices[:-1], FileSlice(slices[-1].file, slices[-1].start, more[0].stop), *more[1:])
    return slices + more


def _without_rows(pieces: Sequence[Parts]) -> Parts:
    """The schema of the state, for a subtask that gets no rows of it."""
    return (StatePart(next(part for parts in pieces for part in parts).envelopes),)


def operator_state_metas(operators: Sequence[OperatorStateHandle]) -> tuple[OperatorStateMeta, ...]:
    """Merge the operator states of all subtasks into one list, to check descriptors before anything changes.

    Raises `StateRestoreError` for a state with different modes in different subtasks.
    """
    metas = []
    for name, mode in _modes(operators).items():
        states = [state for operator in operators if (state := operator.state(name)) is not None]
        metas.append(OperatorStateMeta(name, mode, _merged(part for state in states for part in state.parts)))
    return tuple(metas)
