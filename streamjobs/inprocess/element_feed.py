"""Lists of elements as what the sources of a run read, dealt into epochs.

A source is given a slice of its elements per epoch, and reads it as one batch; then all sources look at time. One of an
alignment group is given them one by one, and looks at time behind each, so that the others of its group learn how far
it is. What it has not read when the epoch ends, because it waits for others, it reads in a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from streamjobs.api.stream_graph import SourceNode
from streamjobs.inprocess.local_source import LocalSource
from streamjobs.inprocess.network.source_subtask import SourceSubtask

__all__ = ["ElementFeed"]


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
                    source.feed(partial(_read_and_look_at_time, record=record))
                source.read_on(self._places[index] < len(records))
            elif piece:
                source.feed(partial(LocalSource.read, records=piece))


def _read_and_look_at_time(source: LocalSource, record: Any) -> None:
    source.read([record])
    source.emit_periodically()
