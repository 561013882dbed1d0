"""How a run reads its sources to their ends, or until it stops: in epochs, or with checkpoints by the clock.

In epochs, a source reads up to `epoch_size` records per epoch as one batch, then all sources emit periodic watermarks.
A list in an alignment group is read record by record, with periodic watermarks after each, so that the group learns its
watermark. What a paused source does not read in an epoch it reads in a later one.

With checkpoints by the clock, a source gets its next batch when it has read the last one, so barriers do not wait long.
Periodic watermarks follow each batch. Between batches, at most once per `TICK_MS`, processing time advances. One more
checkpoint follows the ends of all sources. A run that stops earlier takes its last checkpoint then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa

from snapshots.errors import format_value
from statebackend.local.graph import rows_of
from statebackend.local.network.subtasks import SourceSubtask
from statebackend.local.run import LocalRun
from statebackend.local.source import A_POSITION, ArrowRows, LocalSource, ReplayedSource, SplitPositions, position_of
from statebackend.streaming.errors import StreamJobError, UserFunctionError, describe_exception
from statebackend.streaming.rows.record_copies import copied_records
from statebackend.streaming.stream_graph import SourceNode, SplitRead

BATCH_RECORDS: Final = 2048
"""The most records of a source that travel as one batch."""

BATCH_ROWS: Final = 1 << 16
"""The same for a source whose records are in columns."""

PAUSE_S: Final = 0.005
"""How long to wait if no source has anything to read."""

TICK_MS: Final = 200
"""How often processing time advances; as Flink's automatic watermark interval."""


class ElementFeed:
    """Feeds a source from a list."""

    batch_records: ClassVar = BATCH_RECORDS

    def __init__(self, source: SourceSubtask[LocalSource], records: Sequence[Any], *, emits_periodically: bool) -> None:
        self.source = source
        self.records = records
        self._place = 0
        self._emits = emits_periodically or source.is_aligned

    @property
    def has_more(self) -> bool:
        """Whether any record is not read."""
        return self._place < len(self.records) or self.source.unread > 0

    def feed_next(self, most: int) -> bool:
        """Feed the next batch; returns False if there was none."""
        piece = self.records[self._place : self._place + most]
        self._place += len(piece)
        pieces = [[record] for record in piece] if self.source.is_aligned else [piece] if piece else []
        read = LocalSource.read_and_emit_periodically if self._emits else LocalSource.read
        for records in pieces:
            self.source.feed(partial(read, records=records))
        # The group does not wait for a source that has read all.
        self.source.read_on(self._place < len(self.records))
        return bool(piece)


class SplitFeed:
    """Feeds a source from the splits of a replayable source, from their positions on.

    It reads a batch of each split in turn or, if the source asks for it, each split to its end.
    """

    def __init__(
        self, source: SourceSubtask[LocalSource], uid: str, replayed: ReplayedSource, positions: SplitPositions
    ) -> None:
        self.source = source
        self._uid = uid
        self._replayed = replayed
        self._positions = positions
        self.batch_records = BATCH_ROWS if isinstance(replayed.source, ArrowRows) else BATCH_RECORDS
        self._next = dict(positions.now)
        self._open = deque(sorted(self._next))
        self._is_one_by_one = getattr(replayed.source, "reads_splits_one_by_one", False)

    def feed_next(self, most: int) -> bool:
        """Feed the next batch, if there is one; returns False if all splits are at their ends."""
        may_be_more = self._feed_next(most)
        self.source.read_on(bool(self._open))
        return may_be_more

    def _feed_next(self, most: int) -> bool:
        for _ in range(len(self._open)):
            split = self._open[0]
            if not self._is_one_by_one:
                self._open.rotate(-1)
            before = self._next[split]
            try:
                got = self._replayed.source.read(split, before, most)
            except Exception as error:
                what = f"source {self._uid!r}, split {split!r}: read() from position {before} raised"
                raise UserFunctionError(f"{what} {describe_exception(error)}") from error
            self._next[split] = position = self._position_after(got, split, before, most)
            if got.is_at_end:
                self._open.remove(split)
            rows = self._rows(got.records)
            if rows or position > before:
                self.source.feed(partial(self._read, split=split, position=position, rows=rows))
                return True
        return bool(self._open)

    def _rows(self, records: Collection[Any] | pa.RecordBatch) -> Sequence[Any]:
        """Rows of the job, which may change them: the source may use its own objects again."""
        where, schema = f"source {self._uid!r}", self._replayed.schema
        if isinstance(records, pa.RecordBatch):
            if schema is None:
                raise StreamJobError(f"{where}: read() returned a record batch; pass schema= to from_source")
            return rows_of(records, schema, where)
        return copied_records(list(records), where) if schema is None else rows_of(list(records), schema, where)

    def _position_after(self, got: Any, split: str, before: int, most: int) -> int:
        where = f"source {self._uid!r}, split {split!r}: reading {most} records from position {before} returned"
        if not isinstance(got, SplitRead) or not isinstance(got.records, Collection | pa.RecordBatch):
            raise StreamJobError(f"{where} {format_value(got, 80)}; it must return a SplitRead of records")
        position = position_of(got.position)
        if position is None:
            raise StreamJobError(f"{where} the position {format_value(got.position, 80)}; {A_POSITION}")
        if len(got.records) > most:
            raise StreamJobError(
                f"{where} {len(got.records)} records; return at most {most}, and the others at the next call"
            )
        if position < before:
            raise StreamJobError(
                f"{where} {len(got.records)} records and position {position}; a position must not decrease"
            )
        if len(got.records) and position == before:
            raise StreamJobError(
                f"{where} {len(got.records)} records and the same position, so they would be read again; increase it"
            )
        return position

    def _read(self, source: LocalSource, split: str, position: int, rows: Sequence[Any]) -> None:
        source.read(rows)
        self._positions.now[split] = position
        source.emit_periodically()


