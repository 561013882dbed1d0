"""Reads the state of Spark's streaming queries from their checkpoint directories, and imports it into savepoints.

Spark reads its state with the data sources ``state-metadata`` and ``statestore``, for both of its state store
providers. An import reads the last committed batch: the state, timers, watermark and source offsets of this batch.
Spark's directory is never changed.

The watermark T of Spark is the largest timestamp minus the delay: records up to T are late, and timers at T are due.
The watermark of Statebackend is T - 1. Spark drops late records by the watermark of the previous batch, which is also
imported.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, Row, SparkSession, functions
from pyspark.sql.pandas import types as spark_arrow_types
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructType, TimestampType

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import (
    ChannelWatermark,
    NodeWatermark,
    ReadSource,
    SourcePositions,
    WatermarkState,
)
from statebackend.savepoint.errors import ForeignFormatError, PlanError, UnsupportedForeignStateError
from statebackend.savepoint.foreign.spark_files import (
    check_state_files,
    numbered_directories,
    readable_copy,
)
from statebackend.savepoint.rewrite.changes import AddOperator
from statebackend.savepoint.rewrite.plan import Plan
from statebackend.savepoint.rewrite.savepoint_writer import ForeignProgress, SavepointWriter, WrittenSavepoint
from statebackend.savepoint.stored_entries import StateEntry
from statebackend.spark.columns import struct_type_of
from statebackend.spark.local_batches import AS_IN_ARROW, local_batches, python_rows, python_values
from statebackend.spark.session import configured
from statebackend.spark.sources.progress import capture_source_progress, newest_committed_batch
from statebackend.state.key_groups import DEFAULT_MAX_PARALLELISM
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor
from statebackend.state.progress import ProgressListener, no_progress
from statebackend.state.state_kind import StateDescriptor
from statebackend.streaming.compatibility_check import DescribesJob
from statebackend.streaming.operators.merging_windows import SETS_NAME
from statebackend.streaming.operators.stateful_processor import (
    LATE_STATE,
    TIMER_SERVICE,
    TIMERS_STATE,
    WATERMARK_KEY,
    ProcessorHandle,
    ProcessorListState,
    ProcessorMapState,
    ProcessorSchema,
    ProcessorValueState,
)
from statebackend.streaming.operators.window_operator import TIMERS_NAME as WINDOW_TIMERS
from statebackend.streaming.operators.window_state import CONTENTS_NAME
from statebackend.streaming.runtime.source_offsets import OffsetLines
from statebackend.streaming.runtime.state_registration import RegistrationContext
from statebackend.streaming.stateful_processor import StatefulProcessorFunction, TimeMode
from statebackend.streaming.stream_graph import ONLY_SOURCE
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP
from typeserializers.scalars.fixed_width import BooleanSerializer, LongSerializer
from typeserializers.scalars.strings import StringSerializer
from typeserializers.times.timers import TimeWindow, TimeWindowSerializer

__all__ = [
    "SPARK_QUERY",
    "SparkCheckpoint",
    "SparkOperator",
    "open_spark_checkpoint",
    "processor_plan",
]

SPARK_QUERY: Final = "imported_from_spark"
"""The savepoint property with the id of the imported query."""

_PROCESSORS: Final = ("transformWithStateExec", "transformWithStateInPySparkExec", "transformWithStateInPandasExec")
_BEFORE_STACK: Final = re.compile(r"JVM stacktrace|\n\s+at ")
_CAUSE: Final = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_JAVA_CLASS: Final = re.compile(r"^[\w.$]+(?:Exception|Error): ?")
_UNREADABLE: Final = (ValueError, OverflowError, pa.ArrowException)
"""The errors of values that Python cannot represent, such as a text that is not UTF-8."""

_STATE_FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_LOG_VERSIONS: Final = ("v1", "v2")
_JOIN: Final = "symmetricHashJoin"
_SIDES: Final = ("left", "right")
_EVENT_TIME: Final = "__event_time"
_TTL_COLUMNS: Final = ["value", "ttlExpirationMs"]
_WINDOW: Final = "window"
_SESSION: Final = "session_window"
_TIME_MODES: Final = {
    "NoTime": TimeMode.NONE,
    "ProcessingTime": TimeMode.PROCESSING_TIME,
    "EventTime": TimeMode.EVENT_TIME,
}


def open_spark_checkpoint(path: str | os.PathLike[str]) -> SparkCheckpoint:
    """Open a checkpoint directory with the Spark session of this process. Starts a session if there is none."""
    builder = SparkSession.builder.master("local[*]").appName("statebackend").config("spark.ui.enabled", "false")
    return SparkCheckpoint(builder.getOrCreate(), path)


@frozen
class SparkOperator:
    """A stateful operator of a query.

    Attributes:
        id: Its number in the query.
        name: The name of its physical operator in Spark.
        states: The names of its states: the variables of a ``transformWithState``, ``left`` and ``right`` for a join,
            and ``default`` for all other operators.
        time_mode: The time mode of a ``transformWithState``, None for other operators.
        partitions: The number of its partitions. State without keys is in one of them.
    """

    id: int
    name: str
    states: tuple[str, ...]
    partitions: int
    time_mode: TimeMode | None = None

    @property
    def is_processor(self) -> bool:
        """Whether it runs a ``StatefulProcessor``."""
        return self.name in _PROCESSORS


class SparkCheckpoint:
    """The checkpoint directory of a streaming query of Spark, as of its last committed batch.

    Attributes:
        spark: The session that reads it.
        location: The directory.
        query_id: The id of the query.
        batch_id: The last committed batch.
        watermark_ms: Spark's watermark of the next batch in milliseconds; None without one.
        previous_watermark_ms: Spark's watermark of the last committed batch.
        batch_time_ms: The time of the last committed batch.
        operators: The stateful operators by their number.
    """

    def __init__(self, spark: SparkSession, path: str | os.PathLike[str]) -> None:
        """Open the directory. Raises `ForeignFormatError` if it is not a checkpoint of Spark, or is damaged."""
        self.spark = spark
        self._files = CheckpointFileSystem.from_uri(path)
        self.location = self._files.uri
        self.query_id = str(self._json("metadata", 0, "id"))
        batch_id = newest_committed_batch(self.location)
        if batch_id is None:
            raise ForeignFormatError(
                f"{self.location} has no committed batch in commits: let the query complete a batch first"
            )
        self.batch_id = batch_id
        self.previous_watermark_ms = self._time_ms(f"offsets/{batch_id}", "batchWatermarkMs") or None
        self.watermark_ms = self._time_ms(f"commits/{batch_id}", "nextBatchWatermarkMs") or None
        self.batch_time_ms = self._time_ms(f"offsets/{batch_id}", "batchTimestampMs")
        has_ids = self._json(f"commits/{batch_id}", 1, "stateUniqueIds", required=False) is not None
        self._settings = {_STATE_FORMAT: "2" if has_ids else "1"}
        check_state_files(self._files, batch_id)
        self._readable = readable_copy(self._files, batch_id)
        self.operators: Mapping[int, SparkOperator] = {one.id: one for one in self._read_operators()}

    def table(self, state: str | None = None, *, operator: int | None = None) -> DataFrame:
        """Return a state as Spark's ``statestore`` source reads it: key, value, partition_id.

        Args:
            state: The name of the state. May be omitted if the operator has one.
            operator: The number of the operator. May be omitted if the query has one.
        """
        found = self.operator(operator)
        if state is None and len(found.states) == 1:
            [state] = found.states
        if state not in found.states:
            raise PlanError(
                f"{self.location}: operator {found.id} ({found.name}) has no state {state!r}; it has "
                f"{', '.join(map(repr, found.states))}"
            )
        if found.is_processor:
            return self._load(found, stateVarName=state)
        if found.name != _JOIN:
            return self._load(found, storeName=state)
        # Version 4 of the state of joins adds a field, which Spark 4.3 reads from the wrong bytes.
        frame = self._load(found, joinSide=state)
        if _EVENT_TIME not in _columns(frame.schema, "key"):
            return frame
        return frame.withColumn("key", frame["key"].dropFields(_EVENT_TIME))

    def timers(self, *, operator: int | None = None) -> DataFrame:
        """Return the timers of a ``transformWithState``: key, expiration_timestamp_ms, partition_id."""
        return self._load(self.operator(operator), readRegisteredTimers=True)

    def key_columns(self, *, operator: int | None = None, key: str | None = None) -> tuple[str, ...]:
        """Return the types of an operator's key columns without windows, for `Plan.add_operator`.

        Args:
            operator: As for `table`.
            key: As for `entries`.
        """
        found = self.operator(operator)
        table = self.table(found.states[0], operator=found.id) if found.states else self.timers(operator=found.id)
        keyed = self._keyed(table, key, found).schema
        columns: Any = keyed["key"].dataType
        return tuple(columns[name].dataType.simpleString() for name in _key_names(keyed))

    def entries(
        self,
        value: Callable[[Row], Any] | str,
        state: str | None = None,
        *,
        operator: int | None = None,
        key: str | None = None,
    ) -> Iterator[Any]:
        """Yield the keys and values of an operator without windows, for `Plan.add_state` and `Plan.add_timers`.

        Args:
            value: An expression of Spark SQL with the columns ``key`` and ``value``, such as ``value.count``. Yields
                batches of pyarrow. Or a function, which is several times slower: it converts a stored row of Spark to
                a value. Yields tuples of a key and a value.
            state: As for `table`.
            operator: As for `table`.
            key: An expression of Spark SQL for the keys of the job, such as ``'all'`` in quotes for a constant. It is
                required if Spark aggregates without key columns. A struct has several key columns. By default the
                keys are those of Spark.

        Raises:
            PlanError: An expression is invalid, ``key`` is missing, or the state is a list, a map or has TTL. For
                these, pass a selection of `table` to `batches`.
        """
        found = self.operator(operator)
        stored = self.table(state, operator=operator)
        if "value" not in stored.columns or _columns(stored.schema, "value") == _TTL_COLUMNS:
            raise PlanError(
                f"{self.location}: state {state!r} of operator {found.id} is a list, a map, or has TTL, and entries() "
                f"reads one value of a key, without its time. Select the columns key, user_key, value and "
                f"last_access_ms of table({state!r}), and pass the frame to batches()"
            )
        table = self._keyed(stored, key, found)
        if isinstance(value, str):
            return self.batches(self._selected(table, value, "key"))
        columns = self.columns(table, "value")
        return ((of_row, value(row)) for one in columns for of_row, row in zip(one["key"], one["value"], strict=True))

    def _keyed(self, table: DataFrame, key: str | None, operator: SparkOperator) -> DataFrame:
        """Return the table with the keys of the job: a struct of their columns."""
        if key is None:
            if not _key_names(table.schema):
                raise PlanError(
                    f"{self.location}: operator {operator.id} ({operator.name}) has no key columns: it aggregates all "
                    f"records. Pass a constant key, such as key=\"'all'\", and use it in the job: key_by(lit('all'))"
                )
            return table
        others = [name for name in table.columns if name != "key"]
        keyed = self._selected(table, key, *others, name="key")
        if isinstance(keyed.schema["key"].dataType, StructType):
            return keyed
        return keyed.withColumn("key", functions.struct(functions.col("key")))

    def _selected(self, table: DataFrame, value: str, *names: str, name: str = "value") -> DataFrame:
        log = PySparkLogger.getLogger("SQLQueryContextLogger")
        was_disabled, log.disabled = log.disabled, True
        try:
            return table.select(*names, functions.expr(value).alias(name))
        except PySparkException as error:
            raise PlanError(
                f"{self.location}: Spark does not accept the expression {value!r}: {error.getMessage() or error}"
            ) from error
        finally:
            # PySpark would print the error with the stack of the JVM.
            log.disabled = was_disabled

    def batches(self, table: DataFrame) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, the key in the form of a Statebackend job, for `Plan.add_state`.

        Args:
            table: The columns key and value, and if needed user_key, namespace and last_access_ms.
        """
        with self._reading():
            for batch in local_batches(table):
                keys = batch.column("key").flatten()
                key = keys[0] if len(keys) == 1 else batch.column("key")
                yield batch.set_column(batch.schema.names.index("key"), "key", key)

    def add_windows(
        self,
        plan: Plan,
        job: DescribesJob,
        uid: str,
        value: Callable[[Row], Any] | str | None = None,
        *,
        operator: int | None = None,
        key: str | None = None,
    ) -> Plan:
        """Add the open windows of a streaming aggregation to a window operator, with their timers.

        Args:
            plan: The plan.
            job: The environment of the job, which has the operator.
            uid: The uid of the window operator.
            value: The accumulator, as for `entries`. By default it is the only column, such as ``value.count``.
            operator: As for `table`.
            key: As for `entries`.

        Raises:
            PlanError: The aggregation has no event-time windows, the job has no such operator, an expression is
                invalid, or ``key`` is missing.
        """
        found = self.operator(operator)
        described = job.described().operators
        states = {one.name: one for one in described[uid].states.keyed} if uid in described else {}
        table = self.table(found.states[0], operator=found.id)
        is_session = _SESSION in _columns(table.schema, "value")
        if CONTENTS_NAME not in states or not (is_session or _WINDOW in _columns(table.schema, "key")):
            raise PlanError(
                f"{self.location}: operator {found.id} ({found.name}) and operator {uid!r} of the job are not both "
                f"aggregations by event-time windows"
            )
        if is_session is not (SETS_NAME in states):
            raise PlanError(f"{self.location}: of operator {found.id} and {uid!r} only one has session windows")
        space = TimeWindowSerializer()
        windows = self._keyed(_with_windows(table), key, found)
        if value is None:
            value = _only_column(table.schema, f"{self.location}: operator {found.id}")
        plan.add_operator(uid, self.key_columns(operator=found.id, key=key))
        entries: Iterator[Any]
        if isinstance(value, str):
            entries = self.batches(self._selected(windows, value, "key", "namespace"))
        else:
            make = value
            entries = ((of_row, window, make(row)) for of_row, window, row in self._windows(windows))
        plan.add_state(uid, states[CONTENTS_NAME], entries, namespace=space)
        timers = self.batches(self._selected(windows, "namespace.`end` - 1", "key", "namespace"))
        plan.add_timers(uid, timers, time="event", service=WINDOW_TIMERS, namespace=space)
        if is_session:
            plan.add_state(uid, states[SETS_NAME], self._window_sets(windows), merge=list.__add__)
        return plan

    def _windows(self, windows: DataFrame) -> Iterator[tuple[Any, TimeWindow, Row]]:
        for columns in self.columns(windows, "namespace", "value"):
            for key, bounds, row in zip(*columns.values(), strict=True):
                yield key, TimeWindow(*bounds), row

    def _window_sets(self, windows: DataFrame) -> Iterator[tuple[Any, list[tuple[TimeWindow, TimeWindow]]]]:
        for key, window, _ in self._windows(windows):
            yield key, [(window, window)]

    def operator(self, number: int | None = None) -> SparkOperator:
        """Return an operator by its number; without one, the only operator."""
        if number is None and len(self.operators) == 1:
            return next(iter(self.operators.values()))
        if number is None or number not in self.operators:
            known = ", ".join(f"{one.id} ({one.name})" for one in self.operators.values())
            raise PlanError(f"{self.location}: pass the number of an operator, not {number!r}; there are {known}")
        return self.operators[number]

    def rows(self, frame: DataFrame) -> Iterator[Row]:
        """Yield the rows of a table, one partition at a time. Raises `ForeignFormatError` if Spark cannot read it."""
        with self._reading():
            for batch in local_batches(frame):
                yield from python_rows(frame.schema, batch.columns)

    def columns(self, table: DataFrame, *names: str) -> Iterator[Mapping[str, list[Any]]]:
        """Yield the keys in the form of a Statebackend job, and these columns, in batches."""
        key_type: Any = table.schema["key"].dataType
        with self._reading():
            for batch in local_batches(table.select("key", *names)):
                keys = [
                    _key_values(field.dataType, column)
                    for field, column in zip(key_type, batch.column("key").flatten(), strict=True)
                ]
                columns = {name: python_values(table.schema[name].dataType, batch.column(name)) for name in names}
                yield {"key": keys[0] if len(keys) == 1 else list(zip(*keys, strict=True)), **columns}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (PySparkException, Py4JError, *_UNREADABLE) as error:
            raise self._unreadable("its state", error) from error

    def _progress(self, sources: Sequence[str], operators: Collection[str]) -> ForeignProgress:
        files = dict(capture_source_progress(self.location, self.batch_id, has_foreign_state=True))
        offsets = files[f"offsets/{self.batch_id}"]
        found = OffsetLines.of(offsets)
        if len(found.lines) != len(sources):
            raise PlanError(
                f"{self.location} has read {len(found.lines)} sources, and the job reads {len(sources)} "
                f"({', '.join(sources)}): read the same sources in the same order"
            )
        logs = [line.partition(":")[0] for line in found.lines] if found.version != "v1" else None
        read = tuple(ReadSource("", uid, logs[index] if logs else str(index)) for index, uid in enumerate(sources))
        return ForeignProgress(
            checkpoint_id=self.batch_id,
            processing_time_ms=self.batch_time_ms,
            properties={SPARK_QUERY: self.query_id},
            watermarks=self._watermarks(sources, operators),
            source_positions=SourcePositions(batch_id=self.batch_id, offsets=offsets, sources=read),
            source_files=files,
        )

    def write(
        self,
        uri: str | os.PathLike[str],
        plan: Plan,
        *,
        sources: Sequence[str] = (ONLY_SOURCE,),
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        job_name: str = "job",
        progress: ProgressListener = no_progress,
    ) -> WrittenSavepoint:
        """Write a savepoint from which a Statebackend job continues after the last committed batch.

        Args:
            uri: The directory of the savepoint, absent or empty.
            plan: Adds the operators and their state.
            sources: The uids of the sources of the job, in the order of the query's sources. If one source of the job
                replaces several of Spark's sources, repeat its uid for each.
            max_parallelism: The maximum parallelism of the job.
            job_name: The name of the job.
            progress: Receives the progress.

        Raises:
            PlanError, EntryError, SavepointExistsError: See `SavepointWriter.write`. Nothing was written. `PlanError`
                also if the query has another number of sources.
            SourceProgressError: Spark's offset log is damaged.
        """
        added = [change.uid for change in plan.changes if isinstance(change, AddOperator)]
        writer = SavepointWriter.new(
            uri, max_parallelism=max_parallelism, job_name=job_name, foreign=self._progress(sources, added)
        )
        return writer.write(plan, progress)

    def _watermarks(self, sources: Sequence[str], operators: Collection[str]) -> WatermarkState | None:
        if self.watermark_ms is None:
            return None
        now = self.watermark_ms - 1
        before = None if self.previous_watermark_ms is None else self.previous_watermark_ms - 1
        uids = dict.fromkeys(sources)
        channels = tuple(ChannelWatermark(source=uid, watermark_ms=now) for uid in uids)
        nodes = [NodeWatermark(node=uid, watermark_ms=now, sent_watermark_ms=now) for uid in uids]
        nodes += [NodeWatermark(node=uid, epoch_watermark_ms=before) for uid in operators]
        return WatermarkState(now, channels, tuple(nodes))

    def _read_operators(self) -> Iterator[SparkOperator]:
        if "state" not in self._files.list_directories():
            raise ForeignFormatError(
                f"{self.location} has no directory state: the query has no stateful operator, so there is no state to "
                f"import"
            )
        try:
            found = self.spark.read.format("state-metadata").load(self._readable).collect()
        except (PySparkException, Py4JError) as error:
            raise self._unreadable("the metadata of its operators", error) from error
        known = {row.operatorId for row in found}
        unknown = [number for number in numbered_directories(self._files, "state") if number not in known]
        if unknown:
            partitions = self._partitions_of_query()
            for number in unknown:
                yield self._operator_of_old_spark(number, partitions)
        for number in sorted(known):
            rows = [row for row in found if row.operatorId == number]
            partitions = rows[0].numPartitions
            name = rows[0].operatorName
            try:
                properties = json.loads(rows[0].operatorProperties or "{}") if "operatorProperties" in rows[0] else {}
                variables = properties.get("stateVariables")
                if variables is None:
                    states = _SIDES if name == _JOIN else tuple(row.stateStoreName for row in rows)
                    operator = SparkOperator(number, name, states, partitions)
                else:
                    states = tuple(one["stateName"] for one in variables if one["stateVariableType"] != "TimerState")
                    operator = SparkOperator(number, name, states, partitions, _TIME_MODES[properties["timeMode"]])
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise ForeignFormatError(
                    f"{self._files.location(f'state/{number}/_metadata')} is damaged: the properties of operator "
                    f"{number} ({name}) are not those of a transformWithState. Restore it from a backup"
                ) from error
            yield operator

    def _operator_of_old_spark(self, number: int, partitions: int) -> SparkOperator:
        """Return an operator of Spark 3.5, which writes the schema of its state, but no metadata of the operator."""
        stores = self._files.list_directories(f"state/{number}/0")
        if any(name.startswith(f"{side}-key") for name in stores for side in _SIDES):
            return SparkOperator(number, _JOIN, _SIDES, partitions)
        schema = f"state/{number}/0/_metadata/schema"
        if not self._files.exists(schema):
            raise ForeignFormatError(
                f"{self._files.location(f'state/{number}')} has neither metadata of its operator nor a schema of its "
                f"state. Restore it from a backup"
            )
        return SparkOperator(number, "unknown", ("default",), partitions)

    def _partitions_of_query(self) -> int:
        """Return the number of partitions that Spark keeps for all batches of a query."""
        name = f"offsets/{self.batch_id}"
        settings = self._json(name, 1, "conf")
        found = settings.get(_PARTITIONS) if isinstance(settings, dict) else None
        if not isinstance(found, str) or not _NUMBER.fullmatch(found):
            raise ForeignFormatError(
                f"{self._files.location(name)} is damaged: its conf has no number {_PARTITIONS!r}. Restore it from a "
                f"backup"
            )
        return int(found)

    def _load(self, operator: SparkOperator, **options: Any) -> DataFrame:
        reader = self.spark.read.format("statestore").option("batchId", self.batch_id)
        reader = reader.option("operatorId", operator.id)
        for name, value in options.items():
            reader = reader.option(name, value)
        try:
            with configured(self.spark, self._settings):
                frame = reader.load(self._readable)
        except (PySparkException, Py4JError) as error:
            where = self._files.location(f"state/{operator.id}")
            raise self._unreadable(f"{where} ({operator.name})", error) from error
        # Spark reads the partitions that there are. State without keys is in one partition: the key of a limit is null.
        key_type: Any = frame.schema["key"].dataType
        count = operator.partitions if any(not isinstance(one.dataType, NullType) for one in key_type) else 1
        present = set(numbered_directories(self._files, f"state/{operator.id}"))
        missing = next((number for number in range(count) if number not in present), None)
        if missing is not None:
            raise ForeignFormatError(
                f"{self._files.location(f'state/{operator.id}/{missing}')} is missing: operator {operator.id} "
                f"({operator.name}) has {count} partitions. Restore the directory from a backup"
            )
        return frame

    def _json(self, name: str, line: int, key: str, *, required: bool = True) -> Any:
        """Return a value of the JSON object in a line of a file."""
        if not self._files.exists(name):
            raise ForeignFormatError(
                f"{self._files.location(name)} is missing: {self.location} is not a checkpoint directory of Spark. "
                f"Pass the checkpointLocation of the query"
            )
        lines = self._files.read_file(name).decode("utf-8", "replace").split("\n")
        if line and lines[0] not in _LOG_VERSIONS:
            raise ForeignFormatError(
                f"{self._files.location(name)} has the version {lines[0][:20]!r}; v1 and v2 can be read. The file is "
                f"damaged, or of a later Spark"
            )
        try:
            found = json.loads(lines[line])
            return found[key] if required else found.get(key)
        except (IndexError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ForeignFormatError(
                f"{self._files.location(name)} is damaged: line {line + 1} has no {key!r} in a JSON object. Restore it "
                f"from a backup"
            ) from error

    def _time_ms(self, name: str, key: str) -> int:
        """Return a time in the second line of a file of a log."""
        time_ms = self._json(name, 1, key)
        if type(time_ms) is not int or not 0 <= time_ms <= MAX_TIMESTAMP:
            raise ForeignFormatError(
                f"{self._files.location(name)} is damaged: its {key!r} is not a number of milliseconds. Restore it "
                f"from a backup"
            )
        return time_ms

    def _unreadable(self, what: str, error: Exception) -> ForeignFormatError:
        # Spark may have read a copy, which is deleted when the process ends.
        text = str(error).replace(self._readable, self.location)
        # The first messages of a failed job do not name the file.
        causes = [_JAVA_CLASS.sub("", found) for found in _CAUSE.findall(text)] or [_BEFORE_STACK.split(text)[0]]
        reasons = dict.fromkeys(" ".join(one.split()).rstrip(".: ") for one in causes)
        return ForeignFormatError(
            f"{self.location}: Spark cannot read {what} at batch {self.batch_id}: {': '.join(filter(None, reasons))}. "
            f"Restore the files from a backup, or let the query complete another batch"
        )


@frozen
class _DeclaredState:
    """A state that a processor registers: its descriptor, and the schemas of its values and user keys."""

    descriptor: StateDescriptor
    values: ProcessorSchema
    user_keys: ProcessorSchema | None

    def is_read_as_columns(self, table: StructType) -> bool:
        """Whether all columns have the declared types, and are stored without a conversion."""
        pairs = [(self.values, table["value" if self.user_keys is None else "user_map_value"].dataType)]
        if self.user_keys is not None:
            pairs.append((self.user_keys, table["user_map_key"].dataType))
        return all(schema.has_columns and _has_types(_without_ttl(stored), schema.arrow) for schema, stored in pairs)


class _DeclaringHandle(ProcessorHandle):
    """Collects the states that a processor registers."""

    def __init__(self, function: StatefulProcessorFunction, uid: str) -> None:
        self.context = RegistrationContext(uid, 1)
        super().__init__(function, self.context, None)
        self.schemas: dict[str, tuple[ProcessorSchema, ProcessorSchema | None]] = {}

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ProcessorValueState:  # noqa: N802, N803
        state = super().getValueState(stateName, schema, ttlDurationMs)
        self.schemas[stateName] = state.schema, None
        return state

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ProcessorListState:  # noqa: N802, N803
        state = super().getListState(stateName, schema, ttlDurationMs)
        self.schemas[stateName] = state.schema, None
        return state

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: Any,  # noqa: N803
        valueSchema: Any,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ProcessorMapState:
        state = super().getMapState(stateName, userKeySchema, valueSchema, ttlDurationMs)
        self.schemas[stateName] = state.value_schema, state.key_schema
        return state


def _declared_states(function: StatefulProcessorFunction, uid: str) -> Mapping[str, _DeclaredState]:
    handle = _DeclaringHandle(function, uid)
    function.processor.init(handle)
    descriptors = {one.name: one for one in handle.context.registered.keyed}
    return {name: _DeclaredState(descriptors[name], *schemas) for name, schemas in handle.schemas.items()}


def processor_plan(
    checkpoint: SparkCheckpoint,
    processors: Mapping[str, StatefulProcessorFunction],
    *,
    allow_non_restored_state: bool = False,
) -> Plan:
    """Return a plan that imports the state of ``transformWithState`` operators into stateful processors.

    Args:
        checkpoint: The checkpoint of Spark.
        processors: Copies of the functions of the job by uid; their processors are initialised.
        allow_non_restored_state: Leave out state that no processor registers.

    Raises:
        UnsupportedForeignStateError: The query has a stateful operator of another kind.
        PlanError: Operators and processors do not fit.
    """
    plan = Plan()
    declared = {uid: _declared_states(function, uid) for uid, function in processors.items()}
    free = set(processors)
    for operator in checkpoint.operators.values():
        if not operator.is_processor:
            raise UnsupportedForeignStateError(
                f"{checkpoint.location}: operator {operator.id} is {operator.name}, and from_spark_checkpoint starts "
                f"programs of transformWithState only. Import its state with a plan: statebackend import --plan"
            )
        uid = _processor_of(checkpoint, operator, declared, free)
        free.remove(uid)
        _add_processor(plan, checkpoint, operator, uid, processors[uid], declared[uid], allow_non_restored_state)
    return plan


def _processor_of(
    checkpoint: SparkCheckpoint,
    operator: SparkOperator,
    declared: Mapping[str, Mapping[str, _DeclaredState]],
    free: Collection[str],
) -> str:
    """Return the uid of the only free processor. If there are several, return the one with the same states."""
    fits = list(free)
    if len(fits) > 1:
        fits = [uid for uid in fits if set(declared[uid]) == set(operator.states)]
    if len(fits) != 1:
        raise PlanError(
            f"{checkpoint.location}: operator {operator.id} has the states {', '.join(operator.states)}, and the job "
            f"has {len(fits)} processors that could continue it. Give the job one transform_with_state for each "
            f"transformWithState of the query"
        )
    return fits[0]


def _add_processor(
    plan: Plan,
    checkpoint: SparkCheckpoint,
    operator: SparkOperator,
    uid: str,
    function: StatefulProcessorFunction,
    declared: Mapping[str, _DeclaredState],
    allow_non_restored_state: bool,
) -> None:
    where = f"{checkpoint.location}: operator {operator.id}"
    if operator.time_mode is not function.time_mode:
        raise PlanError(
            f"{where} runs with time mode {operator.time_mode and operator.time_mode.value!r}, and {uid!r} with "
            f"{function.time_mode.value!r}; keep the time mode of the query"
        )
    lost = [name for name in operator.states if name not in declared]
    if lost and not allow_non_restored_state:
        raise PlanError(
            f"{where} has the states {', '.join(map(repr, lost))}, which {uid!r} does not register. Register them, or "
            f"drop them with allow_non_restored_state=True"
        )
    plan.add_operator(uid, checkpoint.key_columns(operator=operator.id))
    for name in operator.states:
        if name in declared:
            frame, state = checkpoint.table(name, operator=operator.id), declared[name]
            _check_schema(frame.schema, state, f"{where}, state {name!r}")
            plan.add_state(uid, state.descriptor, _entries(checkpoint, frame, state))
    if function.time_mode is TimeMode.NONE:
        return
    timers = checkpoint.timers(operator=operator.id)
    is_event_time = function.time_mode is TimeMode.EVENT_TIME
    of_key = MapStateDescriptor(TIMERS_STATE, LongSerializer(), BooleanSerializer())
    listed = timers.select(
        "key", functions.col("expiration_timestamp_ms").alias("user_key"), functions.expr("true AS value")
    )
    plan.add_state(uid, of_key, checkpoint.batches(listed))
    pending = timers.select("key", (functions.col("expiration_timestamp_ms") - int(is_event_time)).alias("value"))
    plan.add_timers(
        uid, checkpoint.batches(pending), time="event" if is_event_time else "processing", service=TIMER_SERVICE
    )
    if is_event_time and checkpoint.previous_watermark_ms is not None:
        late = BroadcastStateDescriptor(LATE_STATE, StringSerializer(), LongSerializer())
        plan.add_operator_state(uid, late, {WATERMARK_KEY: checkpoint.previous_watermark_ms})


def _entries(checkpoint: SparkCheckpoint, frame: DataFrame, state: _DeclaredState) -> Iterator[Any]:
    """Yield the entries of a variable, converted to the declared state."""
    ttl_ms = None if state.descriptor.ttl is None else state.descriptor.ttl.ttl_ms
    if "list_element" not in frame.columns and state.is_read_as_columns(frame.schema):
        return _batches(checkpoint, frame, state, ttl_ms)
    return _single_entries(checkpoint, frame, state, ttl_ms)


def _batches(
    checkpoint: SparkCheckpoint, frame: DataFrame, state: _DeclaredState, ttl_ms: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a value or a map as batches."""
    for batch in checkpoint.batches(frame.drop("partition_id")):
        value = batch.column("value" if state.user_keys is None else "user_map_value")
        columns = {"key": batch.column("key")}
        if state.user_keys is not None:
            columns["user_key"] = state.user_keys.stored_column(batch.column("user_map_key"))
        if _has_ttl(value.type):
            value, expires_ms = value.flatten()
            if ttl_ms is not None:
                columns["last_access_ms"] = pc.max_element_wise(pc.subtract(expires_ms, ttl_ms), 0)
        yield pa.record_batch({**columns, "value": state.values.stored_column(value)})


def _single_entries(
    checkpoint: SparkCheckpoint, frame: DataFrame, state: _DeclaredState, ttl_ms: int | None
) -> Iterator[StateEntry]:
    if "list_element" in frame.columns:
        elements = (
            (key, *_stored(one, state.values, ttl_ms))
            for columns in checkpoint.columns(frame, "list_element")
            for key, one in zip(columns["key"], columns["list_element"], strict=True)
        )
        for key, of_key in groupby(elements, key=itemgetter(0)):
            _, values, times = zip(*of_key, strict=True)
            yield StateEntry(0, key, None, None, list(values), None if None in times else times)
        return
    if state.user_keys is None:
        for columns in checkpoint.columns(frame, "value"):
            for key, row in zip(columns["key"], columns["value"], strict=True):
                value, time_ms = _stored(row, state.values, ttl_ms)
                yield StateEntry(0, key, None, None, value, time_ms)
        return
    for columns in checkpoint.columns(frame, "user_map_key", "user_map_value"):
        for key, user_row, row in zip(
            *map(columns.__getitem__, ("key", "user_map_key", "user_map_value")), strict=True
        ):
            value, time_ms = _stored(row, state.values, ttl_ms)
            user_key = state.user_keys.stored(user_row.asDict(recursive=True))
            yield StateEntry(0, key, None, user_key, value, time_ms)


def _stored(value: Row, schema: ProcessorSchema, ttl_ms: int | None) -> tuple[Any, int | None]:
    """Return a value in its stored form, and its last access, so that it expires at the same time as in Spark."""
    if value.__fields__ != _TTL_COLUMNS:
        return schema.stored(value.asDict(recursive=True)), None
    time_ms = None if ttl_ms is None else max(0, value.ttlExpirationMs - ttl_ms)
    return schema.stored(value.value.asDict(recursive=True)), time_ms


def _has_ttl(stored: Iterable[Any]) -> bool:
    return [field.name for field in stored] == _TTL_COLUMNS


def _without_ttl(stored: DataType) -> DataType:
    struct: Any = stored
    value: DataType = struct["value"].dataType if _has_ttl(struct) else stored
    return value


def _has_types(stored: DataType, declared: pa.Schema) -> bool:
    """Whether no stored column has another type than the declared one of its name."""
    of_arrow = {field.name: field.type for field in declared}
    found: Any = stored
    return len(set(found.names)) == len(found.names) and all(
        spark_arrow_types.to_arrow_type(field.dataType) == of_arrow.get(field.name) for field in found
    )


def _key_values(data_type: DataType, column: pa.Array) -> list[Any]:
    if isinstance(data_type, TimestampType):
        # Spark collects a moment without its zone, in the local time of the process.
        moments: list[Any] = column.to_pylist()
        return moments
    return python_values(data_type, column)


def _key_names(table: StructType) -> list[str]:
    """Return the names of the key columns, without windows."""
    names = [name for name in _columns(table, "key") if name != "sessionStartTime"]
    if _WINDOW in names and _columns(table["key"].dataType, _WINDOW) == ["start", "end"]:  # type: ignore[arg-type]
        names.remove(_WINDOW)
    return names


def _columns(table: StructType, column: str) -> list[str]:
    data_type = table[column].dataType
    return data_type.names if isinstance(data_type, StructType) else []


def _with_windows(table: DataFrame) -> DataFrame:
    """Return the key without its window, the window in milliseconds as ``namespace``, and the value."""
    of_session = _SESSION in _columns(table.schema, "value")
    names, window = _key_names(table.schema), f"value.{_SESSION}" if of_session else f"key.{_WINDOW}"
    bounds = [functions.unix_millis(f"{window}.{edge}").alias(edge) for edge in ("start", "end")]
    key = functions.struct(*(functions.col("key")[name] for name in names)).alias("key")
    return table.select(key, functions.struct(*bounds).alias("namespace"), "value")


def _only_column(table: StructType, where: str) -> Callable[[Row], Any] | str:
    named = {_SESSION, *_columns(table, "key")}
    names = [name for name in _columns(table, "value") if name not in named]
    if len(names) != 1:
        raise PlanError(
            f"{where} stores {', '.join(names)}; pass a function that makes an accumulator of a row of them"
        )
    stored: Any = table["value"].dataType
    is_plain = isinstance(stored[names[0]].dataType, AS_IN_ARROW)
    return f"value.`{names[0].replace('`', '``')}`" if is_plain else itemgetter(names[0])


def _check_schema(table: StructType, state: _DeclaredState, where: str) -> None:
    """Raise `PlanError` for fields that the declared schema does not have."""
    names = set(table.names)
    column = next(name for name in ("value", "list_element", "user_map_value") if name in names)
    schemas = [(_without_ttl(table[column].dataType), state.values)]
    if state.user_keys is not None and "user_map_key" in names:
        schemas.append((table["user_map_key"].dataType, state.user_keys))
    if (state.user_keys is not None) is not ("user_map_key" in names) or (state.descriptor.kind.name == "list") is not (
        "list_element" in names
    ):
        raise PlanError(f"{where} is a {_KINDS[column]} state on Spark, and a {state.descriptor.kind.name} state here")
    for of_spark, schema in schemas:
        lost = list(_lost_fields(of_spark, struct_type_of(schema.arrow), ""))
        if lost:
            raise PlanError(
                f"{where} has the fields {', '.join(lost)}, which {schema.where} does not declare: their values would "
                f"be lost. Declare them as on Spark; a later version of the program may remove them"
            )


_KINDS: Final = {"value": "value", "list_element": "list", "user_map_value": "map"}


def _lost_fields(stored: DataType, declared: DataType, path: str) -> Iterator[str]:
    if isinstance(stored, StructType) and isinstance(declared, StructType):
        for field in stored:
            place = f"{path}.{field.name}"
            if field.name in declared.names:
                yield from _lost_fields(field.dataType, declared[field.name].dataType, place)
            else:
                yield place
    elif isinstance(stored, ArrayType) and isinstance(declared, ArrayType):
        yield from _lost_fields(stored.elementType, declared.elementType, f"{path}[]")
    elif isinstance(stored, MapType) and isinstance(declared, MapType):
        yield from _lost_fields(stored.keyType, declared.keyType, f"{path}{{key}}")
        yield from _lost_fields(stored.valueType, declared.valueType, f"{path}{{value}}")
