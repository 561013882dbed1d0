"""A running count per key, as a job on the local runtime and as a Bytewax dataflow.

Both run in this process on one worker, with the same records, keys and results. Both take pairs of a string and a
number, extract the key with a lambda, and keep a count per key in state. For each record they emit key and count to a
sink that drops them. With checkpoints, both take one per second, into files below a temporary directory. Ours is a
`KeyedProcessFunction` with a `ValueState` on the heap and writes snapshots in the background. Theirs is a
`stateful_map` with recovery, which writes to SQLite.

`arrow_count` counts the same records in columns, with `aggregate(n=count())`. It emits a count per key and checkpoint
instead of one per record.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from statebackend import KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor, count
from statebackend.local import LocalStreamEnvironment

__all__ = ["arrow_count", "bytewax_count", "our_count", "records_of", "table_of"]

Record = tuple[str, int]

INTERVAL_MS: Final = 1000
BYTEWAX_BATCH: Final = 1000
"""Number of records that the Bytewax source returns at once."""


def records_of(count: int, keys: int, seed: int = 1) -> list[Record]:
    """Return `count` records with random keys."""
    numbers = random.Random(seed)
    return [(f"key-{numbers.randrange(keys):06d}", place) for place in range(count)]


def table_of(records: Sequence[Record], repeats: int) -> pa.Table:
    """Return the records in columns, several times."""
    keys, places = zip(*records, strict=True)
    return pa.concat_tables([pa.table({"k": pa.array(keys), "place": pa.array(places, pa.int64())})] * repeats)


class Count(KeyedProcessFunction[str, Record, Record]):
    """Counts the records of each key."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Record, context: ProcessContext[str]) -> Iterable[Record]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return ((context.current_key, count),)


class Dropped:
    """A sink that drops all records."""

    def extend(self, records: Sequence[Any]) -> None:
        """Drop the records."""


def our_count(records: Sequence[Record], *, has_checkpoints: bool, clock: Callable[[], float]) -> float:
    """Run the job on the local runtime, and return records per second of `clock`, which returns seconds."""
    interval_ms = INTERVAL_MS if has_checkpoints else None
    environment = LocalStreamEnvironment(parallelism=1, backend="heap", checkpoint_interval=interval_ms)
    stream = environment.from_elements(records).key_by(lambda record: record[0])
    stream.process(Count(), uid="count", schema="k string, n bigint").sink_to(Dropped())
    began_s = clock()
    environment.execute("count")
    speed = len(records) / (clock() - began_s)
    environment.close()
    return speed


def arrow_count(table: pa.Table, *, clock: Callable[[], float]) -> float:
    """Run the count from Arrow batches with checkpoints, and return rows per second of `clock`."""
    environment = LocalStreamEnvironment(parallelism=1, backend="heap", checkpoint_interval=INTERVAL_MS)
    environment.from_arrow(table, uid="rows").key_by("k").aggregate(n=count(), uid="count").sink_to(Dropped())
    began_s = clock()
    environment.execute("count")
    speed = float(table.num_rows / (clock() - began_s))
    environment.close()
    return speed


def bytewax_count(records: Sequence[Record], *, has_checkpoints: bool, clock: Callable[[], float]) -> float:
    """Run the Bytewax dataflow, and return records per second of `clock`, which returns seconds."""
    import datetime

    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import TestingSource, run_main

    class DroppingPartition(StatelessSinkPartition[Any]):
        def write_batch(self, items: list[Any]) -> None:
            """Drop the items."""

    class DroppingSink(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
            return DroppingPartition()

    def counted(count: int | None, record: Record) -> tuple[int, int]:
        count = (count or 0) + 1
        return count, count

    flow = Dataflow("count")
    keyed = op.key_on("key", op.input("in", flow, TestingSource(records, BYTEWAX_BATCH)), lambda record: record[0])
    op.output("out", op.stateful_map("count", keyed, counted), DroppingSink())
    with tempfile.TemporaryDirectory(prefix="statebackend-bytewax-") as directory:
        recovery = None
        if has_checkpoints:
            init_db_dir(Path(directory), 1)
            recovery = RecoveryConfig(directory)
        began_s = clock()
        run_main(flow, epoch_interval=datetime.timedelta(milliseconds=INTERVAL_MS), recovery_config=recovery)
        return len(records) / (clock() - began_s)


def wall_s() -> float:
    """Return the wall time in seconds."""
    return time.perf_counter()


def processor_s() -> float:
    """Return the processor time of all threads of this process in seconds."""
    return time.process_time()
