"""Spark's offset log of a job directory: the order of its sources, and its rewrite in the order of the job.

    spark/                     the log, with `source-order.json`
    spark-rewritten/          the rewritten log, until it replaces the old one
    set-aside/spark-<n>/       the old log

Sources are matched by uid, and Spark's sources of one uid by their order. A uid that the program no longer has is
rejected unless the program drops it. A new uid is read from its beginning.

Spark numbers sources by position. If the program has other sources, or another order, each would get the position of
another source. So the log is rewritten before Spark reads it: every batch that Spark knows, the planned one, and those
that a rollback may need.

    former log, of a and b          the log of b, c and a, where c is new
    offsets/7  {"logOffset":4}      offsets/7  {"logOffset":2}
               {"logOffset":2}                 -
                                               {"logOffset":4}
    sources/0/...  of a             sources/0/...  of b
    sources/1/...  of b             sources/2/...  of a

The new log is written next to the old one, which is then moved away and replaced. A crash before that leaves a new log
that is deleted and rewritten, since the program may have changed. A crash between the two moves leaves the new log
only, which is valid. So there is always one complete log.

`check_schemas` compares the columns of each source with those it was read with, since unread data may be older:

    a column                                  unread data                   compatibility result
    ----------------------------------------  ----------------------------  ------------------------------------------
    unchanged, at any position                is read                       compatible
    added                                     has nulls in it               compatible
    removed                                   is not read for it            compatible: the program does not name it
    widened: an integer, a decimal with       is read as the wider type     compatible
      more digits, a float to a double
    of another type                           fails, or has nulls           incompatible
    some removed and some added               a renamed column has nulls    incompatible: the rename is ambiguous

The same holds for struct fields, and inside arrays and maps. Nullability is ignored. A source without a known
schema is compatible.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any, Final

from attrs import evolve, frozen

from snapshots.errors import format_value
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import SOURCE_PROGRESS_DIRECTORY, ReadSource, WatermarkState
from statebackend.checkpoint.store.checkpoint_directories import SET_ASIDE_DIRECTORY
from statebackend.checkpoint.store.job_directory import write_origin
from statebackend.checkpoint.store.job_files import end_no_data_epoch
from statebackend.checkpoint.store.savepoint_directory import SavedSourceProgress
from statebackend.savepoint.restored_state import RestoredState
from statebackend.spark.sources.progress import (
    SOURCE_ORDER_FILE_NAME,
    STAGING_PREFIX,
    Schema,
    SourceOrder,
    appear_at_once,
    new_source_log,
    newest_planned_batch,
    read_offsets,
    read_source_order,
    restore_source_progress,
    source_order,
    whole_source_log,
)
from statebackend.streaming.errors import JobRestoreError, SourceProgressMismatchError
from statebackend.streaming.runtime.checkpoint_writing import batch_of
from statebackend.streaming.runtime.source_offsets import NO_OFFSET, OffsetLines, are_of_splits
from statebackend.streaming.runtime.starting_point import StartingPoint

__all__ = [
    "SOURCE_LOG_DIRECTORY",
    "RearrangedLog",
    "Rearrangement",
    "SourceLogPlan",
    "check_kept",
    "check_schemas",
    "end_interrupted_rearrangement",
    "free_set_aside_name",
    "planned_source_log",
    "source_log_directory",
    "without_sources",
]


_OFFSETS: Final = re.compile("offsets/[0-9]+")
_SOURCES: Final = "sources/"
_OTHER_SOURCE: Final = (
    "the stored position does not fit another source. Read the former source again; or start a new job directory from "
    "a savepoint with restore_source_progress="
)


def check_kept(
    former: Sequence[ReadSource], now: Sequence[ReadSource], where: str, allowed_dropped: Collection[str] = ()
) -> None:
    """Raise `JobRestoreError` unless each former source, stored at ``where``, reads the same or may be dropped."""
    was, reads = _names_by_uid(former), _names_by_uid(now)
    for uid, names in was.items():
        if uid not in reads and uid not in allowed_dropped:
            raise JobRestoreError(
                f"the state at {where} has read the source {uid!r} ({', '.join(names)}), which the job no longer has: "
                f"its remaining records would be lost. Give the source that continues it this uid, "
                f"from_dataframe(..., uid={uid!r}); or pass allow_dropped_sources=[{uid!r}]"
            )
        # An import does not know what Spark's own query has read.
        if uid in reads and reads[uid] != names and (any(names) or len(reads[uid]) != len(names)):
            progress = "False" if len(reads) == 1 else f"{{{uid!r}: False}}"
            raise JobRestoreError(
                f"the source {uid!r} of the job reads {', '.join(reads[uid])}, and the state at {where} has read "
                f"{', '.join(names)}: {_OTHER_SOURCE}{progress}, which reads the new source from its beginning"
            )


def _names_by_uid(sources: Sequence[ReadSource]) -> Mapping[str | None, list[str]]:
    names: dict[str | None, list[str]] = {}
    for one in sources:
        names.setdefault(one.uid, []).append(one.name)
    return names


def _lines_of(former: Sequence[ReadSource], now: Sequence[ReadSource]) -> tuple[int | None, ...]:
    """For each of Spark's sources now, its line in the former log; None for a new one."""
    lines = {key: line for line, key in enumerate(_keys(former))}
    return tuple(lines.get(key) for key in _keys(now))


