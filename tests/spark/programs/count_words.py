"""A job for tests that need a separate driver process. It counts words until its source is read.

    python count_words.py WORK_DIRECTORY BACKENDS [SAVEPOINT BACKEND_OF_NEXT]

It runs one job for each of the BACKENDS, which are separated by commas, all at the same time. Each job reads
``WORK_DIRECTORY/source`` with one file per epoch, stores its state in ``WORK_DIRECTORY/job-BACKEND``, and writes
``WORK_DIRECTORY/out-BACKEND``.

If a SAVEPOINT is named, the first job takes it at the end. Then the files of ``WORK_DIRECTORY/later`` arrive, and
another job continues from the savepoint with three subtasks and the BACKEND_OF_NEXT. It writes
``WORK_DIRECTORY/out-rescaled`` and takes the savepoint ``WORK_DIRECTORY/rescaled-savepoint`` at its end.

``CHECKPOINT_EVENTS`` is the descriptor of an open pipe. It gets a line for each checkpoint: the name of the job and its
number of completed epochs. ``CHECKPOINT_HELD`` is another descriptor and a number of epochs. A job that has completed
that many waits until the other end is closed, so the driver cannot end before it is stopped or killed.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statebackend import (
    BroadcastStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessContext,
    RuntimeContext,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
    ValueStateDescriptor,
)
from statebackend.checkpoint import CheckpointMetadata, FileHandle
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statebackend.checkpoint import ZooKeeperHighAvailability
    from statebackend.spark import SparkJob


@dataclasses.dataclass
class Times:
    """A record class of the main script, which workers cannot import."""

    times: int = 0
    words: list[str] = dataclasses.field(default_factory=list)


class CountWords(KeyedProcessFunction[str, Any, Any]):
    """Emits ``(word, number, times)``. The times are the length of a list and a count, which must be equal.

    Its operator state has the numbers that each subtask has handled, their count, and one word that all subtasks share.
    """

    def open(self, context: RuntimeContext) -> None:
        self.times = context.get_state(ValueStateDescriptor("times", Times, default=Times()))
        self.numbers = context.get_list_state(ListStateDescriptor("numbers", int))
        operator_state = context.operator_state
        self.handled = operator_state.get_list_state(SplitListStateDescriptor("handled", int))
        self.counts = operator_state.get_union_list_state(UnionListStateDescriptor("counts", tuple[int, int]))
        self.names = operator_state.get_broadcast_state(BroadcastStateDescriptor("names", int, str))
        own = [count for index, count in self.counts.get() if index == context.subtask_index]
        if len(own) > 1:
            raise AssertionError(f"subtask {context.subtask_index} has {len(own)} counts")
        self.count = (context.subtask_index, sum(own))
        self.counts.update([self.count])
        self.names.put(context.epoch_id, f"epoch {context.epoch_id}")

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int, int]]:
        before = self.times.value() or Times()
        times = before.times + 1
        self.times.update(Times(times, [value.word]))
        self.numbers.add(value.number)
        if len(self.numbers.get()) != times:
            raise AssertionError(f"{value.word}: {len(self.numbers.get())} numbers after {times} times")
        self.handled.add(value.number)
        self.count = (self.count[0], self.count[1] + 1)
        self.counts.update([self.count])
        yield value.word, value.number, times


def announce_checkpoints() -> None:
    """Report each completed checkpoint to the parent process, and let jobs wait there."""
    pipe, held = os.environ.pop("CHECKPOINT_EVENTS", None), os.environ.pop("CHECKPOINT_HELD", None)
    if pipe is None:
        return
    descriptor, add = int(pipe), CompletedCheckpointStore.add
    holding, held_from = map(int, held.split()) if held is not None else (-1, sys.maxsize)

    def add_and_tell(store: CompletedCheckpointStore, metadata: CheckpointMetadata) -> FileHandle:
        handle = add(store, metadata)
        os.write(descriptor, f"{metadata.job_name} {metadata.checkpoint_id + 1}\n".encode())
        if metadata.checkpoint_id + 1 >= held_from:
            os.read(holding, 1)
        return handle

    CompletedCheckpointStore.add = add_and_tell  # type: ignore[method-assign]


def start(
    spark: SparkSession,
    work: Path,
    backend: str,
    name: str,
    parallelism: int,
    from_savepoint: Path | None = None,
    high_availability: ZooKeeperHighAvailability | None = None,
) -> SparkJob:
    """Start a job that runs until its source is read."""
    from statebackend.spark import ParquetSink, SparkStreamEnvironment

    stream = (
        spark.readStream.schema("word string, number int").option("maxFilesPerTrigger", 1).json(str(work / "source"))
    )
    environment = SparkStreamEnvironment(
        spark,
        job_dir=work / f"job-{name}",
        backend=backend,
        parallelism=parallelism,
        max_parallelism=16,
        local_state_directory=work / "local",
        high_availability=high_availability,
    )
    words = environment.from_dataframe(stream).key_by("word")
    words.process(CountWords(), uid="words", schema="word string, number int, times bigint", order_by="number").sink_to(
        ParquetSink(work / f"out-{name}")
    )
    return environment.execute(name, trigger={"availableNow": True}, from_savepoint=from_savepoint)


def session(work: Path) -> SparkSession:
    """A session with two local cores. Its workers get the program only as pickles."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(work / "spark-local"))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        # The daemon has imported this project's packages before it forks a worker, but not the program.
        .config("spark.python.daemon.module", "python_daemon")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main(work_directory: str, backends: str, savepoint: str | None = None, backend_of_next: str = "") -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    announce_checkpoints()
    work = Path(work_directory)
    spark = session(work)
    jobs = [start(spark, work, backend, backend, 2) for backend in backends.split(",")]
    for job in jobs:
        job.await_termination()
    if savepoint is not None:
        jobs[0].savepoint(work / savepoint)
        for file in sorted((work / "later").iterdir()):
            file.rename(work / "source" / file.name)
        rescaled = start(spark, work, backend_of_next, "rescaled", 3, work / savepoint)
        rescaled.await_termination()
        rescaled.savepoint(work / "rescaled-savepoint")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
