"""How a run reads its sources to their ends, or until it is to stop: in epochs, or with checkpoints by the clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from streamjobs.api.stream_graph import SourceNode
from streamjobs.inprocess.continuous_run import (
    BATCH_RECORDS,
    PAUSE_S,
    TICK_MS,
    BatchFeed,
    ElementBatches,
    can_read,
    run_continuously,
)
from streamjobs.inprocess.element_feed import ElementFeed
from streamjobs.inprocess.local_run import LocalRun
from streamjobs.inprocess.local_source import LocalSource
from streamjobs.inprocess.network.source_subtask import SourceSubtask
from streamjobs.inprocess.split_feed import SplitFeed

__all__ = ["read_all"]


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
