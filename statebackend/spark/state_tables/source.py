"""The data source ``statebackend``: its registration with a session, and what ``spark.read.format`` calls.

Spark creates the source in a Python process next to the driver. It asks for the columns, creates a reader, passes the
filters of the query, asks for the partitions, and sends the reader to the tasks. The source keeps the checkpoint that
it opened for the columns, so the rows come from the same one while a job continues.

Spark (up to 4.3) does not report which columns a query needs, and sends all to the JVM. The option ``columns``, or a
schema passed to the reader, leaves out the others before anything is read or decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa
from attrs import frozen
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, datasource
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import DataType, NullType, StructField, StructType

from snapshots.errors import UnknownSnapshotError
from statebackend.spark.columns import struct_type_of, to_arrow_schema
from statebackend.spark.session import check_spark_version, ensure_python_interpreter
from statebackend.spark.state_tables.options import (
    HOW_TO_SHIP,
    Program,
    StateTableError,
    TableOptions,
    parsed_options,
    parsed_write_options,
)
from statebackend.spark.state_tables.tables import KeyCondition, SparkTable, opened_table
from statebackend.spark.state_tables.write import SavepointSink, written_state
from statebackend.spark.tasks.program_pickles import ProgramModules
from statebackend.state.clock import wall_clock

__all__ = ["FORMAT", "StateTableSource", "register_state_tables"]


FORMAT: Final = "statebackend"
"""The name of the format, for `spark.read.format`."""


class StateTableSource(DataSource):
    """The data source ``statebackend``. ``program`` has the registrations of the program at that time."""

    program: ClassVar[ProgramModules | None] = None

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = dict(options)
        self._table: SparkTable | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    @property
    def _options(self) -> TableOptions:
        return parsed_options(self._given)

    def schema(self) -> StructType:
        """Return the requested columns. Raises as `opened_table`, and `StateTableError` for an unknown column."""
        table = self._opened()
        names = self._options.columns or table.schema.names
        unknown = [name for name in names if name not in table.schema.names]
        if unknown:
            raise StateTableError(
                f"there is no column {', '.join(map(repr, unknown))}; there are {', '.join(table.schema.names)}"
            )
        return _spark_schema(pa.schema([table.schema.field(name) for name in names]))

    def reader(self, schema: StructType) -> StateTableReader:
        """Return a reader of these columns; raises as `schema`, and `StateTableError` for columns of other types."""
        table = self._opened()
        for field in schema:
            if field.name not in table.schema.names:
                raise StateTableError(f"there is no column {field.name!r}; there are {', '.join(table.schema.names)}")
            known = _spark_type(table.schema.field(field.name))
            if field.dataType != known:
                raise StateTableError(
                    f"the column {field.name!r} is of type {known.simpleString()}, which cannot be read as "
                    f"{field.dataType.simpleString()}: leave the schema out, or cast the column"
                )
        return StateTableReader(table, schema, Program(self.program, self._options.modules))

    def writer(self, schema: StructType, overwrite: bool) -> SavepointSink:
        """Return a writer of a frame as a savepoint. Raises `StateTableError` for an invalid frame or option."""
        options = parsed_write_options(self._given)
        if overwrite:
            raise StateTableError('a savepoint is never overwritten: write to another place, with .mode("append")')
        program = Program(self.program, options.modules)
        program.install()
        types = {field.name: field.dataType for field in schema}
        key_type = types.get("key")
        parts = key_type.fields if isinstance(key_type, StructType) else [StructField("key", key_type or NullType())]
        state = written_state(options, [part.dataType.simpleString() for part in parts], wall_clock())
        columns = state.schema.entry_columns
        missing = [name for name in columns if name not in types]
        if missing:
            raise StateTableError(
                f"the columns of state {options.state!r} are {', '.join(columns)}; the frame lacks "
                f"{', '.join(missing)}, and has {', '.join(types) or 'none'}"
            )
        # The key group follows from the key.
        known = {*columns, "key_group", *(["last_access_ms"] if state.schema.is_timed else [])}
        unknown = [name for name in types if name not in known]
        if unknown:
            raise StateTableError(
                f"the columns of state {options.state!r} are {', '.join(columns)}; the frame has "
                f"{', '.join(unknown)} besides, which would be lost: drop these columns"
            )
        return SavepointSink(state, program)

    def _opened(self) -> SparkTable:
        Program(self.program, self._options.modules).install()
        if self._table is None:
            self._table = opened_table(self._options)
        return self._table


@frozen
class _StatePartition(InputPartition):
    """The part that one task reads."""

    value: Any


class StateTableReader(DataSourceReader):
    """Reads one table; sent to the tasks."""

    def __init__(self, table: SparkTable, schema: StructType, program: Program) -> None:
        self._table = table
        self._schema = schema
        self._program = program
        self._conditions: tuple[KeyCondition, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Use the filters on keys to read less. Spark still applies all filters."""
        understood = (_CONDITIONS[type(one)](one) for one in filters if type(one) in _CONDITIONS)
        self._conditions = tuple(one for one in understood if one is not None)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts that may have rows for the filters."""
        return [_StatePartition(part) for part in self._table.parts(self._conditions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in batches of bounded size."""
        # Without partitions Spark reads one with the value None.
        if partition.value is None:
            return
        self._program.install()
        names = self._schema.fieldNames()
        schema = to_arrow_schema(self._schema, "UTC")
        try:
            for batch in self._table.batches(partition.value, names):
                yield pa.record_batch([_cast(batch.column(one.name), one.type) for one in schema], schema=schema)
        except UnknownSnapshotError as error:
            raise StateTableError(f"{error} ({HOW_TO_SHIP})") from error


