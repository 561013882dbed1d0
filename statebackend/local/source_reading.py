"""How a run reads its sources to their ends, or until it is to stop: in epochs, or with checkpoints by the clock.

Lists of elements as what the sources of a run read, dealt into epochs.

A source is given a slice of its elements per epoch, and reads it as one batch; then all sources look at time. One of an
alignment group is given them one by one, and looks at time behind each, so that the others of its group learn how far
it is. What it has not read when the epoch ends, because it waits for others, it reads in a later one.

Sources that are read on and on, while checkpoints are taken by the clock.

A source is given its next batch when it has read the last one, so that what waits is bounded and a barrier has little
before it. Behind each batch its strategy is asked for watermarks. The clock of the job is looked at between
batches, at most once in `TICK_MS`: what is due by it fires, and sources look at it. When all sources are at their ends
one more checkpoint is taken, which has everything. A run that is to stop before takes the checkpoint that it stops
with.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from statebackend.local.local_run import LocalRun
from statebackend.local.network.subtasks import SourceSubtask
from statebackend.local.source import LocalSource
from statebackend.local.split_feed import SplitFeed
from statebackend.streaming.stream_graph import SourceNode

__all__ = [
    "BATCH_RECORDS",
    "PAUSE_S",
    "TICK_MS",
    "BatchFeed",
    "ElementBatches",
    "ElementFeed",
    "can_read",
    "read_all",
    "run_continuously",
]


class ElementFeed:
    """See the module; ``epoch_size`` is the most elements of a source in an epoch."""

    def __init__(
        self,
        sources: Mapping[SourceNode, SourceSubtask[LocalSource]],
        records: Mapping[SourceNode, Sequence[Any]],
        epoch_size: int | None,
    ) -> None:
        self._sources = [(sources[node], of_node) for node, of_node in records.items()]
        self._places = [0] * len(self._sources)
        self._epoch_size = epoch_size or max([1, *(len(of_node) for _, of_node in self._sources)])

    @property
    def has_more(self) -> bool:
        """Whether any element is not read."""
        places = zip(self._sources, self._places, strict=True)
        return any(place < len(records) or source.unread for (source, records), place in places)

    def feed(self) -> None:
        """Gives each source what it reads in one epoch."""
        for index, (source, records) in enumerate(self._sources):
            start = self._places[index]
            piece = records[start : start + self._epoch_size - source.unread]
            self._places[index] += len(piece)
            if source.is_aligned:
                for record in piece:
                    source.feed(partial(_read_record_and_advance_time, record=record))
                source.read_on(self._places[index] < len(records))
            elif piece:
                source.feed(partial(LocalSource.read, records=piece))


def _read_record_and_advance_time(source: LocalSource, record: Any) -> None:
    source.read([record])
    source.emit_periodically()


BATCH_RECORDS: Final = 2048
"""The most records of a source that travel as one batch."""

PAUSE_S: Final = 0.005
"""How long is waited when no source has anything to read."""

TICK_MS: Final = 200
"""How often the clock of the job is looked at; that of Flink's automatic watermarks."""


class BatchFeed(Protocol):
    """What one source reads, batch by batch."""

    def feed_next(self, source: SourceSubtask[LocalSource], most: int) -> bool:
        """Gives a source its next batch, of at most so many records, if there is one; returns whether more may be."""


class ElementBatches:
    """The elements of a list; one of an alignment group is read record by record, so that others know how far it is."""

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = records
        self._place = 0

    def feed_next(self, source: SourceSubtask[LocalSource], most: int) -> bool:
        piece = self._records[self._place : self._place + most]
        self._place += len(piece)
        source.read_on(self._place < len(self._records))
        if not piece:
            return False
        if source.is_aligned:
            for record in piece:
                source.feed(partial(_read_records_and_advance_time, records=[record]))
        else:
            source.feed(partial(_read_records_and_advance_time, records=piece))
        return True


def can_read(sources: Iterable[SourceSubtask[LocalSource]]) -> bool:
    """Whether any has something to read, and need not wait for others of its group."""
    return any(one.unread and not one.is_paused for one in sources)


