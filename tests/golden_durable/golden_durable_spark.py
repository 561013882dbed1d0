"""The Spark job of the savepoint and the job directory in `tests/golden/durable`.

It counts words from files. Spark writes absolute paths of its input files into its log, and a job continues only with
the same source. So the source is read through a mount: ``viewfs://golden/source`` is the directory given to `mounted`.
The golden files contain no machine path.

It imports only public names of the packages, so that the code of older commits can run it too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import golden_durable_programs as programs
from golden_durable_programs import VISIT_V1, VISIT_V2, Collected, plain, visit_v1

from statebackend import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    RuntimeContext,
    SplitListStateDescriptor,
    ValueStateDescriptor,
)

SOURCE = "viewfs://golden/source"
SCHEMA = "word string, number int"
OUT_SCHEMA = "word string, found string"
BATCHES = [
    [("ada", 1), ("bob", 2), ("cyd", 3), ("dan", 4)],
    [("ada", 7), ("bob", 8), ("eve", 5)],
    [("ada", 2), ("gus", 10)],
]
MORE = [("ada", 11), ("bob", 12), ("lou", 13)]


class Keep(KeyedProcessFunction[str, Any, Any]):
    """Stores every number, and emits the previous numbers of the key as JSON."""

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.collected = Collected()

    def open(self, context: RuntimeContext) -> None:
        visit = VISIT_V1 if self.version == 1 else VISIT_V2
        self.last = context.get_state(ValueStateDescriptor("last", visit))
        self.numbers = context.get_list_state(ListStateDescriptor("numbers", int))
        self.halves = context.get_map_state(MapStateDescriptor("halves", int, float))
        self.seen = context.operator_state.get_list_state(SplitListStateDescriptor("seen", str))
        if context.is_restored:
            self.collected.operator_state[context.subtask_index] = {"seen": list(self.seen.get())}

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        number = value["number"]
        halves = {str(key): half for key, half in sorted(self.halves.items())}
        found = {"last": plain(self.last.value()), "numbers": list(self.numbers.get()), "halves": halves}
        yield value["word"], json.dumps(found)
        visit = visit_v1(value["word"], number)
        if self.version == 1:
            self.last.update(visit)
        self.numbers.add(number)
        self.halves.put(number, None if number == 2 else number / 2)
        self.seen.add(f"{value['word']} {number}")


def add_file(directory: Path, index: int, rows: list[tuple[str, int]]) -> None:
    """Add a file to the source atomically. It becomes one micro-batch."""
    directory.mkdir(parents=True, exist_ok=True)
    staged = directory.parent / f"{index}.json"
    staged.write_text("".join(json.dumps({"word": word, "number": number}) + "\n" for word, number in rows))
    os.utime(staged, (1_000_000_000 + index, 1_000_000_000 + index))
    os.rename(staged, directory / f"{index:05d}.json")


def mounted(directory: Path) -> Mapping[str, str]:
    """Session settings that map `SOURCE` to this directory."""
    return {
        "fs.viewfs.mounttable.golden.link./source": directory.as_uri(),
        "fs.viewfs.impl.disable.cache": "true",
    }


def start(spark: Any, directory: Path, sink: Any, version: int = 1, **execute: Any) -> Any:
    """Start the job in ``directory/job`` over all existing files."""
    from statebackend.spark import SparkStreamEnvironment

    environment = SparkStreamEnvironment(
        spark,
        job_dir=directory / "job",
        local_state_directory=directory / "local",
        backend="rocksdb",
        parallelism=3,
        max_parallelism=16,
    )
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(SOURCE)
    words = environment.from_dataframe(stream, uid="source-0").key_by("word")
    words.process(Keep(version), uid="words", name="words", schema=OUT_SCHEMA, order_by="number").sink_to(sink)
    return environment.execute("golden words", trigger={"availableNow": True}, **execute)


@contextmanager
def pickled_by_value() -> Iterator[None]:
    """Pickle functions and records of these modules by value, for workers that cannot import them."""
    from pyspark import cloudpickle

    modules = (programs, sys.modules[__name__])
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
