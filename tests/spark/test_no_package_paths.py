"""Files of a job contain no paths of our modules, because a moved module must not make a checkpoint unreadable."""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow
import pyarrow.parquet
import pytest
from spark_job_fixture import CountWords, WordCount, pickled_by_value

from statebackend import ProcessContext, RuntimeContext, SplitListStateDescriptor
from statebackend.local import LocalStreamEnvironment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("statebackend", "typeserializers", "snapshots", "migration")
BACKENDS = ("heap", "rocksdb")
SCHEMA = "word string, times bigint, total bigint"


def module_path() -> re.Pattern[bytes]:
    """Matches dotted paths of our modules and packages, but not registered names such as those of settings."""
    found = []
    for package in PACKAGES:
        modules = "|".join(sorted(one.name for one in pkgutil.iter_modules(import_module(package).__path__)))
        found.append(rf"\b{package}\.(?:{modules})\b")
    return re.compile("|".join(found).encode())


def contents(path: Path) -> Iterator[bytes]:
    """The content of a file: its bytes, and its compressed parts after decompression."""
    data = path.read_bytes()
    yield data
    if data.startswith(b"Obj\x01"):
        with path.open("rb") as file:
            yield from (repr(record).encode() for record in fastavro.reader(file))
    elif data.startswith(b"PAR1"):
        table = pyarrow.parquet.read_table(path, partitioning=None)
        yield repr((table.schema.metadata, table.to_pylist())).encode()


def paths_in(directory: Path) -> list[tuple[str, bytes]]:
    """The files below a directory that contain a module path, with that path."""
    pattern = module_path()
    return [
        (str(path.relative_to(directory)), match[0])
        for path in sorted(directory.rglob("*"))
        if path.is_file()
        for content in contents(path)
        for match in pattern.finditer(content)
    ]


def identities_in(directory: Path) -> set[str]:
    """The sink identities in the checkpoints of a job directory."""
    found: set[str] = set()
    for path in directory.glob("checkpoints/*/_metadata"):
        with path.open("rb") as file:
            for record in fastavro.reader(file):
                found |= set(re.findall(r"'identity': '([^']*)'", repr(record)))
    return found


class Counting(CountWords):
    """Stores every kind of keyed state, and operator state."""

    def open(self, context: RuntimeContext) -> None:
        super().open(context)
        self.words = context.operator_state.get_list_state(SplitListStateDescriptor("words", str))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int, int]]:
        self.words.add(value.word)
        yield from super().process_element(value, context)


class StagingSink:
    """A sink of the local runtime that stages bytes and writes nothing."""

    identity = "staging"

    def stage_records(self, records: Any, epoch_id: int, attempt_id: str) -> bytes:
        return b"staged"

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Commits nothing."""

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Removes nothing."""

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Removes nothing."""


def test_the_search_finds_modules_in_bytes_and_in_compressed_parts(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"\x00statebackend.spark.parquet_sink.NoopSink\x00 statebackend.metadata_version")
    schema: Any = {
        "type": "record",
        "name": "statebackend.CheckpointMetadata",
        "fields": [{"name": "a", "type": "bytes"}],
    }
    with (tmp_path / "avro").open("wb") as file:
        fastavro.writer(file, schema, [{"a": b"typeserializers.scalars " * 100}], codec="deflate")
    table = pyarrow.table({"a": [b"migration.schema_migration " * 100]})
    pyarrow.parquet.write_table(table, tmp_path / "parquet", compression="zstd", write_statistics=False)
    assert {file for file, _ in paths_in(tmp_path)} == {"avro", "parquet", "plain"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_local_job_and_its_savepoint_name_no_module(tmp_path: Path, backend: str) -> None:
    from pyspark.sql import Row

    environment = LocalStreamEnvironment(
        job_dir=tmp_path / "job", backend=backend, parallelism=2, max_parallelism=16, epoch_size=2
    )
    rows = [Row(word=word, number=number) for number, word in enumerate("abcab")]
    words = environment.from_elements(rows).key_by("word")
    words.process(Counting(), uid="words", schema=SCHEMA).sink_to(StagingSink())
    environment.execute("count words").savepoint(tmp_path / "savepoint")
    assert identities_in(tmp_path / "job") == {"staging"}
    assert paths_in(tmp_path) == []


@pytest.mark.extended
@pytest.mark.spark
def test_a_spark_job_and_its_savepoint_name_no_module(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark import ForEachEpochSink, MemorySink, NoopSink, ParquetSink

    word_count = WordCount(spark, tmp_path)
    word_count.add_batch([("a", 1), ("b", 2)])
    word_count.add_batch([("c", 3), ("a", 4)])
    environment = word_count.environment(backend="rocksdb")
    words = environment.from_dataframe(word_count.stream()).key_by("word")
    counts = words.process(Counting(), uid="words", schema=SCHEMA, order_by="number")
    counts.sink_to(ParquetSink(tmp_path / "out"), uid="parquet")
    counts.sink_to(MemorySink(), uid="memory")
    counts.sink_to(NoopSink(), uid="noop")
    counts.sink_to(ForEachEpochSink(lambda frame, epoch_id: frame.count()), uid="function")
    with pickled_by_value(sys.modules[__name__]):
        job = environment.execute("count words", trigger={"availableNow": True})
        job.await_termination()
        job.savepoint(tmp_path / "savepoint")
    # The identity of the Parquet sink, `ParquetSink('/path')`, has other quotes in a repr, so it is not found.
    assert identities_in(tmp_path / "job") == {"memory", "noop", "for-each-epoch"}
    assert paths_in(tmp_path) == []
