"""Spark recomputes stages whose shuffle files are lost."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chain_runner import COUNTED, CountPerKey, run_chain

from statebackend import EpochError, KeyedProcessFunction, ProcessContext
from statebackend.checkpoint import DirectoryCheckpointStore
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statebackend.streaming.data_stream import DataStream

pytestmark = pytest.mark.spark

WORDS = [{"word": f"w{number}"} for number in range(40)]


class CountAndStamp(CountPerKey):
    """Its state depends only on the records. Its output also depends on the attempt."""

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[tuple[str, int]]:
        for key, _ in super().process_element(value, context):
            yield key, time.time_ns()


class LoseShuffledRows(CountPerKey):
    """The first subtask with rows removes all shuffle files, so that the last subtask finds none.

    The first subtasks have read their rows before that. The marker's lock stops the others meanwhile. There are more
    subtasks than cores, so the last subtask starts only when another one has ended.
    """

    def __init__(self, shuffled: str, marker: str) -> None:
        self.shuffled = shuffled
        self.marker = marker

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[tuple[str, int]]:
        with open(self.marker, "a+") as marker:
            fcntl.flock(marker, fcntl.LOCK_EX)
            marker.seek(0)
            if not marker.read():
                for path in glob.glob(self.shuffled, recursive=True):
                    # Spark may remove shuffle files of an earlier query at the same time.
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(path)
                marker.write("lost")
        yield from super().process_element(value, context)


def chain_of(first: KeyedProcessFunction[Any, Any, Any], second: KeyedProcessFunction[Any, Any, Any], sink: Any) -> Any:
    def chain(stream: DataStream) -> None:
        rows = stream.key_by("word").process(first, uid="first", schema=COUNTED)
        rows.key_by("key").process(second, uid="second", schema=COUNTED).sink_to(sink)

    return chain


@pytest.mark.extended
def test_rows_that_differ_in_a_second_attempt_fail_the_epoch_with_advice(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark.frame_sinks import MemorySink

    shuffled = os.path.join(spark.sparkContext.getConf().get("spark.local.dir") or "", "**", "shuffle_*.data")
    marker = tmp_path / "lost"
    options = {"parallelism": 3, "max_parallelism": 3}

    sink = MemorySink()
    losing = LoseShuffledRows(shuffled, str(marker))
    run_chain(spark, tmp_path / "same", "word string", [WORDS], chain_of(CountPerKey(), losing, sink), **options)
    assert marker.exists()
    assert sorted(row.key for row in sink.rows) == sorted(row["word"] for row in WORDS)
    store = DirectoryCheckpointStore(CheckpointFileSystem.from_uri(tmp_path / "same" / "job"))
    store.recover()
    # When the epoch is complete, the files of other attempts are deleted.
    assert store.delete_orphans() == ()

    marker.unlink()
    chain = chain_of(CountAndStamp(), losing, MemorySink())
    with pytest.raises(EpochError, match=r"epoch 0 failed: rows .* computed again with another result.* order_by"):
        run_chain(spark, tmp_path / "other", "word string", [WORDS], chain, **options)