def _cast(column: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    return column if column.type == arrow_type else column.cast(arrow_type)


def _spark_schema(schema: pa.Schema) -> StructType:
    return StructType([StructField(one.name, _spark_type(one), one.nullable) for one in schema])


def _spark_type(field: pa.Field) -> DataType:
    try:
        return struct_type_of(pa.schema([field])).fields[0].dataType
    except PySparkException as error:
        raise StateTableError(
            f"the column {field.name!r} is of type {field.type}, which Spark does not have: leave it out with the "
            f"option columns, or read the state with statebackend.Savepoint"
        ) from error


def _equal(one: Any) -> KeyCondition:
    return KeyCondition(tuple(one.attribute), "in", (one.value,))


def _equal_or_both_null(one: Any) -> KeyCondition | None:
    return None if one.value is None else _equal(one)


def _in(one: Any) -> KeyCondition:
    return KeyCondition(tuple(one.attribute), "in", tuple(one.value))


def _compared(relation: str) -> Callable[[Any], KeyCondition]:
    return lambda one: KeyCondition(tuple(one.attribute), relation, (one.value,))


_CONDITIONS: Final[Mapping[type[Any], Callable[[Any], KeyCondition | None]]] = {
    datasource.EqualTo: _equal,
    datasource.EqualNullSafe: _equal_or_both_null,
    datasource.In: _in,
    datasource.LessThan: _compared("<"),
    datasource.LessThanOrEqual: _compared("<="),
    datasource.GreaterThan: _compared(">"),
    datasource.GreaterThanOrEqual: _compared(">="),
}
"""The filters that are used to read less."""


_PUSH_FILTERS: Final = "spark.sql.python.filterPushdown.enabled"


def register_state_tables(spark: SparkSession) -> None:
    """Let this session read state: ``spark.read.format("statebackend").load(path)``.

    The tasks get the serializers that the program has defined until then; a second call replaces them. Turns on filter
    pushdown for Python data sources, which the lookup of keys needs. Raises `UnsupportedSparkVersionError` if Spark is
    too old.
    """
    check_spark_version(spark)
    ensure_python_interpreter(spark)
    spark.conf.set(_PUSH_FILTERS, "true")
    # Spark takes a class, not an object, so the registrations are an attribute of a new class.
    source = type("StateTableSource", (StateTableSource,), {"program": ProgramModules.of_this_process()})
    spark.dataSource.register(source)