def run_continuously(
    run: LocalRun,
    feeds: Mapping[SourceSubtask[LocalSource], BatchFeed],
    *,
    interval_ms: int,
    clock: Callable[[], int],
    is_stopping: Callable[[], bool],
    drains: bool = False,
) -> None:
    """Reads all that the feeds have, or until it is to stop, with a checkpoint every so often and one at the end.

    With ``drains`` a run that is to stop brings event time to its end first.

    Raises what a function of the user's raises, and what made a checkpoint fail when no more failures are endured.
    """
    open_feeds = dict(feeds)
    ticked_ms = clock()

    def feed_all() -> bool:
        nonlocal ticked_ms
        if is_stopping():
            return False
        now_ms = clock()
        if now_ms - ticked_ms >= TICK_MS:
            ticked_ms = now_ms
            run.advance_processing_time(now_ms)
        for source in [one for one in open_feeds if not one.unread]:
            if not open_feeds[source].feed_next(source, BATCH_RECORDS):
                del open_feeds[source]
        if open_feeds and not can_read(feeds):
            # Nothing to read yet: the cores are left to others until it is asked again.
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


def _read_records_and_advance_time(source: LocalSource, records: Sequence[Any]) -> None:
    source.read(records)
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
    """Reads replayable sources from their positions on, and of the others the ``records``.

    An epoch ends behind ``epoch_size`` elements; with ``interval_ms`` there is a checkpoint every so often instead.
    With ``drains`` a run that is to stop before, with checkpoints by the clock, brings event time to its end first.
    """
    sources = run.job_network.sources
    feeds: dict[SourceSubtask[LocalSource], BatchFeed] = {}
    for uid, node in zip(run.parts.graph.source_uids, run.parts.graph.sources, strict=True):
        if uid in run.positions:
            feeds[sources[node]] = SplitFeed(uid, node.source, run.positions[uid])
        elif interval_ms is not None:
            feeds[sources[node]] = ElementBatches(records[node])
    if interval_ms is not None:
        clock = run.parts.clock
        run_continuously(run, feeds, interval_ms=interval_ms, clock=clock, is_stopping=is_stopping, drains=drains)
        return
    lists = {node: of_node for node, of_node in records.items() if sources[node] not in feeds}
    feed = ElementFeed(sources, lists, epoch_size)
    splits = _SplitFeeds(feeds, epoch_size, lambda: feed.has_more or is_stopping())
    while (feed.has_more or feeds) and not is_stopping():
        run.run_epoch(itertools.chain([feed.feed], splits.of_epoch(is_stopping), [run.emit_periodically]))


class _SplitFeeds:
    """What gives replayable sources what they read in epochs; those that are at their ends are taken out of ``feeds``.

    Where there is nothing to read yet they are asked again and again for as long as `TICK_MS`, unless the run
    ``has_else`` to do: an epoch that nothing came in costs a checkpoint.
    """

    def __init__(
        self,
        feeds: dict[SourceSubtask[LocalSource], BatchFeed],
        epoch_size: int | None,
        has_else: Callable[[], bool],
    ) -> None:
        self._feeds = feeds
        self._epoch_size = epoch_size
        self._has_else = has_else

    def of_epoch(self, is_stopping: Callable[[], bool]) -> Iterator[Callable[[], None]]:
        """Those of one epoch: a batch of each source, or all they have, until the run is to stop, without a size."""
        while self._feeds and not is_stopping():
            yield self._feed
            if self._epoch_size is not None:
                return

    def _feed(self) -> None:
        ends_s = time.monotonic() + TICK_MS / 1000
        while not self._gives() and self._feeds and not self._has_else() and time.monotonic() < ends_s:
            time.sleep(PAUSE_S)

    def _gives(self) -> bool:
        for source, one in list(self._feeds.items()):
            # One that waits for others of its group has not read yet what it was given.
            if not source.unread and not one.feed_next(source, self._epoch_size or BATCH_RECORDS):
                del self._feeds[source]
        return can_read(self._feeds)