def _keys(sources: Sequence[ReadSource]) -> list[tuple[str | None, int]]:
    uids = [one.uid for one in sources]
    return [(uid, uids[:place].count(uid)) for place, uid in enumerate(uids)]


def _check_one_position_per_log(now: Sequence[ReadSource], offsets: Sequence[str]) -> None:
    """Raise `JobRestoreError` if two of Spark's sources share a log but not an offset.

    A DataFrame that two sources of the program use is read once by Spark, and has two lines.
    """
    first: dict[str | None, int] = {}
    for position, source in enumerate(now):
        other = position if source.log is None else first.setdefault(source.log, position)
        if offsets[position] != offsets[other]:
            raise JobRestoreError(
                f"the sources {now[other].uid!r} and {source.uid!r} use one streaming DataFrame, which Spark reads "
                f"once for both, but their positions differ: {offsets[other]} and {offsets[position]}. Make a "
                f"DataFrame for each with spark.readStream"
            )


def without_sources(state: WatermarkState, uids: Collection[str]) -> WatermarkState:
    """The watermarks of a checkpoint without those of these sources, which then start as new ones."""
    kept = [one for one in state.nodes if one.inputs or one.node not in uids]
    # An input keeps the number of its channels. One whose name no node has is not waited for.
    others = {one.node for one in state.nodes}
    unused = {uid: next(name for number in count(1) if (name := uid + "'" * number) not in others) for uid in uids}
    return evolve(
        state,
        channels=tuple(one for one in state.channels if one.source not in uids),
        nodes=tuple(
            evolve(
                one,
                inputs=tuple(
                    evolve(
                        valve,
                        channels=tuple(
                            evolve(channel, channel=unused.get(channel.channel, channel.channel))
                            for channel in valve.channels
                        ),
                    )
                    for valve in one.inputs
                ),
            )
            for one in kept
        ),
    )


