"""Sources that are read on and on, while checkpoints are taken by the clock.

A source is given its next batch when it has read the last one, so that what waits is bounded and a barrier has little
in front of it. Behind each batch its strategy is asked for watermarks. The clock of the job is looked at between
batches, at most once in `TICK_MS`: what is due by it fires, and sources look at it. When all sources are at their ends
one more checkpoint is taken, which has everything. A run that is to stop before takes the checkpoint that it stops
with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from streamjobs.inprocess.local_run import LocalRun
from streamjobs.inprocess.local_source import LocalSource
from streamjobs.inprocess.network.source_subtask import SourceSubtask

__all__ = [
    "BATCH_RECORDS",
    "PAUSE_S",
    "TICK_MS",
    "BatchFeed",
    "ElementBatches",
    "can_read",
    "run_continuously",
]

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
                source.feed(partial(_read_and_look_at_time, records=[record]))
        else:
            source.feed(partial(_read_and_look_at_time, records=piece))
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


def _read_and_look_at_time(source: LocalSource, records: Sequence[Any]) -> None:
    source.read(records)
    source.emit_periodically()
