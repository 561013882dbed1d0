"""Which partition the rows of a subtask are sent to, and which executor runs its task.

Partition i is subtask i, also without rows. With one executor `repartitionById` does that. With several, Spark places
tasks after a shuffle anywhere, and a subtask would find its state on another executor's disk. So the rows are joined to
a cached frame with one row per subtask, because Spark prefers to run a join where one side is cached:

    cached:  salt of subtask i, in partition i      one row each; persisted, so each stays where it was made
    rows:    ..., salt of their subtask             repartition(n, salt): the same hash, and the same partition i
    rows join cached on salt                        shuffled hash join: no further exchange, each row matches once

The salt of a subtask is a number that Spark's hash sends to its partition. Partitions that are lost with an executor
are cached again on another one. Spark's preference for hosts with many shuffled rows must be off, which is a setting at
the start of the application (`locality_advice`).

The frame is created and checked before the first epoch with several executors. If one executor holds too many subtasks,
because another started slowly, the frame is created again, which is cheap. New executors have no partitions: after they
join, an unbalanced frame is created again, and state moves once.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from statebackend.spark.plans.map_in_arrow import map_in_arrow
from statebackend.spark.session import disable_adaptive, is_on_one_host

SALT_COLUMN: Final = "__statebackend_salt"
REDUCE_LOCALITY: Final = "spark.shuffle.reduceLocality.enabled"

_ATTEMPTS: Final = 5
"""How often the frame is made until its partitions lie well."""

_SEED: Final = 42
_MASK: Final = 0xFFFFFFFF


class SubtaskPlacement:
    """Routes rows to the tasks of their subtasks; one instance is for one run of a job, of that parallelism."""

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism
        self._salts: Sequence[int] = ()
        self._cached: DataFrame | None = None
        self._without_rows: dict[str, DataFrame] = {}
        self._known_block_managers: frozenset[str] = frozenset()
        self._is_on_one_host: bool | None = None

    def route(self, rows: DataFrame, subtask: Column) -> DataFrame:
        """Partition the rows by subtask; may add a column."""
        if self._cached is None:
            return rows.repartitionById(self._parallelism, subtask)
        salts = F.expr(f"array({', '.join(map(str, self._salts))})")
        salted = rows.withColumn(SALT_COLUMN, F.element_at(salts, subtask + 1))
        return salted.repartition(self._parallelism, SALT_COLUMN).join(self._cached.hint("shuffle_hash"), SALT_COLUMN)

    def without_rows(self, spark: SparkSession, uid: str, schema: StructType) -> DataFrame:
        """Return what `route` returns for no rows of these columns; without placement it needs no shuffle.

        It is created once for an operator, and used until places change. ``spark`` is the session of all its plans.
        """
        frame = self._without_rows.get(uid)
        if frame is None or frame.sparkSession is not spark:
            frame = _empty_frame(spark, schema, self._parallelism if self._cached is None else 1)
            if self._cached is not None:
                frame = self.route(frame, F.lit(0))
            self._without_rows[uid] = frame
        return frame

    def prepare(self, spark: SparkSession) -> None:
        """Assign executors to subtasks before an epoch. ``spark`` is the session of its plan."""
        if self._is_on_one_host is None:
            self._is_on_one_host = is_on_one_host(spark)
        if self._is_on_one_host:
            return
        block_managers = _block_managers(spark)
        executors = len(block_managers) - 1
        if executors < 2 or block_managers <= self._known_block_managers:
            return
        self._known_block_managers = block_managers
        # Adaptive execution may change the partitions of the cached frame, so their hashes would be unknown.
        with disable_adaptive(spark):
            self._place(spark, executors)

    def close(self) -> None:
        """Release the cached partitions on the executors."""
        cached, self._cached = self._cached, None
        self._without_rows.clear()
        if cached is not None:
            # A stopped Spark has released them.
            with contextlib.suppress(PySparkException, Py4JError, ConnectionError):
                cached.unpersist()

    def _place(self, spark: SparkSession, executors: int) -> None:
        fair_load = -(-self._parallelism // executors)
        largest_load = fair_load + max(1, fair_load // 4)
        for _ in range(_ATTEMPTS):
            if self._cached is None:
                self._cached = self._new_frame(spark)
            if max(Counter(places_of_partitions(self._cached)).values()) <= largest_load:
                return
            self.close()
        self._cached = self._new_frame(spark)

    def _new_frame(self, spark: SparkSession) -> DataFrame:
        self._without_rows.clear()
        self._salts = self._salts or salts_of_partitions(self._parallelism)
        salts = F.expr(f"array({', '.join(map(str, self._salts))})[id] as {SALT_COLUMN}")
        frame = spark.range(0, self._parallelism, 1, 1).select(salts)
        return frame.repartition(self._parallelism, SALT_COLUMN).persist()


def _empty_frame(spark: SparkSession, schema: StructType, partitions: int) -> DataFrame:
    """Return an empty frame with this number of partitions, made of an RDD, so Spark optimises and compiles nothing."""
    session: Any = spark
    rows = session.sparkContext._jsc.parallelize(session._jvm.java.util.ArrayList(), partitions)
    return DataFrame(
        session._jsparkSession.createDataFrame(rows, session._jsparkSession.parseDataType(schema.json())), spark
    )


def places_of_partitions(frame: DataFrame) -> Sequence[str]:
    """Run a task over each partition of a frame; return the executor that each ran on."""

    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        executor = f"{socket.gethostname()} {os.environ.get('SPARK_LOCAL_DIRS')}"
        yield pa.RecordBatch.from_pydict({"executor": [executor]})

    schema = StructType([StructField("executor", StringType())])
    return [row.executor for row in map_in_arrow(frame, place, schema).collect()]


def locality_advice(spark: SparkSession) -> str | None:
    """One line on what keeps tasks from running where their state is; None if nothing does."""
    setting = spark.sparkContext.getConf().get(REDUCE_LOCALITY) or "true"
    if is_on_one_host(spark) or setting.lower() == "false":
        return None
    return (
        f"{REDUCE_LOCALITY} is on: Spark may run subtasks away from the executor that has their state, which is then "
        f"restored from the checkpoint in every such epoch. Start the application with {REDUCE_LOCALITY}=false"
    )


def salts_of_partitions(count: int) -> Sequence[int]:
    """For each of so many partitions the smallest number that `repartition` sends there."""
    salts: dict[int, int] = {}
    number = 0
    while len(salts) < count:
        salts.setdefault(hash_of_int(number) % count, number)
        number += 1
    return [salts[partition] for partition in range(count)]


def hash_of_int(number: int) -> int:
    """Spark's ``hash`` of an ``int`` that is not negative: Murmur3 of its four bytes, as a signed 32-bit number."""
    mixed = (number * 0xCC9E2D51) & _MASK
    mixed = (_rotated(mixed, 15) * 0x1B873593) & _MASK
    mixed = (_rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    mixed ^= 4
    mixed = ((mixed ^ mixed >> 16) * 0x85EBCA6B) & _MASK
    mixed = ((mixed ^ mixed >> 13) * 0xC2B2AE35) & _MASK
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (32 - bits)) & _MASK


def _block_managers(spark: SparkSession) -> frozenset[str]:
    """The addresses of those of the executors that there are, and of the driver's."""
    context: Any = spark.sparkContext._jsc
    return frozenset(context.sc().getExecutorMemoryStatus().keys().mkString(",").split(","))
