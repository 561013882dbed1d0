"""A harness for whole jobs: the test plays the sources event by event, and sees the outputs when a call returns.

A job is built with the public interface. `HarnessJob.source` makes a stream that the test plays; `HarnessJob.output`
names a stream that the test reads. Each event (a record, a watermark, an idle source, an advance of the clock) passes
through all operators before the call returns. All outputs form one sequence of records, watermarks and statuses, in the
order in which they were emitted.

A snapshot is a savepoint. Another harness can start from it, with another parallelism, backend or job.
"""

from __future__ import annotations

import contextlib
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
    """A record that came out.

    ``timestamp_ms`` is its timestamp, None for a record without. ``watermark_ms`` is the watermark that the operator
    was at when it emitted the record, the smallest time (``-(1 << 63)``) if it had none.
    """

    output: str
    record: Any
    timestamp_ms: int | None
    watermark_ms: int


@frozen
class EmittedWatermark:
    """A watermark that came behind all the records before it."""

    output: str
    timestamp_ms: int


@frozen
class EmittedStatus:
    """The output became idle, or active again."""

    output: str
    status: WatermarkStatus


EmittedElement: TypeAlias = Emitted | EmittedWatermark | EmittedStatus


class HarnessJob:
    """What a job under test is built with."""

    def __init__(self, environment: LocalStreamEnvironment) -> None:
        self.environment = environment
        """The environment of the job."""
        self._sources: dict[str, SourceNode] = {}

    def source(self, name: str, schema: Any = None) -> DataStream:
        """Add a source whose records the test sends.

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
        """Lets the test see a stream, under this name; raises `JobDefinitionError` for a name that is taken."""
        stream.sink_to(_Seen(), uid=name)

    @property
    def sources(self) -> Mapping[str, SourceNode]:
        """The sources so far, by name."""
        return dict(self._sources)


class ScriptedSource:
    """A source that a test plays. Whatever a job raises is raised by the call that fed it, and ends the job.

    A source of an alignment group that is too far ahead reads on when the others have come closer.
    """

    def __init__(
        self, source: SourceSubtask[LocalSource], elements: ElementSource, process: Callable[[], None]
    ) -> None:
        self._source = source
        self._elements = elements
        self._process = process

    @property
    def is_paused(self) -> bool:
        """Whether it waits for others of its alignment group."""
        return self._source.is_paused

    @property
    def unread(self) -> int:
        """How many events it has been given and not read, since it is paused."""
        return self._source.unread

    def send(self, record: Any, timestamp_ms: int | None = None) -> None:
        """A record, with its timestamp in milliseconds if it has one; a strategy of the job may give it another."""
        self.send_all([record], [timestamp_ms])

    def send_all(self, records: Sequence[Any], timestamps_ms: Sequence[int | None] | None = None) -> None:
        """Several records as one batch, as a runtime brings them; without timestamps none has one.

        Raises `ValueError` for what is no timestamp, and what the schema of the source says of a record.
        """
        times = [None] * len(records) if timestamps_ms is None else list(timestamps_ms)
        if len(times) != len(records):
            raise ValueError(f"{len(records)} records were given {len(times)} timestamps; give one for each")
        for time_ms in times:
            if time_ms is not None:
                check_timestamp("the timestamp of a record", time_ms)
        schema = self._elements.schema
        rows = copied_records(list(records), "send_all") if schema is None else rows_of(records, schema)
        self._feed(partial(LocalSource.read, records=rows, timestamps=times))

    def watermark(self, timestamp_ms: int) -> None:
        """Sends a watermark: no record follows whose timestamp is not after this time. `ValueError` for no time.

        With a watermark strategy it counts as one of the strategy, unless that is further already.
        """
        self._feed(partial(LocalSource.read_given_time, element=Watermark(timestamp_ms)))

    def idle(self) -> None:
        """The source is not to be waited for; the watermarks that it sends meanwhile are dropped."""
        self._feed(partial(LocalSource.read_given_time, element=WatermarkStatus.IDLE))

    def active(self) -> None:
        """The source is to be waited for again."""
        self._feed(partial(LocalSource.read_given_time, element=WatermarkStatus.ACTIVE))

    def end(self) -> None:
        """Nothing follows, and time is at its end; raises `IllegalTransitionError` when it was said before."""
        self._source.feed_end()
        self._process()

    def _feed(self, reading: Callable[[LocalSource], None]) -> None:
        self._source.feed(reading)
        self._process()


class JobTestHarness:
    """Builds a job, starts it, and lets a test play it; to be closed, best by ``with``.

    ``build`` is called with a `HarnessJob`. ``processing_time_ms`` is where the clock begins, which moves only when it
    is told. ``from_snapshot`` is the path of a savepoint: of a harness, or of a job anywhere. ``seed`` lets subtasks
    move in an order by chance, which is the same for the same seed; without one there is one fixed order. ``capacity``
    is how many elements a channel between two subtasks has room for.

    Raises what the start of a job raises.
    """

    def __init__(
        self,
        build: Callable[[HarnessJob], None],
        *,
        backend: Any = "heap",
        parallelism: int = 1,
        max_parallelism: int = 128,
        processing_time_ms: int = 0,
        from_snapshot: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool = False,
        seed: int | None = None,
        capacity: int = 16,
    ) -> None:
        self._processing_time_ms = processing_time_ms
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
                    sources_tell_time=True,
                    scheduler=DownstreamFirst() if seed is None else Shuffled(seed),
                    capacity=capacity,
                    listener=self._output,
                )
            )
            self._output.names = [
                node.uid if isinstance(node.sink, _Seen) else None for node in self._run.parts.graph.sinks
            ]
            self._sources = {
                name: ScriptedSource(self._run.job_network.sources[node], node.source, self._run.process_all)
                for name, node in job.sources.items()
                if node in self._run.job_network.sources
            }
            self._run.begin_epoch()
            opening.pop_all()

    def source(self, name: str) -> ScriptedSource:
        """A source by the name that the job gave it; raises `KeyError` for a name that no output depends on."""
        if name not in self._sources:
            raise KeyError(f"the job reads no source {name!r}; it reads {', '.join(map(repr, self._sources))}")
        return self._sources[name]

    def advance_processing_time(self, time_ms: int) -> None:
        """The clock moves on to a time in milliseconds: timers fire, then strategies look at it, as at an interval.

        Raises `ValueError` for a time that lies behind.
        """
        if time_ms < self._processing_time_ms:
            raise ValueError(f"the clock is at {self._processing_time_ms} ms and cannot go back to {time_ms} ms")
        self._processing_time_ms = time_ms
        self._run.advance_processing_time(time_ms)
        self._run.process_all()

    def taken(self) -> list[EmittedElement]:
        """What has come out and was not taken yet, of all outputs, in order."""
        return self._output.taken()

    def taken_records(self, output: str) -> list[Any]:
        """The records of one output since it was taken last. Records of other outputs stay until they are taken.

        Takes the watermarks and statuses of this output too. Raises `KeyError` for a name that is no output.
        """
        return [one.record for one in self._output.taken_of(output) if isinstance(one, Emitted)]

    def watermarks(self) -> Mapping[str, int]:
        """How far event time is, by operator uid and by name of source, in milliseconds; without one, left out."""
        return self._run.watermarks()

    def snapshot(self, path: str | os.PathLike[str]) -> str:
        """Takes a snapshot of the whole job into a new directory, and goes on; returns the path.

        It is a savepoint: all operators take it at the same place in the stream, ordinary sinks get what has come out
        by then, and functions stay open.
        """
        self._run.end_epoch()
        LocalJob(self._run, self._temporary).savepoint(path)
        self._run.begin_epoch()
        return os.fspath(path)

    def close(self) -> None:
        """Gives up the job and removes what it has written; may be called twice."""
        self._closing.close()

    def __enter__(self) -> JobTestHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Output:
    """What has come out since it was taken last; an `OutputListener`. Other sinks than `_Seen` have no name here."""

    def __init__(self) -> None:
        self.names: list[str | None] = []
        self._seen: list[EmittedElement] = []

    def taken(self) -> list[EmittedElement]:
        taken, self._seen = self._seen, []
        return taken

    def taken_of(self, output: str) -> list[EmittedElement]:
        if output not in self.names:
            known = ", ".join(repr(name) for name in self.names if name is not None)
            raise KeyError(f"the job has no output {output!r}; its outputs are {known}")
        taken = [one for one in self._seen if one.output == output]
        self._seen = [one for one in self._seen if one.output != output]
        return taken

    def on_records(self, sink_index: int, batch: RecordBatch) -> None:
        name = self.names[sink_index]
        if name is None:
            return
        times = [None] * len(batch.records) if batch.timestamps is None else batch.timestamps
        for record, time_ms in zip(batch.records, times, strict=True):
            self._seen.append(Emitted(name, record, time_ms, batch.sender_watermark_ms))

    def on_time(self, sink_index: int, element: WatermarkElement) -> None:
        name = self.names[sink_index]
        if name is None:
            return
        if isinstance(element, Watermark):
            self._seen.append(EmittedWatermark(name, element.timestamp_ms))
        else:
            self._seen.append(EmittedStatus(name, element))


class _Seen:
    """A sink of records that the harness has seen before."""

    def __call__(self, record: Any) -> None:
        """Keeps nothing."""
