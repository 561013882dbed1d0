"""Full or broken disks and missing permissions: errors name target and fix, and later runs lose and double nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest
from spark_job_fixture import CountWords, WordCount, pickled_by_value

from statebackend import KeyedProcessFunction, ValueStateDescriptor
from statebackend.checkpoint import CheckpointFileSystem, StorageError
from statebackend.connectors import (
    DeltaSink,
    FileSink,
    IcebergSink,
    ParquetSink,
    Sink,
    SinkEpoch,
    SinkError,
    SinkLineage,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.stream_graph import SplitRead
from statebackend.testing.sinks import Row, SinkDriver, rows_of_epoch, rows_of_epochs

pytestmark = pytest.mark.slow

NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can enter."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextlib.contextmanager
def full_disk(directory: Path, free_bytes: int = 0) -> Iterator[None]:
    """No file of this process can grow further. The operating system reports that the file is too large."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def no_permission(directory: Path) -> Iterator[None]:
    """This process can read the files below a directory, but not change them."""
    entries = [directory, *directory.rglob("*")]
    modes = {entry: entry.stat().st_mode for entry in entries}
    for entry in entries:
        entry.chmod(0o555 if entry.is_dir() else 0o444)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        for entry, mode in modes.items():
            entry.chmod(mode)


@contextlib.contextmanager
def broken_disk(directory: Path) -> Iterator[None]:
    """The disk reports an input/output error at fsync."""

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    fsync, os.fsync = os.fsync, failing
    try:
        yield
    finally:
        os.fsync = fsync


def parquet(path: Path) -> Sink:
    return ParquetSink(path)


def csv(path: Path) -> Sink:
    return FileSink(path, "csv")


def delta(path: Path) -> Sink:
    pytest.importorskip("deltalake")
    return DeltaSink(path)


def iceberg(path: Path) -> Sink:
    pytest.importorskip("pyiceberg")
    path.mkdir(exist_ok=True)
    return IcebergSink(
        "shop.orders", "lake", {"uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}", "type": "sql"}
    )


def rows_in(sink: Sink, path: Path) -> list[Row]:
    if isinstance(sink, DeltaSink):
        import deltalake

        table = pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table())
    elif isinstance(sink, IcebergSink):
        table = sink._open_catalog().load_table("shop.orders").scan().to_arrow()
    elif isinstance(sink, ParquetSink):
        table = pa.dataset.dataset(sorted(path.glob("epoch=*/part-*"))).to_table()
    else:
        table = pa.dataset.dataset(sorted(path.glob("epoch=*/part-*")), format="csv").to_table()
    return sorted((row["k"], row["n"]) for row in table.to_pylist())


