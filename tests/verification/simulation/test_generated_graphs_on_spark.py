"""Random graphs whose first batches run on Spark, and whose last one continues on the local runtime."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from statebackend import DataStream, WatermarkStrategy
from statebackend.local import LocalStreamEnvironment
from statebackend.spark import MemorySink, SparkStreamEnvironment
from verification.simulation.graphs.functions import SCHEMA, SOURCE_SCHEMA, with_times
from verification.simulation.graphs.plan import Event, GraphPlan, Node, Stream
from verification.simulation.graphs.program import write_program
from verification.simulation.graphs.run import (
    BOUND_MS,
    batches_of,
    compare,
    expected_batches,
    plain_row,
    read_elements,
    sent_record,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GRAPHS = 6


def is_for_spark(plan: GraphPlan) -> bool:
    """Whether the results are independent of record order, which a Spark shuffle does not define."""
    return plan.is_batched and len(batches_of(plan)) > 1 and all(_is_in_any_order(node) for node in plan.nodes)


def _is_in_any_order(node: Node) -> bool:
    if node.kind == "window":
        special = ("lateness", "count", "continuous", "evictor", "purging")
        return node["shape"] in ("tumbling", "sliding") and not any(node[option] for option in special)
    return node.kind not in ("map", "running", "multi")


def chosen() -> list[int]:
    seeds = [seed for seed in range(1, 2000) if is_for_spark(GraphPlan.of_seed(seed))]
    # Graphs with the most kinds of nodes test most in one run of Spark.
    return sorted(seeds, key=lambda seed: -len({node.kind for node in GraphPlan.of_seed(seed).nodes}))[:GRAPHS]


@pytest.mark.parametrize("seed", chosen())
@pytest.mark.extended
def test_batches_on_spark_are_continued_on_the_local_runtime(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    plan = GraphPlan.of_seed(seed)
    batches = batches_of(plan)
    backends = ("heap", "rocksdb") if seed % 2 else ("rocksdb", "heap")
    for number, ((_, events), expected) in enumerate(zip(batches, expected_batches(plan), strict=True)):
        parallelism = 1 + (number + seed) % 3
        if number < len(batches) - 1:
            seen = on_spark(spark, plan, number, events, tmp_path, backends[0], parallelism)
        else:
            seen = on_local_runtime(plan, events, tmp_path, backends[1], parallelism)
        compare(plan, expected, seen, f"batch {number}", has_times=False)


def on_local_runtime(plan: GraphPlan, events: list[Event], path: Path, backend: str, parallelism: int) -> Counter[Any]:
    environment = LocalStreamEnvironment(job_dir=path / "local-job", backend=backend, parallelism=parallelism)
    sinks: dict[Stream, list[Any]] = {}
    write_program(
        plan,
        partial(read_elements, environment, events),
        lambda stream, read: read.sink_to(sinks.setdefault(stream, []), uid=f"{stream}"),
    )
    environment.execute("graph", from_savepoint=path / "savepoint", drain=True)
    return Counter((stream, plain_row(row)) for stream, rows in sinks.items() for row in rows)


def on_spark(
    spark: SparkSession,
    plan: GraphPlan,
    number: int,
    events: list[Event],
    path: Path,
    backend: str,
    parallelism: int,
) -> Counter[Any]:
    """One batch of the job, at another parallelism; the last one on Spark writes the savepoint."""
    environment = SparkStreamEnvironment(
        spark,
        job_dir=str(path / "job"),
        backend=backend,
        parallelism=parallelism,
        local_state_directory=str(path / "local"),
    )
    sinks: dict[Stream, MemorySink] = {}

    def source(index: int) -> DataStream:
        directory = path / f"source-{index}"
        directory.mkdir(exist_ok=True)
        rows = [dict(zip("kvtl", sent_record(event), strict=False)) for event in events if event.source == index]
        if rows:
            (directory / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        strategy: WatermarkStrategy[Any] = WatermarkStrategy.for_bounded_out_of_orderness(BOUND_MS)
        frame = spark.readStream.schema(SOURCE_SCHEMA).json(str(directory))
        stream = environment.from_dataframe(frame, uid=f"source-{index}")
        return stream.assign_timestamps_and_watermarks(strategy.with_timestamps("t")).map(with_times, schema=SCHEMA)

    def output(stream: Stream, read: DataStream) -> None:
        sinks[stream] = MemorySink()
        read.sink_to(sinks[stream], uid=f"{stream}")

    write_program(plan, source, output)
    job = environment.execute("graph")
    job.process_all_available()
    if number == len(batches_of(plan)) - 2:
        job.stop_with_savepoint(str(path / "savepoint"))
    else:
        job.stop()
    return Counter((stream, plain_row(row)) for stream, sink in sinks.items() for row in sink.rows)
