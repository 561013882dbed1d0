"""A harness for whole jobs: the test sends events to the sources and reads the outputs.

A job is built with the public API. `HarnessJob.source` adds a source; the test sends its events. `HarnessJob.output`
names a stream that the test reads. Each event (a record, a watermark, an idle source, an advance of the clock) passes
through all operators before the call returns. All outputs form one sequence of records, watermarks and statuses, in the
order in which they were emitted.

A snapshot is a savepoint. Another harness can start from it, with another parallelism, backend or job.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias

from attrs import frozen

from statebackend.local.environment import LocalStreamEnvironment
from statebackend.local.graph import ElementSource, rows_of
from statebackend.local.network.channel import RecordBatch
from statebackend.local.network.network import DownstreamFirst, Shuffled
from statebackend.local.network.subtasks import SourceSubtask
from statebackend.local.run import LocalJob, LocalRun
from statebackend.local.source import LocalSource
from statebackend.streaming.data_stream import DataStream
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.rows.record_copies import copied_records
from statebackend.streaming.stream_graph import SourceNode
from statebackend.streaming.time.timestamps import Time, timestamp_of
from statebackend.streaming.time.watermark_generators import (
    Watermark,
    WatermarkElement,
    WatermarkStatus,
    check_timestamp,
)

__all__ = [
    "Emitted",
    "EmittedElement",
    "EmittedStatus",
    "EmittedWatermark",
    "HarnessJob",
    "JobTestHarness",
    "ScriptedSource",
]


@frozen
class Emitted:
    """An emitted record.

    ``timestamp_ms`` is its timestamp or None. ``watermark_ms`` is the watermark of the operator when it emitted the
    record, or the smallest time (``-(1 << 63)``).
    """

    output: str
    record: Any
    timestamp_ms: int | None
    watermark_ms: int


@frozen
class EmittedWatermark:
    """An emitted watermark."""

    output: str
    timestamp_ms: int


@frozen
class EmittedStatus:
    """An emitted status: the output became idle or active."""

    output: str
    status: WatermarkStatus


EmittedElement: TypeAlias = Emitted | EmittedWatermark | EmittedStatus


def _milliseconds(time: Any) -> Any:
    """Convert a datetime to milliseconds; other values are returned unchanged."""
    return timestamp_of(time) if isinstance(time, datetime.datetime) else time


class HarnessJob:
    """Builds a job under test."""

    def __init__(self, environment: LocalStreamEnvironment) -> None:
        self.environment = environment
        """The environment of the job."""
        self._sources: dict[str, SourceNode] = {}

    def source(self, name: str, schema: Any = None) -> DataStream:
        """Add a source. The test sends its records.

        Args:
            name: The name of the source in the test, and its uid in snapshots.
            schema: As for `from_elements`.

        Returns:
            The stream of its records.

        Raises:
            JobDefinitionError: A source or an operator has this name as uid, or it cannot be a uid.
        """
        if name in self._sources:
            raise JobDefinitionError(f"two sources of the harness are called {name!r}; give one of them another name")
        stream = self.environment.from_elements([], schema, uid=name)
        node = stream.edge.node
        assert isinstance(node, SourceNode)
        self._sources[name] = node
        return stream

    def output(self, name: str, stream: DataStream) -> None:
        """Make a stream readable for the test by a name. Raises `JobDefinitionError` if the name exists already."""
        stream.sink_to(_ObservedSink(), uid=name)

    @property
    def sources(self) -> Mapping[str, SourceNode]:
        """The sources so far, by name."""
        return dict(self._sources)


class ScriptedSource:
    """A source for which a test sends the events. An error of the job is raised by the sending call and ends the job.

    A source of an alignment group that is too far ahead is paused until the others have caught up.
    """

    def __init__(
        self, source: SourceSubtask[LocalSource], elements: ElementSource, process: Callable[[], None]
    ) -> None:
        self._source = source
        self._elements = elements
        self._process = process

    @property
    def is_paused(self) -> bool:
        """Whether it waits for other sources of its alignment group."""
        return self._source.is_paused

    @property
    def unread(self) -> int:
        """The number of events that the paused source has not read yet."""
        return self._source.unread

    def send(self, record: Any, timestamp_ms: Time | None = None) -> None:
        """Send a record, with or without a timestamp. A strategy of the job may assign another one.

        A time is a number of milliseconds since 1970 or a datetime. A datetime without a zone is in UTC.
        """
        self.send_all([record], [timestamp_ms])

    def send_all(self, records: Sequence[Any], timestamps_ms: Sequence[Time | None] | None = None) -> None:
        """Send several records as one batch, with or without timestamps.

        Raises `ValueError` for an invalid timestamp, and errors of the schema of the source for an invalid record.
        """
        times = [None] * len(records) if timestamps_ms is None else list(map(_milliseconds, timestamps_ms))
        if len(times) != len(records):
            raise ValueError(f"{len(records)} records were given {len(times)} timestamps; give one for each")
        for time_ms in times:
            if time_ms is not None:
                check_timestamp("the timestamp of a record", time_ms)
        schema = self._elements.schema
        rows = copied_records(list(records), "send_all") if schema is None else rows_of(records, schema)
        self._feed(partial(LocalSource.read, records=rows, timestamps=times))

    def watermark(self, timestamp_ms: Time) -> None:
        """Send a watermark: all later records have larger timestamps. Raises `ValueError` for an invalid time.

        With a watermark strategy it is handled like a watermark of the strategy: smaller ones are ignored.
        """
        self._feed(partial(LocalSource.read_given_time, element=Watermark(_milliseconds(timestamp_ms))))

    def idle(self) -> None:
        """Mark the source idle. Watermarks that it sends while it is idle are dropped."""
        self._feed(partial(LocalSource.read_given_time, element=WatermarkStatus.IDLE))

    def active(self) -> None:
        """Mark the source active."""
        self._feed(partial(LocalSource.read_given_time, element=WatermarkStatus.ACTIVE))

    def end(self) -> None:
        """End the source and its event time. Raises `IllegalTransitionError` if it has ended."""
        self._source.feed_end()
        self._process()

    def _feed(self, reading: Callable[[LocalSource], None]) -> None:
        self._source.feed(reading)
        self._process()


class JobTestHarness:
    """Builds and starts a job for a test. Use it as a context manager, or call `close`.

    Args:
        build: Builds the job with a `HarnessJob`.
        backend: The state backend.
        parallelism: The parallelism of the job.
        max_parallelism: The maximum parallelism of the job.
        processing_time_ms: The initial time of the clock. `advance_processing_time` changes it.
        from_snapshot: The path of a savepoint, of a harness or of any job.
        allow_non_restored_state: Drop state in the savepoint that the job does not register.
        seed: The seed of a random order in which subtasks run. Without it the order is fixed.
        capacity: The maximum number of elements in a channel between two subtasks.

    Errors of the start of a job are raised unchanged.
    """

    def __init__(
        self,
        build: Callable[[HarnessJob], None],
        *,
        backend: Any = "heap",
        parallelism: int = 1,
        max_parallelism: int = 128,
        processing_time_ms: Time = 0,
        from_snapshot: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool = False,
        seed: int | None = None,
        capacity: int = 16,
    ) -> None:
        self._processing_time_ms = _milliseconds(processing_time_ms)
        self._output = _Output()
        self._temporary = tempfile.TemporaryDirectory(prefix="statebackend-harness-")
        self._closing = contextlib.ExitStack()
        self._closing.callback(self._temporary.cleanup)
        with contextlib.ExitStack() as opening:
            opening.push(self._closing)
            environment = LocalStreamEnvironment(
                job_dir=os.path.join(self._temporary.name, "job"),
                backend=backend,
                parallelism=parallelism,
                max_parallelism=max_parallelism,
                clock=lambda: self._processing_time_ms,
            )
            self._closing.callback(environment.close)
            job = HarnessJob(environment)
            build(job)
            self._run: LocalRun = self._closing.enter_context(
                environment.opened_run(
                    from_savepoint=from_snapshot,
                    allow_non_restored_state=allow_non_restored_state,
                    sources_send_time=True,
                    scheduler=DownstreamFirst() if seed is None else Shuffled(seed),
                    capacity=capacity,
                    listener=self._output,
                )
            )
            self._output.names = [
                node.uid if isinstance(node.sink, _ObservedSink) else None
                for node in self._run.parts.program.graph.sinks
            ]
            self._sources = {
                name: ScriptedSource(self._run.job_network.sources[node], node.source, self._run.process_all)
                for name, node in job.sources.items()
                if node in self._run.job_network.sources
            }
            self._run.begin_epoch()
            opening.pop_all()

    def source(self, name: str) -> ScriptedSource:
        """Return a source by its name. Raises `KeyError` for an unknown source, or if no output depends on it."""
        if name not in self._sources:
            raise KeyError(f"the job reads no source {name!r}; it reads {', '.join(map(repr, self._sources))}")
        return self._sources[name]

    def advance_processing_time(self, time_ms: Time) -> None:
        """Advance the clock to a time: timers fire, then watermark strategies emit periodically.

        Raises `ValueError` for an earlier time.
        """
        now_ms = _milliseconds(time_ms)
        if now_ms < self._processing_time_ms:
            raise ValueError(f"the clock is at {self._processing_time_ms} ms and cannot go back to {now_ms} ms")
        self._processing_time_ms = now_ms
        self._run.advance_processing_time(now_ms)
        self._run.process_all()

    def taken(self) -> list[EmittedElement]:
        """Return and remove the emitted elements of all outputs, in order."""
        return self._output.taken()

    def taken_records(self, output: str) -> list[Any]:
        """Return the records of one output, and remove all its elements. Elements of other outputs stay.

        Watermarks and statuses of this output are also removed. Raises `KeyError` for an unknown output.
        """
        return [one.record for one in self._output.taken_of(output) if isinstance(one, Emitted)]

    def watermarks(self) -> Mapping[str, int]:
        """Return the watermarks in milliseconds, by operator uid and source name. Those without one are missing."""
        return self._run.watermarks()

    def snapshot(self, path: str | os.PathLike[str]) -> str:
        """Write a snapshot of the whole job to a new directory and return the path. The job continues.

        It is a savepoint: all operators take it at the same position in the stream, sinks commit the output up to it,
        and functions stay open.
        """
        self._run.end_epoch()
        LocalJob(self._run, self._temporary).savepoint(path)
        self._run.begin_epoch()
        return os.fspath(path)

    def close(self) -> None:
        """Stop the job and remove its files. May be called twice."""
        self._closing.close()

    def __enter__(self) -> JobTestHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Output:
    """An `OutputListener` that collects emitted elements until they are taken. Only an `_ObservedSink` has a name."""

    def __init__(self) -> None:
        self.names: list[str | None] = []
        self._emitted: list[EmittedElement] = []

    def taken(self) -> list[EmittedElement]:
        taken, self._emitted = self._emitted, []
        return taken

    def taken_of(self, output: str) -> list[EmittedElement]:
        if output not in self.names:
            known = ", ".join(repr(name) for name in self.names if name is not None)
            raise KeyError(f"the job has no output {output!r}; its outputs are {known}")
        taken = [one for one in self._emitted if one.output == output]
        self._emitted = [one for one in self._emitted if one.output != output]
        return taken

    def on_records(self, sink_index: int, batch: RecordBatch) -> None:
        name = self.names[sink_index]
        if name is None:
            return
        times = [None] * len(batch.records) if batch.timestamps is None else batch.timestamps
        for record, time_ms in zip(batch.records, times, strict=True):
            self._emitted.append(Emitted(name, record, time_ms, batch.sender_watermark_ms))

    def on_time(self, sink_index: int, element: WatermarkElement) -> None:
        name = self.names[sink_index]
        if name is None:
            return
        if isinstance(element, Watermark):
            self._emitted.append(EmittedWatermark(name, element.timestamp_ms))
        else:
            self._emitted.append(EmittedStatus(name, element))


class _ObservedSink:
    """A sink for outputs that the harness reads through its listener."""

    def __call__(self, record: Any) -> None:
        """Do nothing."""
