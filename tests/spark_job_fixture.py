"""For Spark tests: a job that counts words, a source with one file per batch, and a directory for both."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import attrs
from json_source import add_file

from statebackend import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    RuntimeContext,
    ValueStateDescriptor,
)
from statebackend.streaming.sink import Sink, SinkEpoch, SinkLineage
from typeserializers import AttrsSerializer, former_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from statebackend.spark import SparkJob, SparkStreamEnvironment

SCHEMA = "word string, number int"
BACKENDS = ("rocksdb", "heap")


@attrs.frozen
class Seen:
    times: int
    total: int


@attrs.frozen
class SeenRenamed:
    sum_of_numbers: float = attrs.field(metadata=former_names("total"))
    times: int = 0
    label: str = "?"


SEEN = AttrsSerializer(Seen, name="Seen")
SEEN_RENAMED = AttrsSerializer(SeenRenamed, name="Seen")


class CountWords(KeyedProcessFunction[str, Any, Any]):
    """Emits ``(word, times, total)`` for every row, and stores every kind of state."""

    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", SEEN))
        self.numbers = context.get_list_state(ListStateDescriptor("numbers", int))
        self.by_number = context.get_map_state(MapStateDescriptor("by number", int, int))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int, int]]:
        if value.word == "poison":
            raise ArithmeticError("this word is poison")
        before = self.seen.value() or Seen(0, 0)
        after = Seen(before.times + 1, before.total + value.number)
        self.seen.update(after)
        self.numbers.add(value.number)
        self.by_number.put(value.number, (self.by_number.get(value.number) or 0) + 1)
        yield value.word, after.times, after.total


class CountWordsUpgraded(CountWords):
    """The second version, with another record class. Its output shows the restored state."""

    def open(self, context: RuntimeContext) -> None:
        super().open(_Replacing(context))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int, int]]:
        seen = self.seen.value() or SeenRenamed(0.0)
        assert isinstance(seen, SeenRenamed)
        assert seen.label == "?"
        self.seen.update(SeenRenamed(seen.sum_of_numbers + value.number, seen.times + 1))
        self.numbers.add(value.number)
        yield value.word, seen.times + 1, int(seen.sum_of_numbers) + value.number


class CountWordsIncompatible(CountWords):
    def open(self, context: RuntimeContext) -> None:
        super().open(_Replacing(context, ValueStateDescriptor("seen", str)))


class _Replacing(RuntimeContext):
    """Registers another descriptor for ``seen``."""

    operator_uid = subtask_index = parallelism = epoch_id = is_restored = 0  # type: ignore[assignment]

    def __init__(self, context: RuntimeContext, seen: Any = None) -> None:
        self._context = context
        self._seen = seen or ValueStateDescriptor("seen", SEEN_RENAMED)

    def register(self, descriptor: Any) -> Any:
        return self._context.register(self._seen if descriptor.name == "seen" else descriptor)

    def register_operator_state(self, descriptor: Any) -> Any:
        return self._context.register_operator_state(descriptor)


class WordCount:
    """Jobs that count words, in a directory with their source (one file per batch) and their state."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.source = directory / "source"
        self.source.mkdir()
        self.batches: list[list[tuple[str | None, int]]] = []

    def add_batch(self, rows: Sequence[tuple[str | None, int]]) -> None:
        """Add one file, which becomes one micro-batch."""
        number = len(self.batches)
        self.batches.append(list(rows))
        add_file(self.source, number, ({"word": word, "number": value} for word, value in rows))

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.source))

    def environment(self, job: str = "job", **options: Any) -> SparkStreamEnvironment:
        from statebackend.spark import SparkStreamEnvironment

        return SparkStreamEnvironment(
            self.spark,
            job_dir=self.directory / job,
            local_state_directory=self.directory / "local",
            **{"parallelism": 2, "max_parallelism": 16, **options},
        )

    def start(
        self,
        sink: Any,
        function: KeyedProcessFunction[Any, Any, Any] | None = None,
        job: str = "job",
        execute: Mapping[str, Any] | None = None,
        uid: str = "words",
        name: str = "count words",
        **options: Any,
    ) -> SparkJob:
        environment = self.environment(job, **options)
        words = environment.from_dataframe(self.stream()).key_by("word")
        words.process(
            function or CountWords(), uid=uid, schema="word string, times bigint, total bigint", order_by="number"
        ).sink_to(sink)
        return environment.execute(name, **{"trigger": {"availableNow": True}, **(execute or {})})

    def run(self, sink: Any, *arguments: Any, **options: Any) -> SparkJob:
        job = self.start(sink, *arguments, **options)
        job.await_termination()
        return job

    def expected(self, batches: Sequence[Sequence[tuple[str | None, int]]] | None = None) -> list[tuple[Any, ...]]:
        """The expected output of `CountWords` for the batches, without order."""
        times: Counter[Any] = Counter()
        totals: Counter[Any] = Counter()
        rows = []
        for batch in self.batches if batches is None else batches:
            for word, number in sorted(batch, key=lambda row: row[1]):
                times[word] += 1
                totals[word] += number
                rows.append((word, times[word], totals[word]))
        return sorted(rows)


@contextmanager
def pickled_by_value(*modules: ModuleType) -> Iterator[None]:
    """Pickle functions of these modules and of this one by value, for workers that cannot import them."""
    from pyspark import cloudpickle

    modules = (*modules, sys.modules[__name__])
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def crashing_once(sink: Any, moment: str, epoch_id: int) -> Any:
    """Wraps a sink and raises on the driver at one step of one epoch, like a driver that crashes."""
    from statebackend.spark.frame_sinks import FrameSinkAdapter, stage_epoch

    adapted = sink if isinstance(sink, Sink) else FrameSinkAdapter(sink)

    def die(at: str, epoch: SinkEpoch) -> None:
        if (at, epoch.epoch_id) == (moment, epoch_id):
            raise KeyboardInterrupt(f"the driver dies at {at} of epoch {epoch_id}")

    class Crashing(FrameSinkAdapter):
        def stage_frame(self, frame: Any, epoch: SinkEpoch) -> list[bytes]:
            committables = stage_epoch(adapted, frame, epoch)
            die("stage", epoch)
            return committables

        def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
            die("commit", epoch)
            adapted.commit(epoch, committables)

        def abort(self, epoch: SinkEpoch) -> None:
            """Does nothing: a crashed driver aborts nothing."""

        def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:
            adapted.recover(lineage, last_epoch_id)

    return Crashing(sink)


def memory_sink() -> Any:
    from statebackend.spark.frame_sinks import MemorySink

    return MemorySink()


def rows_of(sink: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in sink.rows)
