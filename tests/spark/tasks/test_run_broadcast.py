"""The broadcast of a run: workers cache the last few runs, and all disks are cleaned after the run."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from spark_job_fixture import CountWords, WordCount, memory_sink, pickled_by_value

from snapshots import SimpleTypeSerializerSnapshot, register_snapshot, snapshot_class_for
from statebackend.spark.tasks import epoch_task as run_broadcast
from statebackend.spark.tasks.epoch_task import KEPT_RUNS, RunBroadcast, RunReference
from statebackend.spark.tasks.program_pickles import ProgramModules
from statebackend.streaming.observing.job_events import JobListener
from statebackend.streaming.sink import SinkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAT_BYTES = 3 << 20
GIVE_UP_S = 600
"""Limits the wait for a file that is never removed. A busy machine does not reach it."""


class FatCountWords(CountWords):
    """Counts words. It has a large attribute."""

    def __init__(self) -> None:
        # These bytes cannot be compressed much.
        self.ballast = bytes((number * number * 31 + number // 7) % 251 for number in range(FAT_BYTES))


@pytest.fixture(scope="module")
def _by_value() -> Iterator[None]:
    with pickled_by_value(sys.modules[__name__]):
        yield


@pytest.fixture
def kept_runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    kept: Any = type(run_broadcast._parts_by_run)()
    monkeypatch.setattr(run_broadcast, "_parts_by_run", kept)
    return kept


class Sent:
    """A broadcast that counts reads of its value."""

    def __init__(self, operators: object) -> None:
        self._value = (cloudpickle.dumps(ProgramModules.of_this_process()), cloudpickle.dumps(operators))
        self.asked = 0

    @property
    def value(self) -> tuple[bytes, bytes]:
        self.asked += 1
        return self._value


@pytest.mark.extended
def test_a_worker_keeps_the_broadcasts_of_the_last_few_runs(kept_runs: Any) -> None:
    sent = [Sent({"words": number}) for number in range(KEPT_RUNS + 1)]
    references: list[Any] = [RunReference(f"run-{number}", one) for number, one in enumerate(sent)]  # type: ignore[arg-type]
    for number, reference in enumerate(references[:-1]):
        assert reference.parts().operators == {"words": number}
    # The run in use stays cached, even if it came first.
    references[0].parts()
    references[-1].parts()
    assert list(kept_runs) == ["run-2", "run-3", "run-0", "run-4"]
    assert [one.asked for one in sent] == [1] * len(sent)
    references[1].parts()
    assert sent[1].asked == 2
    assert len(kept_runs) == KEPT_RUNS


@pytest.mark.extended
@pytest.mark.usefixtures("own_registrations")
def test_a_worker_of_two_runs_uses_the_classes_of_the_current_task(kept_runs: Any) -> None:
    """A notebook cell that runs again defines its class again, while a job with the earlier class continues."""
    references = []
    for version in range(2):
        named = type("Named", (SimpleTypeSerializerSnapshot,), {"__module__": "__main__", "version": version})
        register_snapshot("tests.run_broadcast.Named")(named)
        references.append(RunReference(f"run-{version}", Sent({})))  # type: ignore[arg-type]
    for version in (0, 1, 1, 0, 1):
        references[version].parts()
        for name in ("tests.run_broadcast.Named", "__main__:Named"):
            assert getattr(snapshot_class_for(name), "version", None) == version


class Knot:
    """Cyclic garbage as soon as it is unreferenced, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.extended
def test_cached_objects_of_a_worker_are_frozen_for_the_collector_until_the_next_run(kept_runs: Any) -> None:
    runs: list[Any] = [RunReference(f"run-{number}", Sent({})) for number in range(2)]  # type: ignore[arg-type]
    knot = Knot()
    watched = weakref.ref(knot)
    try:
        runs[0].parts()
        assert gc.get_freeze_count()
        del knot
        gc.collect()
        assert watched() is not None
        runs[0].parts()
        assert watched() is not None
        runs[1].parts()
        assert watched() is None
    finally:
        gc.unfreeze()


def files_of_spark(spark: SparkSession) -> dict[Path, int]:
    """All files below Spark's local directories, which contain broadcasts of the driver and of executors."""
    root = Path(spark.conf.get("spark.local.dir"))
    assert Path(spark.sparkContext._temp_dir).is_relative_to(root)
    sizes: dict[Path, int] = {}
    for directory, _, names in os.walk(root):
        for name in names:
            # Spark removes an unreferenced broadcast when the JVM's garbage collector finds it.
            with contextlib.suppress(FileNotFoundError):
                path = Path(directory, name)
                sizes[path] = path.stat().st_size
    return sizes


def is_gone(find: Callable[[], object]) -> bool:
    """Whether no file is left after Spark has removed its blocks, which it does asynchronously."""
    end_s = time.monotonic() + GIVE_UP_S
    while find() and time.monotonic() < end_s:
        os.sched_yield()
    return not find()


@pytest.mark.spark
@pytest.mark.usefixtures("_by_value")
class TestOnSpark:
    def test_the_file_of_a_broadcast_is_removed_with_it(self, spark: SparkSession) -> None:
        before = files_of_spark(spark)
        operator: Any = SimpleNamespace(parts=SimpleNamespace(operator_uid="words"), ballast=bytes(FAT_BYTES))
        broadcast = RunBroadcast(spark.sparkContext, "run", [operator])
        assert max(files_of_spark(spark).values()) >= FAT_BYTES
        broadcast.destroy()
        broadcast.destroy()
        assert is_gone(lambda: files_of_spark(spark).keys() - before.keys())

    def test_a_large_function_is_on_the_disk_once_and_removed_after_the_run(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        from statebackend.spark.frame_sinks import ForEachEpochSink

        before = files_of_spark(spark)
        place = WordCount(spark, tmp_path)
        for number in range(3):
            place.add_batch([("a", number), ("b", number)])
        seen: list[int] = []

        def fat_files(frame: Any, epoch_id: int) -> None:
            frame.collect()
            seen.append(sum(size >= FAT_BYTES // 2 for size in files_of_spark(spark).values()))

        place.run(ForEachEpochSink(fat_files), FatCountWords())
        assert seen == [seen[0]] * 3
        assert is_gone(
            lambda: {path for path, size in files_of_spark(spark).items() if size >= FAT_BYTES // 2} - before.keys()
        )

    @pytest.mark.extended
    def test_a_job_that_fails_to_start_leaves_no_broadcast(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = files_of_spark(spark)
        place = WordCount(spark, tmp_path)
        place.add_batch([("a", 1)])
        sink = memory_sink()

        def recover(*arguments: object) -> None:
            raise SinkError("it must not be started")

        monkeypatch.setattr(type(sink), "recover", recover)
        heard: list[Any] = []

        class Listening(JobListener):
            def started(self, event: Any) -> None:
                heard.append(event.run.run_id)

            def terminated(self, event: Any) -> None:
                heard.append((event.run.run_id, event.error))

        make_environment = place.environment

        def environment(*arguments: Any, **options: Any) -> Any:
            made = make_environment(*arguments, **options)
            made.add_listener(Listening())
            return made

        monkeypatch.setattr(place, "environment", environment)
        with pytest.raises(SinkError, match="must not be started") as raised:
            place.run(sink)
        assert is_gone(lambda: files_of_spark(spark).keys() - before.keys())
        assert heard == [heard[0], (heard[0], raised.value)], "whoever hears of the end has heard of the start"
