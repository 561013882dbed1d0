"""Runs a small chain over given batches on a real Spark session."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from json_source import add_file

from statebackend import KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor
from statebackend.streaming.data_stream import DataStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statebackend.spark import SparkJob


class CountPerKey(KeyedProcessFunction[Any, Any, Any]):
    """Emits ``(str(key), count)``."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[tuple[str, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield str(context.current_key), count


COUNTED = "key string, count bigint"


def write_batches(directory: Path, batches: Sequence[Sequence[dict[str, Any]]]) -> Path:
    """Write one JSON file per batch into a directory."""
    source = directory / "source"
    source.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(batches):
        add_file(source, number, rows)
    return source


def run_chain(
    spark: SparkSession,
    directory: Path,
    schema: str,
    batches: Sequence[Sequence[dict[str, Any]]],
    chain: Callable[[DataStream], None],
    **options: Any,
) -> SparkJob:
    """Run the job that ``chain`` builds, one epoch per batch, and return the finished job."""
    with pickled_by_value(__name__, chain.__module__):
        job = _start(spark, directory, schema, batches, chain, options)
        job.await_termination()
    return job


@contextlib.contextmanager
def pickled_by_value(*modules: str) -> Iterator[None]:
    """Pickle the functions of these modules by value, for workers that cannot import them."""
    from pyspark import cloudpickle

    for name in set(modules):
        cloudpickle.register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for name in set(modules):
            cloudpickle.unregister_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]


def _start(
    spark: SparkSession,
    directory: Path,
    schema: str,
    batches: Sequence[Sequence[dict[str, Any]]],
    chain: Callable[[DataStream], None],
    options: Mapping[str, Any],
) -> SparkJob:
    from statebackend.spark import SparkStreamEnvironment

    source = write_batches(directory, batches)
    environment = SparkStreamEnvironment(
        spark,
        job_dir=directory / "job",
        local_state_directory=directory / "local",
        **{"parallelism": 2, "max_parallelism": 16, "backend": "heap", **options},
    )
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(source))
    chain(environment.from_dataframe(stream))
    return environment.execute("chain", trigger={"availableNow": True})