@frozen(slots=False)
class Rearrangement:
    """The mapping from the former sources of a log to those of the job.

    ``restarted`` are the uids of sources that are read from their beginning.
    """

    former: tuple[ReadSource, ...]
    now: tuple[ReadSource, ...]
    restarted: frozenset[str] = frozenset()

    @cached_property
    def lines(self) -> tuple[int | None, ...]:
        """For each source now, its line in the former log; None for one that is read from its beginning."""
        lines = _lines_of(self.former, self.now)
        return tuple(None if one.uid in self.restarted else line for one, line in zip(self.now, lines, strict=True))

    @property
    def changes_nothing(self) -> bool:
        """Whether the log has this order already."""
        return self.lines == tuple(range(len(self.former))) and self.former_logs == self.logs

    @property
    def former_logs(self) -> tuple[str, ...]:
        """The names of the former sources' own logs, by line."""
        return tuple(str(line) if one.log is None else one.log for line, one in enumerate(self.former))

    @property
    def logs(self) -> tuple[str, ...]:
        """The names of the present sources' own logs."""
        return tuple(str(line) if one.log is None else one.log for line, one in enumerate(self.now))

    def offsets(self, content: bytes) -> bytes:
        """Rearrange the content of a file of offsets.

        Raises `JobRestoreError` if sources of one DataFrame would have different positions, and
        `SourceProgressMismatchError` if the file is not of the former sources.
        """
        if self.changes_nothing:
            return content
        found = OffsetLines.of(content)
        former = found.by_log(self.former_logs)
        if len(former) != len(self.former):
            raise SourceProgressMismatchError(
                f"Spark's source log has {len(former)} offsets for {len(self.former)} sources: its files do not belong "
                f"together. Restore them from a backup, or start from a savepoint in a new job directory"
            )
        offsets = [NO_OFFSET if line is None else former[line] for line in self.lines]
        _check_one_position_per_log(self.now, offsets)
        return found.with_offsets(offsets, self.logs)


class RearrangedLog(Mapping[str, bytes]):
    """The files of a log after a rearrangement: relative name to content, which is read on access.

    ``schemas`` are those of the present sources; empty if unknown.
    """

    def __init__(
        self, files: Mapping[str, bytes], rearrangement: Rearrangement, schemas: Sequence[Schema] = ()
    ) -> None:
        self._files = files
        self._rearrangement = rearrangement
        self._schemas = tuple(schemas)
        self._names = {name: name for name in files if not name.startswith(_SOURCES)}
        self._names[SOURCE_ORDER_FILE_NAME] = SOURCE_ORDER_FILE_NAME
        by_log: dict[str, list[str]] = {}
        for name in files:
            if name.startswith(_SOURCES):
                log, _, rest = name.removeprefix(_SOURCES).partition("/")
                by_log.setdefault(log, []).append(rest)
        for log, line in zip(rearrangement.logs, rearrangement.lines, strict=True):
            former = None if line is None else rearrangement.former_logs[line]
            for rest in () if former is None else by_log.get(former, ()):
                self._names[f"{_SOURCES}{log}/{rest}"] = f"{_SOURCES}{former}/{rest}"

    def __getitem__(self, name: str) -> bytes:
        if name == SOURCE_ORDER_FILE_NAME:
            return source_order(self._rearrangement.now, self._schemas)
        content = self._files[self._names[name]]
        return self._rearrangement.offsets(content) if _OFFSETS.fullmatch(name) else content

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


_WIDER: Final = {"byte": ("short", "integer", "long"), "short": ("integer", "long"), "integer": ("long",)}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(-?\d+)\)")
_MAX_CHARACTERS: Final = 60


def check_schemas(former: SourceOrder, now: SourceOrder, where: str, restarted: Collection[str | None] = ()) -> None:
    """Raise `JobRestoreError` if the columns of a source do not fit those that ``where`` has of it.

    ``restarted`` are the uids of sources that are read from their beginning.
    """
    for source, schema, line in zip(now.sources, now.schemas, _lines_of(former.sources, now.sources), strict=True):
        was = None if line is None else former.schemas[line]
        if was is None or schema is None or source.uid in restarted:
            continue
        problem = next(_problems(was, schema, ""), None)
        if problem is not None:
            progress = "False" if len({one.uid for one in now.sources}) == 1 else f"{{{source.uid!r}: False}}"
            raise JobRestoreError(
                f"the source {source.uid!r} of the job, {source.name}, has other columns than {where} has read of it: "
                f"{problem}; or start a new job directory from a savepoint with restore_source_progress={progress}, "
                f"which reads the source from its beginning"
            )


