"""Settings of a Spark session that actions need, and the context of a task.

Every epoch must run all `parallelism` tasks, also those without rows: each restores, snapshots and acknowledges.
Observed on PySpark 4.3.0 with `repartitionById(n, ...)` followed by `mapInArrow`:

* A partition without rows runs the function with an empty iterator, in batch queries and inside `foreachBatch`.
* An empty micro-batch runs it in all n partitions.
* With adaptive execution, also the default of stateless streams, no partition runs if an aggregation, join, union or
  distinct before the repartition is empty at run time. The rule AQEPropagateEmptyRelation then replaces the input of
  mapInArrow by a relation without partitions.
* No partition runs, with or without adaptive execution, if the optimizer proves the input empty (`limit(0)`,
  `filter("false")`, a source without data in a union). That is the rule PropagateEmptyRelation.
* Adaptive execution never coalesced or split these partitions, because their number is explicit.

So `disable_adaptive` turns adaptive execution off and excludes PropagateEmptyRelation. Then all n partitions run in
each of these cases, and an epoch takes about 20 ms less. Spark plans lazily: the settings must hold while the action
runs, not while the DataFrame is built.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyspark
from attrs import frozen
from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession

from statebackend.streaming.errors import JobDefinitionError, StreamJobError
from statebackend.streaming.rows.time_zones import time_zone_named

__all__ = [
    "ALLOWED_TIMES",
    "TaskIdentity",
    "UnsupportedSparkSessionError",
    "UnsupportedSparkVersionError",
    "check_classic_session",
    "check_spark_version",
    "check_time_zone",
    "cloned_session",
    "configure_query",
    "configured",
    "disable_adaptive",
    "end_with_program",
    "ensure_python_interpreter",
    "is_on_one_host",
    "is_speculative",
    "task_identity",
    "were_tasks_repeated",
]

MINIMUM_SPARK_VERSION = (4, 1)

_DEFAULT_PYTHON = "python3"
_ADAPTIVE = "spark.sql.adaptive.enabled"
_TIME_ZONE = "spark.sql.session.timeZone"
_EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"
_PROPAGATE_EMPTY = "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"
ALLOWED_TIMES: Final = {"spark.sql.timeType.enabled": "true"}
"""Without this setting, Spark rejects casts to columns of times, but not the columns themselves."""

_CHECKED_SHUFFLES = {
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}
"""Spark compares the rows of a repeated task with those of the first attempt, in any order. Without these settings,
tasks after an operator might continue with a mixture of both."""


class UnsupportedSparkVersionError(StreamJobError):
    """This Spark is too old."""


class UnsupportedSparkSessionError(StreamJobError):
    """The driver cannot reach the JVM through this session."""


def ensure_python_interpreter(spark: SparkSession | None = None) -> None:
    """Let Spark's Python workers run on this interpreter unless the user has chosen one.

    Sets `PYSPARK_PYTHON` and `PYSPARK_DRIVER_PYTHON` if they are unset. PySpark reads them when it creates the session.
    An existing session that would run its workers on the default `python3`, without these packages, is changed, too.
    """
    is_unset = not os.environ.get("PYSPARK_PYTHON")
    if spark is not None and is_unset and spark.sparkContext.pythonExec == _DEFAULT_PYTHON:
        spark.sparkContext.pythonExec = sys.executable
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if not os.environ.get(name):
            os.environ[name] = sys.executable


def check_spark_version(spark: SparkSession | str = pyspark.__version__) -> None:
    """Raises `UnsupportedSparkVersionError` for a session, or a version, before Spark 4.1 (no `repartitionById`)."""
    version = spark if isinstance(spark, str) else spark.version
    matched = re.match(r"(\d+)\.(\d+)", version)
    if matched is None or (int(matched[1]), int(matched[2])) < MINIMUM_SPARK_VERSION:
        raise UnsupportedSparkVersionError(
            f"Spark {version} is too old: state is routed with DataFrame.repartitionById, which Spark has since "
            f"{'.'.join(map(str, MINIMUM_SPARK_VERSION))}. Install pyspark>=4.1, on the cluster too."
        )


def check_classic_session(spark: object) -> None:
    """Raises `UnsupportedSparkSessionError` for a session of Spark Connect, or for anything but a session."""
    kind = type(spark)
    if kind.__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedSparkSessionError(
            "a session of Spark Connect cannot run stateful jobs: their driver coordinates every epoch next to Spark's "
            "own. Start the program on the cluster with spark-submit, or with SparkSession.builder.master(...)"
        )
    if not isinstance(spark, SparkSession):
        raise UnsupportedSparkSessionError(f"a SparkSession is needed, not {kind.__module__}.{kind.__qualname__}")


def check_time_zone(spark: SparkSession) -> None:
    """Raises `JobDefinitionError` if Python has no time zone of the name that the session has."""
    name = str(spark.conf.get(_TIME_ZONE))
    try:
        time_zone_named(name)
    except ValueError as error:
        raise JobDefinitionError(
            f"{_TIME_ZONE} is {name!r}, which the time zone database of this Python does not have. Functions get "
            f"timestamps in this zone. Set it to a region such as 'Europe/Berlin' or to an offset such as '+05:30'. "
            f"If regions are missing, install the package tzdata on the driver and on the workers"
        ) from error


def is_on_one_host(spark: SparkSession) -> bool:
    """Whether the tasks run in the driver's own JVM, as with the master ``local[2]``; not with ``local-cluster``."""
    return bool(spark.sparkContext._jsc.isLocal())


_ended_contexts: weakref.WeakSet[SparkContext] = weakref.WeakSet()


