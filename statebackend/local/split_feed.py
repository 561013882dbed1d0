"""A replayable source as what a source of a run reads, and its positions as state.

Splits are read in turns, a batch of each. A position counts as read when its records have been sent on: what was given
to the source and not read when a barrier came is read again behind a restore. The positions are an operator state under
the uid of the source, a list that is split: `name of the split, position`.
"""

from __future__ import annotations

import operator
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import define, evolve, field, frozen

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import path_segment
from statebackend.checkpoint.state_handles import OperatorState, SubtaskState
from statebackend.local.network.subtasks import SourceSubtask
from statebackend.local.operator import rows_of
from statebackend.local.source import LocalSource
from statebackend.savepoint.restored_state import RestoredState
from statebackend.state.operator_state_backend import (
    OperatorStateBackend,
    OperatorStateBackendParameters,
    OperatorStateSnapshotTask,
)
from statebackend.state.operator_state_descriptors import SplitListStateDescriptor
from statebackend.state.operator_state_handles import encode_operator_state
from statebackend.state.operator_state_redistribution import restored_operator_state
from statebackend.streaming.errors import JobDefinitionError, JobRestoreError, StreamJobError, format_value
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.record_copies import copied_records
from statebackend.streaming.stream_graph import ReplayableSource, SplitRead

__all__ = ["ReplayedSource", "SplitFeed", "SplitPositions", "SplitWork", "positions_of"]

_STATE: Final = SplitListStateDescriptor("splits", tuple[str, int])


@frozen
class ReplayedSource:
    """A source of the program's own, and the schema of its records if that is declared."""

    source: ReplayableSource = field(eq=False)
    schema: DeclaredSchema | None = None
    elements: tuple[Any, ...] = field(default=(), init=False)
    """None are known before it is read."""


@define(eq=False)
class SplitWork:
    """The positions of a source at a barrier, to be written and acknowledged; ``made`` is it without them."""

    checkpoint_id: int
    task: TaskId
    made: Acknowledgement
    _snapshot: OperatorStateSnapshotTask
    _state: SubtaskState = field(factory=SubtaskState, init=False)

    def write(self) -> None:
        """Writes them, on any thread."""
        self._state = SubtaskState(operator=encode_operator_state(self._snapshot.run().handle))

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._snapshot.cancel()

    @property
    def left_behind(self) -> Sequence[SubtaskState]:
        """Nothing: they are in one piece."""
        return ()

    def acknowledgement(self, of_nothing: Callable[[TaskId, int], Acknowledgement]) -> Acknowledgement:
        """What is acknowledged when it is written."""
        return evolve(self.made, state=self._state)