def _problems(was: Any, now: Any, path: str) -> Iterator[str]:
    if was == now or _is_wider(was, now):
        return
    if isinstance(was, Mapping) and isinstance(now, Mapping) and was.get("type") == now.get("type"):
        parts = {"array": ("elementType",), "map": ("keyType", "valueType")}.get(str(was.get("type")))
        if was.get("type") == "struct":
            yield from _column_problems(_columns(was), _columns(now), path)
            return
        if parts is not None:
            for part in parts:
                yield from _problems(was.get(part), now.get(part), f"{path}[]")
            return
    yield (
        f"{path} was {_format_type(was)} and is {_format_type(now)}: unread values might be lost. Read it with its "
        f"former type and cast it in the program"
    )


def _column_problems(was: Mapping[str, Any], now: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in filter(now.__contains__, was):
        yield from _problems(was[name], now[name], f"{path}.{name}" if path else name)
    removed, new = ([name for name in one if name not in other] for one, other in ((was, now), (now, was)))
    if removed and new:
        inside = f" inside of {path}" if path else ""
        yield (
            f"{_listed(removed)} removed{inside} and {_listed(new)} new: this may be a rename, and the new columns "
            f"would be null in unread records. Keep the former columns beside the new ones until all records are read, "
            f"and remove them then"
        )


def _columns(struct: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = struct.get("fields")
    return {one.get("name"): one.get("type") for one in fields} if isinstance(fields, list) else {}


def _is_wider(was: Any, now: Any) -> bool:
    if not isinstance(was, str) or not isinstance(now, str):
        return False
    if now in _WIDER.get(was, ()) or (was, now) == ("float", "double"):
        return True
    digits, more = _DECIMAL.fullmatch(was), _DECIMAL.fullmatch(now)
    if digits is None or more is None:
        return False
    (precision, scale), (new_precision, new_scale) = (map(int, found.groups()) for found in (digits, more))
    return new_scale >= scale and new_precision - new_scale >= precision - scale


def _format_type(schema: Any) -> str:
    name = schema.get("type") if isinstance(schema, Mapping) else schema
    return name if isinstance(name, str) else format_value(name, _MAX_CHARACTERS)


def _listed(names: list[str]) -> str:
    return f"{', '.join(map(repr, names[:5]))}{', ...' if len(names) > 5 else ''} {'is' if len(names) == 1 else 'are'}"


SOURCE_LOG_DIRECTORY: Final = "spark"
"""The directory of the log in a job directory."""

_REARRANGED: Final = "spark-rewritten"


def source_log_directory(file_system: CheckpointFileSystem) -> str:
    """Where the log of the job directory at the root of ``file_system`` is now; it may not exist yet."""
    has_log = SOURCE_LOG_DIRECTORY in file_system.list_directories()
    return SOURCE_LOG_DIRECTORY if has_log or not file_system.list_files(_REARRANGED) else _REARRANGED


def end_interrupted_rearrangement(file_system: CheckpointFileSystem) -> None:
    """Finish a replacement of the log that a crash has interrupted, or delete its remains."""
    for name in file_system.list_directories():
        if name.startswith(f"{STAGING_PREFIX}{SOURCE_LOG_DIRECTORY}"):
            file_system.delete_directory(name)
    if source_log_directory(file_system) == _REARRANGED:
        file_system.move_directory(_REARRANGED, SOURCE_LOG_DIRECTORY)
    else:
        file_system.delete_directory(_REARRANGED)


def free_set_aside_name(file_system: CheckpointFileSystem) -> str:
    """Return a free name below `set-aside/` for a log."""
    taken = set(file_system.list_directories(SET_ASIDE_DIRECTORY))
    free = (f"{SOURCE_LOG_DIRECTORY}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in free if name not in taken)


@frozen(kw_only=True)
class SourceLogPlan:
    """What a start does with the log, and with the source positions of the state.

    ``of_log`` is None if the order of the log is unknown, ``of_state`` if the state has no positions or they are
    ignored. ``schemas`` are those of the sources ``now``; empty if unknown.
    """

    now: tuple[ReadSource, ...]
    of_log: Rearrangement | None
    of_state: Rearrangement | None
    starts_from_savepoint: bool
    schemas: tuple[Schema, ...] = ()

    def state(self, state: RestoredState | None) -> RestoredState | None:
        """Return the state to continue from, with the positions and watermarks of the job's sources."""
        positions = None if state is None else state.metadata.source_positions
        if state is None or positions is None or self.of_state is None:
            return state
        watermarks = state.metadata.watermarks
        metadata = evolve(
            state.metadata,
            source_positions=evolve(positions, sources=self.now, offsets=self.of_state.offsets(positions.offsets)),
            watermarks=None if watermarks is None else without_sources(watermarks, self.of_state.restarted),
        )
        return RestoredState(metadata, state.file_system)

    def carry_out(
        self, file_system: CheckpointFileSystem, point: StartingPoint, job_files: CheckpointFileSystem
    ) -> None:
        """Put the log in the order of the job, after `end_interrupted_rearrangement`. The caller leads the job.

        The log is at the root of ``file_system``, the job directory at that of ``job_files``. A log that was started
        from the same savepoint stays: it may contain an epoch that failed, which is replayed with the same rows and
        time.

        Raises:
            SourceProgressError: The log cannot be read; nothing has changed.
        """
        location = file_system.location(SOURCE_LOG_DIRECTORY)
        if point.is_new_origin and point.origin is not None:
            # In this order: a log that does not fit the origin must not outlive a crash in between.
            file_system.delete_directory(SOURCE_LOG_DIRECTORY)
            end_no_data_epoch(file_system)
            write_origin(job_files, point.origin)
        if self.starts_from_savepoint:
            assert point.state is not None
            assert self.of_log is not None
            file_system.delete_directory(SOURCE_LOG_DIRECTORY)
            positions = point.state.metadata.source_positions
            saved: Mapping[str, bytes] = SavedSourceProgress(point.state.file_system, point.state.metadata)
            if not saved and positions is not None and are_of_splits(positions):
                saved = new_source_log(positions)
            restore_source_progress(RearrangedLog(saved, self.of_log, self.schemas), location)
            return
        has_log = SOURCE_LOG_DIRECTORY in file_system.list_directories()
        has_batch = has_log and newest_planned_batch(location) is not None
        if not has_batch:
            # Spark starts no log with remains of a first batch that was being written when the driver was stopped.
            file_system.delete_directory(f"{SOURCE_LOG_DIRECTORY}/offsets")
        if self.of_log is not None and not self.of_log.changes_nothing and has_log:
            files = whole_source_log(location) if has_batch else {}
            appear_at_once(RearrangedLog(files, self.of_log, self.schemas).items(), file_system.location(_REARRANGED))
            set_aside = f"{SET_ASIDE_DIRECTORY}/{free_set_aside_name(file_system)}"
            file_system.move_directory(SOURCE_LOG_DIRECTORY, set_aside)
            file_system.move_directory(_REARRANGED, SOURCE_LOG_DIRECTORY)
        else:
            found = read_source_order(file_system, SOURCE_LOG_DIRECTORY)
            if found is None or found.sources != self.now or (self.schemas and found.schemas != self.schemas):
                path = f"{SOURCE_LOG_DIRECTORY}/{SOURCE_ORDER_FILE_NAME}"
                file_system.write_file(path, source_order(self.now, self.schemas))


def planned_source_log(
    file_system: CheckpointFileSystem,
    point: StartingPoint,
    now: tuple[ReadSource, ...],
    allowed_dropped: Collection[str] = (),
    schemas: tuple[Schema, ...] = (),
) -> SourceLogPlan:
    """Plan what a start from this point does with the log; change nothing.

    ``now`` are the sources of the job. ``schemas`` are theirs; empty if unknown.

    Raises:
        JobRestoreError: A source of the state is missing in the job, reads something else, or has columns that do not
            fit (`check_schemas`); or the log does not contain a source that the state has read.
        SourceProgressMismatchError: State and log have different positions.
    """
    log = source_log_directory(file_system)
    origin, state = point.origin, point.state
    counts = state is not None and (point.is_own or (origin is not None and origin.with_source_progress))
    restarted: frozenset[str] = frozenset()
    if counts and not point.is_own and origin is not None:
        restarted = frozenset(origin.restarted_sources)
    found = None if point.is_new_origin else read_source_order(file_system, log)
    order = None if found is None else found.sources
    of_state = None
    where = "" if state is None else state.file_system.location("")
    positions = None if state is None else state.metadata.source_positions
    if counts and positions is not None:
        former = positions.sources
        if former is None:
            raise JobRestoreError(
                f"the state at {where} does not name the sources of its positions; start a new job directory from a "
                f"savepoint with restore_source_progress=False, which reads all sources from their beginning"
            )
        check_kept([one for one in former if one.uid not in restarted], now, where, allowed_dropped)
        of_state = Rearrangement(former, now, restarted)
    if counts and not point.is_own and (point.is_new_origin or not file_system.exists(f"{log}/metadata")):
        of_log: Rearrangement | None = of_state or Rearrangement(now, now)
        assert of_log is not None
        assert state is not None
        _check_schemas(read_source_order(state.file_system, SOURCE_PROGRESS_DIRECTORY), now, schemas, where, restarted)
        return SourceLogPlan(now=now, of_log=of_log, of_state=of_state, starts_from_savepoint=True, schemas=schemas)
    of_log = of_state
    if order is not None:
        of_log = Rearrangement(order, now)
        if newest_planned_batch(file_system.location(log)) is not None:
            # A planned batch may contain records of a dropped source. No state has them.
            removed = {one.uid for one in order if one.uid is not None}
            check_kept(of_log.former, now, file_system.location(log), removed)
            _check_schemas(found, now, schemas, file_system.location(log))
    plan = SourceLogPlan(now=now, of_log=of_log, of_state=of_state, starts_from_savepoint=False, schemas=schemas)
    _check_log(file_system, log, plan, state)
    return plan


def _check_schemas(
    found: SourceOrder | None,
    now: tuple[ReadSource, ...],
    schemas: tuple[Schema, ...],
    where: str,
    restarted: Collection[str] = (),
) -> None:
    """Raise unless the columns that ``where`` has read fit those of the job, if both are known."""
    if found is not None and schemas:
        check_schemas(found, SourceOrder(now, schemas), where, restarted)


def _check_log(file_system: CheckpointFileSystem, log: str, plan: SourceLogPlan, state: RestoredState | None) -> None:
    """Raise unless the log contains the sources and positions of the state."""
    if plan.of_log is None or plan.of_state is None or state is None:
        return
    known = {one.uid for one in plan.of_log.former}
    read = {one.uid for one, line in zip(plan.now, plan.of_state.lines, strict=True) if line is not None}
    lost = sorted(uid for uid in read if uid is not None and uid not in known)
    if lost:
        raise JobRestoreError(
            f"the state at {state.file_system.location('')} has read the source {lost[0]!r}, which "
            f"{file_system.location(log)} does not contain: it was dropped since. The former log is in "
            f"{file_system.location(SET_ASIDE_DIRECTORY)}. Start without this source, with "
            f"allow_dropped_sources=[{lost[0]!r}], or start a new job directory from a savepoint that has it"
        )
    batch_id = batch_of(state.metadata)
    if not file_system.exists(f"{log}/offsets/{batch_id}"):
        return
    has = plan.of_log.offsets(read_offsets(file_system.location(log), batch_id))
    says = plan.of_state.offsets(state.metadata.source_offsets)
    in_log, in_state = (OffsetLines.of(content).by_log(plan.of_state.logs) for content in (has, says))
    if in_log != in_state:
        raise SourceProgressMismatchError(
            f"{file_system.location(f'{log}/offsets/{batch_id}')} has other positions than the state at "
            f"{state.file_system.location('')}: {', '.join(in_log)} instead of {', '.join(in_state)}. Restore "
            f"the right log, or start from a savepoint in a new job directory"
        )