FAULTS = [(full_disk, "Free space"), (no_permission, "Let this user read and write there")]
FAULTS_OF_FILES = [*FAULTS, (broken_disk, "Repair the disk")]
TARGETS = [(fault, fix, sink) for sink in (parquet, csv, delta, iceberg) for fault, fix in FAULTS] + [
    (broken_disk, "Repair the disk", parquet),
    (broken_disk, "Repair the disk", csv),
]
TARGETS_BY_BACKEND = [(*target, ("heap", "rocksdb")[number // 2 % 2]) for number, target in enumerate(TARGETS)]
TARGETS_ON_SPARK = [
    (full_disk, "Free space", parquet, "commit"),
    (broken_disk, "Repair the disk", csv, "stage"),
    (no_permission, "Let this user read and write there", delta, "stage"),
    (full_disk, "Free space", iceberg, "commit"),
]
"""Each sink, fault and step at least once. The tests above cover the other combinations without Spark."""


@pytest.mark.parametrize(("fault", "fix", "new_sink"), TARGETS)
@pytest.mark.parametrize("step", ["stage", "commit"])
def test_a_failed_step_of_an_epoch_is_repeated(
    place: Path,
    new_sink: Callable[[Path], Sink],
    fault: Callable[[Path], AbstractContextManager[Any]],
    fix: str,
    step: str,
) -> None:
    path = place / "target"
    lineage = SinkLineage("sink", "job")
    first = SinkDriver(new_sink(path), lineage, "run-1")
    first.start()
    first.run(0)
    if step == "stage":
        with pytest.raises(SinkError) as caught, fault(place):
            first.stage(1, 0, rows_of_epoch(1))
        first.sink.abort(first.epoch(1))
    else:
        first.store(1, [first.stage(1, 0, rows_of_epoch(1))])
        with pytest.raises(SinkError) as caught, fault(place):
            first.commit()
    assert fix in str(caught.value)
    assert str(path) in str(caught.value) or first.sink.identity in str(caught.value)
    assert str(caught.value).isprintable(), "one line without colours"
    assert rows_in(first.sink, path) == rows_of_epochs(0), "nothing is half applied"
    second = SinkDriver(new_sink(path), lineage, "run-2", checkpoint=first.checkpoint)
    second.start()
    for epoch_id in range(1 if step == "stage" else 2, 4):
        second.run(epoch_id)
    assert rows_in(second.sink, path) == rows_of_epochs(0, 1, 2, 3)


@pytest.mark.parametrize("free_bytes", [1, 300, 600])
@pytest.mark.parametrize("new_sink", [parquet, csv, delta, iceberg])
def test_a_disk_that_becomes_full_in_a_file_of_rows_is_named_as_the_cause(
    place: Path, new_sink: Callable[[Path], Sink], free_bytes: int
) -> None:
    driver = SinkDriver(new_sink(place / "target"), SinkLineage("sink", "job"), "run-1")
    driver.start()
    driver.run(0)
    many = [(f"k{number}", number) for number in range(500)]
    with pytest.raises(SinkError, match="Free space"), full_disk(place, free_bytes):
        driver.stage(1, 0, many)
    driver.sink.abort(driver.epoch(1))
    driver.run(1)
    assert rows_in(driver.sink, place / "target") == rows_of_epochs(0, 1)


@pytest.mark.parametrize(("fault", "fix"), FAULTS_OF_FILES)
def test_a_job_directory_reports_the_file_and_the_fix(
    place: Path, fault: Callable[[Path], AbstractContextManager[Any]], fix: str
) -> None:
    files = CheckpointFileSystem.from_uri(place)
    files.write_file("checkpoints/chk-1/_metadata", b"old")
    with pytest.raises(StorageError, match=rf"cannot write {place}/checkpoints/chk-1/_metadata: .*{fix}"), fault(place):
        files.write_file("checkpoints/chk-1/_metadata", b"new")
    assert files.read_file("checkpoints/chk-1/_metadata") == b"old"
    assert files.list_files(include_temporary=True) == ("checkpoints/chk-1/_metadata",)


class Numbers:
    """A source of numbers that breaks the disk at a position of its first run."""

    def __init__(self, break_disk: Callable[[], Any]) -> None:
        self._break_disk = break_disk

    def splits(self) -> Mapping[str, int]:
        return {"numbers": 0}

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        if position == BREAKS_AT:
            self._break_disk()
        end = min(position + max_records, BREAKS_AT if position < BREAKS_AT else LAST)
        return SplitRead([{"k": f"k{n % 3}", "n": n} for n in range(position, end)], end, end == LAST)


class Count(KeyedProcessFunction[str, Any, Any]):
    """Emits each key with its record count so far."""

    count = ValueStateDescriptor("count", int, default=0)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        yield value.k, self.count.value()


BREAKS_AT, LAST = 30, 90


@pytest.mark.extended_after(3)
@pytest.mark.parametrize(("fault", "fix", "new_sink", "backend"), TARGETS_BY_BACKEND)
def test_a_running_job_fails_and_its_next_run_loses_and_doubles_nothing(
    place: Path,
    new_sink: Callable[[Path], Sink],
    fault: Callable[[Path], AbstractContextManager[Any]],
    fix: str,
    backend: str,
) -> None:
    def run(break_disk: Callable[[], Any]) -> None:
        environment = LocalStreamEnvironment(job_dir=place / "job", epoch_size=10, parallelism=2, backend=backend)
        records = environment.from_source(Numbers(break_disk), "k string, n bigint", uid="numbers")
        counted = records.key_by("k").process(Count(), uid="count", schema="k string, n bigint")
        counted.sink_to(new_sink(place / "target"), uid="out")
        environment.execute()

    with contextlib.ExitStack() as faults, pytest.raises(Exception) as caught:  # noqa: PT011 - of the disk or a sink
        run(lambda: faults.enter_context(fault(place)))
    assert fix in str(caught.value)
    assert str(place) in str(caught.value)
    written = rows_in(new_sink(place / "target"), place / "target")
    assert written == [(f"k{k}", n) for k in range(3) for n in range(1, BREAKS_AT // 3 + 1)]
    run(lambda: None)
    rows = rows_in(new_sink(place / "target"), place / "target")
    assert rows == [(f"k{k}", n) for k in range(3) for n in range(1, LAST // 3 + 1)]


class OnBrokenDisk(Sink):
    """Wraps a sink. The disk of a task or of the driver breaks at one step of epoch 1."""

    def __init__(self, sink: Sink, step: str, fault: Callable[[], AbstractContextManager[Any]]) -> None:
        self._sink, self._step, self._fault = sink, step, fault

    @property
    def identity(self) -> str:
        return self._sink.identity

    def _disk_at(self, step: str, epoch: SinkEpoch) -> AbstractContextManager[Any]:
        return self._fault() if (step, epoch.epoch_id) == (self._step, 1) else contextlib.nullcontext()

    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: pa.RecordBatchReader) -> bytes:
        with self._disk_at("stage", epoch):
            return self._sink.stage(epoch, subtask_index, rows)

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        with self._disk_at("commit", epoch):
            self._sink.commit(epoch, committables)

    def abort(self, epoch: SinkEpoch) -> None:
        self._sink.abort(epoch)

    def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:
        self._sink.recover(lineage, last_epoch_id)


class Breaking(OnBrokenDisk):
    """Wraps a sink. After its commit of epoch 0, the disk of the driver breaks."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_fault": None}

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        super().commit(epoch, committables)
        if epoch.epoch_id == 0:
            self._fault()


class Totals(CountWords):
    """Emits each word with its count so far."""

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        for word, times, _ in super().process_element(value, context):
            yield word, times


def on_spark(word_count: WordCount, sink: Sink) -> None:
    with pickled_by_value(sys.modules[__name__]):
        environment = word_count.environment(parallelism=1)
        words = environment.from_dataframe(word_count.stream()).key_by("word")
        counted = words.process(Totals(), uid="words", schema="k string, n bigint", order_by="number")
        counted.sink_to(sink, uid="out")
        environment.execute("count words", trigger={"availableNow": True}).await_termination()


@pytest.mark.spark
@pytest.mark.parametrize(("fault", "fix", "new_sink", "step"), TARGETS_ON_SPARK)
@pytest.mark.extended
def test_a_spark_job_fails_and_its_next_run_loses_and_doubles_nothing(
    spark: Any,
    place: Path,
    fault: Callable[[Path], AbstractContextManager[Any]],
    fix: str,
    new_sink: Callable[[Path], Sink],
    step: str,
) -> None:
    word_count, target = WordCount(spark, place), place / "target"
    for first in range(0, 9, 3):
        word_count.add_batch([(f"k{n % 3}", n) for n in range(first, first + 3)])
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of Spark, with the error of the sink
        on_spark(word_count, OnBrokenDisk(new_sink(target), step, lambda: fault(target)))
    assert fix in str(caught.value)
    assert str(target) in str(caught.value) or new_sink(target).identity in str(caught.value)
    assert rows_in(new_sink(target), target) == [(f"k{k}", 1) for k in range(3)], "nothing is half applied"
    on_spark(word_count, new_sink(target))
    assert rows_in(new_sink(target), target) == [(f"k{k}", n) for k in range(3) for n in range(1, 4)]


@pytest.mark.extended
@pytest.mark.spark
def test_a_spark_job_whose_directory_breaks_continues_from_its_last_checkpoint(spark: Any, place: Path) -> None:
    word_count, target = WordCount(spark, place), place / "target"
    for number in range(3):
        word_count.add_batch([("a", number)])
    faults = contextlib.ExitStack()
    sink = Breaking(parquet(target), "", lambda: faults.enter_context(full_disk(place / "job")))
    with faults, pytest.raises(Exception) as caught:  # noqa: PT011 - of Spark or a store
        on_spark(word_count, sink)
    assert "Free space" in str(caught.value)
    assert str(place / "job") in str(caught.value)
    assert rows_in(parquet(target), target) == [("a", 1)]
    on_spark(word_count, parquet(target))
    assert rows_in(parquet(target), target) == [("a", 1), ("a", 2), ("a", 3)]