def end_with_program(spark: SparkSession) -> None:
    """Stop a session with a ``local-cluster`` when the program ends, in case the program does not.

    Otherwise the JVM exits at the same time as its workers, which start executors again and log errors meanwhile.
    """
    context = spark.sparkContext
    if (context.master or "").startswith("local-cluster") and context not in _ended_contexts:
        _ended_contexts.add(context)
        atexit.register(spark.stop)


def cloned_session(spark: SparkSession) -> SparkSession:
    """A session of its own that begins with the settings, views and functions of this one, as a streaming query's."""
    session: Any = spark
    return SparkSession(spark.sparkContext, session._jsparkSession.cloneSession())


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Within the block `settings` hold in the session; afterwards its own values, or none, are back."""
    before = {key: spark.conf.get(key, None) for key in settings}
    before = {key: former for key, former in before.items() if former != settings[key]}
    try:
        for key in before:
            spark.conf.set(key, settings[key])
        yield
    finally:
        for key, former in before.items():
            if former is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, former)


@contextmanager
def disable_adaptive(spark: SparkSession) -> Iterator[None]:
    """Within the block, actions on DataFrames of this session run every partition.

    Inside `foreachBatch` pass `frame.sparkSession`: a streaming query works on a session of its own. Rules that the
    user excludes stay excluded.
    """
    with configured(spark, _settings_for_every_partition(spark)):
        yield


def configure_query(spark: SparkSession) -> None:
    """Configure the session of one query: as `disable_adaptive` does, and with `ALLOWED_TIMES`."""
    for key, value in {**_settings_for_every_partition(spark), **ALLOWED_TIMES}.items():
        if spark.conf.get(key, None) != value:
            spark.conf.set(key, value)


def _settings_for_every_partition(spark: SparkSession) -> Mapping[str, str]:
    excluded = spark.conf.get(_EXCLUDED_RULES, None) or ""
    rules = excluded.split(",") if excluded else []
    if _PROPAGATE_EMPTY not in rules:
        rules.append(_PROPAGATE_EMPTY)
    return {_ADAPTIVE: "false", _EXCLUDED_RULES: ",".join(rules), **_CHECKED_SHUFFLES}


@frozen
class TaskIdentity:
    """Which attempt of which task this is.

    `task_attempt_id` is unique within a Spark application. PySpark has no attempt number of the stage, but a repeated
    stage gets new task attempt ids. `batch_id`, `query_id` and `run_id` are those of the streaming query, None outside
    of one; Spark passes them as undocumented local properties.
    """

    partition_id: int
    stage_id: int
    attempt_number: int
    task_attempt_id: int
    batch_id: int | None
    query_id: str | None
    run_id: str | None

    @property
    def attempt_id(self) -> str:
        """A name of this attempt, unique in a Spark application: `<stage>.<partition>.<attempt>.<task attempt>`."""
        return f"{self.stage_id}.{self.partition_id}.{self.attempt_number}.{self.task_attempt_id}"


def is_speculative(context: SparkContext) -> bool:
    """Whether Spark may run a task twice at once."""
    return (context.getConf().get("spark.speculation", "false") or "").lower() == "true"


def were_tasks_repeated(context: SparkContext, attempt_ids: Iterable[str]) -> bool:
    """Whether tasks ran more than once in the stages of these attempts: tried again, or computed again.

    The names are those of `TaskIdentity.attempt_id`.
    """
    attempts = [tuple(map(int, attempt_id.split("."))) for attempt_id in attempt_ids]
    if any(attempt_number > 0 for _, _, attempt_number, _ in attempts):
        return True
    # PySpark's own tracker asks the JVM for everything that there is to know of a stage.
    tracker: Any = context._jsc.statusTracker()
    # Spark forgets old stages of an application.
    stages = [tracker.getStageInfo(stage_id) for stage_id in {stage_id for stage_id, *_ in attempts}]
    return any(stage is not None and (stage.currentAttemptId() > 0 or stage.numFailedTasks() > 0) for stage in stages)


def task_identity() -> TaskIdentity:
    """The identity of the running task; `StreamJobError` on the driver."""
    context = TaskContext.get()
    if context is None:
        raise StreamJobError("task_identity() was called outside of a Spark task; only tasks have a partition")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    query_id = context.getLocalProperty("sql.streaming.queryId")
    return TaskIdentity(
        partition_id=context.partitionId(),
        stage_id=context.stageId(),
        attempt_number=context.attemptNumber(),
        task_attempt_id=context.taskAttemptId(),
        batch_id=None if batch_id is None else int(batch_id),
        query_id=query_id,
        # Spark runs all jobs of a streaming query's run in a group named after the run.
        run_id=context.getLocalProperty("spark.jobGroup.id") if query_id is not None else None,
    )


_STREAMING_LOGGERS = (
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",
)
"""Spark 4.2 and later, and Spark 4.1."""

_logging_lock = threading.Lock()


@contextmanager
def streaming_errors_unlogged(spark: SparkSession) -> Iterator[None]:
    """Keeps Spark from logging that a streaming query ended with an error, while we are ending it."""
    jvm: Any = spark.sparkContext._jvm
    manager = jvm.org.apache.logging.log4j.LogManager
    configurator = jvm.org.apache.logging.log4j.core.config.Configurator
    off = jvm.org.apache.logging.log4j.Level.OFF
    # One at a time: another job that stops meanwhile would take OFF for the level to go back to.
    with _logging_lock:
        levels = {name: manager.getLogger(name).getLevel() for name in _STREAMING_LOGGERS}
        for name in levels:
            configurator.setLevel(name, off)
        try:
            yield
        finally:
            for name, level in levels.items():
                configurator.setLevel(name, level)