class SplitPositions:
    """How far the splits of a source are read, and that as state; belongs to the thread of the run."""

    def __init__(self, uid: str, source: ReplayableSource, restored: RestoredState | None, own: CheckpointFileSystem):
        """Raises `JobRestoreError` if a split is gone that is not read to its end, for all that is known."""
        former = None if restored is None else restored.operator(uid)
        files = own if restored is None else restored.file_system
        self._backend = OperatorStateBackend(
            OperatorStateBackendParameters(
                operator_uid=uid,
                file_system=own,
                file_prefix=f"shared/{path_segment(uid)}/00000",
                restore=_restored(former, files),
            )
        )
        self._state = self._backend.get_state(_STATE)
        known = dict(self._state.get() or ())
        there = _checked_splits(uid, source.splits())
        gone = sorted(known.keys() - there.keys())
        if gone:
            raise JobRestoreError(
                f"source {uid!r} has no split {gone[0]!r} any more, which was read up to position {known[gone[0]]}: "
                f"what follows there would be lost. Bring it back, or give the source another uid and pass "
                f"allow_non_restored_state=True to read all splits again"
            )
        self.now: dict[str, int] = {**there, **known}
        """The position of each split behind what was sent on."""

    def freeze(self, checkpoint_id: int, task: TaskId, made: Acknowledgement) -> SplitWork:
        """The positions as they are now, to be written."""
        self._state.update(sorted(self.now.items()))
        return SplitWork(checkpoint_id, task, made, self._backend.prepare_snapshot(checkpoint_id, uuid.uuid4().hex))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Later checkpoints may refer to the files of this one."""
        self._backend.notify_checkpoint_complete(checkpoint_id)

    def close(self) -> None:
        """Gives up what is being written."""
        self._backend.close()


class SplitFeed:
    """A `BatchFeed` of a replayable source, from its positions on."""

    def __init__(self, uid: str, source: ReplayedSource, positions: SplitPositions) -> None:
        self._uid = uid
        self._source = source
        self._positions = positions
        self._next = dict(positions.now)
        self._open = deque(sorted(self._next))

    def feed_next(self, source: SourceSubtask[LocalSource], most: int) -> bool:
        may_be_more = self._feed_next(source, most)
        # Whoever is at its end holds nobody of its group.
        source.read_on(bool(self._open))
        return may_be_more

    def _feed_next(self, source: SourceSubtask[LocalSource], most: int) -> bool:
        for _ in range(len(self._open)):
            split = self._open[0]
            self._open.rotate(-1)
            before = self._next[split]
            got = self._source.source.read(split, before, most)
            self._next[split] = position = self._position_behind(got, split, before, most)
            if got.is_at_end:
                self._open.remove(split)
            rows = self._records(got.records)
            if rows or position > before:
                source.feed(partial(self._read, split=split, position=position, rows=rows))
                return True
        return bool(self._open)

    def _records(self, given: Collection[Any]) -> Sequence[Any]:
        """Records of the job, which may change them; the source may use its own objects again."""
        where, schema = f"source {self._uid!r}", self._source.schema
        return copied_records(list(given), where) if schema is None else rows_of(list(given), schema, where)

    def _position_behind(self, got: Any, split: str, before: int, most: int) -> int:
        """The position that reading a split has come to; raises `StreamJobError` for what cannot be."""
        where = f"source {self._uid!r}, split {split!r}: reading {most} records from position {before} gave"
        if not isinstance(got, SplitRead) or not isinstance(got.records, Collection):
            raise StreamJobError(f"{where} {format_value(got, 80)}, which is no SplitRead of records")
        position = _position(got.position)
        if position is None:
            raise StreamJobError(f"{where} the position {format_value(got.position, 80)}; {_A_POSITION}")
        if position < before or len(got.records) > most:
            raise StreamJobError(f"{where} {len(got.records)} and position {position}; a position never goes back")
        if len(got.records) and position == before:
            raise StreamJobError(
                f"{where} {len(got.records)} and the same position, from which they would be read once more"
            )
        return position

    def _read(self, source: LocalSource, split: str, position: int, rows: Sequence[Any]) -> None:
        source.read(rows)
        self._positions.now[split] = position
        source.emit_periodically()


_A_POSITION: Final = "a position is a whole number of 64 bits"

_POSITIONS: Final = 1 << 63


def _position(given: object) -> int | None:
    """A position as Python has it; None for what is none."""
    try:
        position = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        return None
    return position if not isinstance(given, bool) and -_POSITIONS <= position < _POSITIONS else None


def _checked_splits(uid: str, given: object) -> dict[str, int]:
    """What a source says of its splits; raises `JobDefinitionError` for what cannot be."""
    found: dict[str, int] = {}
    for name, begin in given.items() if isinstance(given, Mapping) else [(None, None)]:
        position = _position(begin)
        if not isinstance(name, str) or position is None:
            raise JobDefinitionError(
                f"source {uid!r}: splits() gave {format_value(given, 200)}; it "
                f"gives the position at which each split begins "
                f"by the name of the split, such as {{'file-1': 0}}, and {_A_POSITION}"
            )
        found[name] = position
    return found


def _restored(former: OperatorState | None, files: CheckpointFileSystem) -> Any:
    if former is None:
        return None
    [whole] = restored_operator_state([subtask.operator for subtask in former.subtasks], files, 1)
    return whole if whole.states else None


def positions_of(
    sources: Mapping[str, Any], restored: RestoredState | None, own: CheckpointFileSystem
) -> dict[str, SplitPositions]:
    """The positions of all replayable sources of a run, by uid."""
    return {
        uid: SplitPositions(uid, one.source, restored, own)
        for uid, one in sources.items()
        if isinstance(one, ReplayedSource)
    }