def read_all(
    run: LocalRun,
    records: Mapping[SourceNode, Sequence[Any]],
    *,
    epoch_size: int | None,
    interval_ms: int | None,
    is_stopping: Callable[[], bool],
    drains: bool,
) -> None:
    """Read replayable sources from their positions on, and the others from ``records``.

    An epoch ends after ``epoch_size`` records of a source. With ``interval_ms`` there is a checkpoint by the clock
    instead; then, with ``drains``, a run that stops early advances event time to its end first.
    """
    lists: list[ElementFeed] = []
    splits: list[SplitFeed] = []
    for uid, node in zip(run.parts.program.graph.source_uids, run.parts.program.graph.sources, strict=True):
        source = run.job_network.sources[node]
        if uid in run.positions:
            splits.append(SplitFeed(source, uid, node.source, run.positions[uid]))
        else:
            lists.append(ElementFeed(source, records[node], emits_periodically=interval_ms is not None))
    if interval_ms is None:
        _read_in_epochs(run, lists, splits, epoch_size, is_stopping)
    else:
        _read_continuously(run, [*lists, *splits], interval_ms, is_stopping, drains)


def _can_read(feeds: Iterable[ElementFeed | SplitFeed]) -> bool:
    return any(one.source.unread and not one.source.is_paused for one in feeds)


def _read_in_epochs(
    run: LocalRun,
    lists: Sequence[ElementFeed],
    splits: list[SplitFeed],
    epoch_size: int | None,
    is_stopping: Callable[[], bool],
) -> None:
    """Read in epochs. Splits without records are asked again for `TICK_MS`: an empty epoch would cost a checkpoint."""
    most = epoch_size or max([1, *(len(one.records) for one in lists)])

    def has_elements() -> bool:
        return any(one.has_more for one in lists)

    def feed_lists() -> None:
        for one in lists:
            one.feed_next(most - one.source.unread)

    def have_fed_splits() -> bool:
        for one in list(splits):
            # A paused source has not read its last batch yet.
            if not one.source.unread and not one.feed_next(epoch_size or one.batch_records):
                splits.remove(one)
        return _can_read(splits)

    def feed_splits() -> None:
        ends_s = time.monotonic() + TICK_MS / 1000
        while not have_fed_splits() and splits and time.monotonic() < ends_s:
            if has_elements() or is_stopping():
                return
            time.sleep(PAUSE_S)

    def feeds_of_epoch() -> Iterator[Callable[[], None]]:
        yield feed_lists
        while splits and not is_stopping():
            yield feed_splits
            if epoch_size is not None:
                break
        yield run.emit_periodically

    while (has_elements() or splits) and not is_stopping():
        run.run_epoch(feeds_of_epoch())


def _read_continuously(
    run: LocalRun,
    feeds: Sequence[ElementFeed | SplitFeed],
    interval_ms: int,
    is_stopping: Callable[[], bool],
    drains: bool,
) -> None:
    open_feeds, clock = list(feeds), run.parts.program.clock
    ticked_ms = clock()

    def feed_all() -> bool:
        nonlocal ticked_ms
        if is_stopping():
            return False
        now_ms = clock()
        if now_ms - ticked_ms >= TICK_MS:
            ticked_ms = now_ms
            run.advance_processing_time(now_ms)
        for one in [one for one in open_feeds if not one.source.unread]:
            if not one.feed_next(one.batch_records):
                open_feeds.remove(one)
        if open_feeds and not _can_read(feeds):
            # Nothing to read yet.
            time.sleep(PAUSE_S)
        return bool(open_feeds)

    run.begin_epoch()
    run.checkpoints.start(interval_ms)
    while run.read_on(feed_all):
        pass
    if is_stopping():
        run.checkpoints.stop()
        run.stop(drains=drains)
        return
    run.process()
    run.checkpoints.stop()
    run.end_epoch()
