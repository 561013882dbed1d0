"""The table of an operator's timers: all its services, or one; a row for each timer that is set.

Timers of services whose keys or namespaces are of different types do not fit one table; one service is then chosen by
the name of its state. A service without namespaces fits any other: its namespaces are null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import evolve, frozen

from savepoints.restored_state import RestoredState
from savepoints.savepoint import Savepoint
from statebackend.queues.queue_kind import PRIORITY_QUEUE
from statebackend.queues.timer_names import domain_and_service
from streamjobs.spark.state_tables.key_pruning import KeyCondition
from streamjobs.spark.state_tables.keyed_parts import KeyedPart
from streamjobs.spark.state_tables.keyed_table import KeyedTable, chosen_operator, keyed_table
from streamjobs.spark.state_tables.state_table import SparkTable
from streamjobs.spark.state_tables.table_options import StateTableError, TableOptions

__all__ = ["TimersTable", "timers_table"]

_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
"""The years 1 to 9999, outside of which a timestamp is none to Python; windows that never end have such timers."""


@frozen
class TimersTable:
    """See the module; ``tables`` are those of the states, by name, and ``schema`` has all columns."""

    schema: pa.Schema
    operator_uid: str
    tables: Mapping[str, KeyedTable]

    def parts(self, conditions: Sequence[KeyCondition]) -> Sequence[KeyedPart]:
        """See `SparkTable`."""
        return [part for table in self.tables.values() for part in table.parts(conditions)]

    def batches(self, part: KeyedPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `SparkTable`."""
        table = self.tables[part.state_name]
        domain, service = domain_and_service(part.state_name) or ("", "")
        schema = pa.schema([self.schema.field(name) for name in columns])
        told = {"operator": self.operator_uid, "service": service, "domain": domain}
        sources = {name: _SOURCES.get(name, name) for name in columns if name not in told}
        read = list(dict.fromkeys(name for name in sources.values() if name in table.schema.names))
        for batch in table.batches(part, read or ["key_group"]):
            arrays = [
                pa.repeat(told[name], batch.num_rows)
                if name in told
                else _MADE.get(name, _itself)(batch.column(sources[name]))
                if sources[name] in read
                else pa.nulls(batch.num_rows, self.schema.field(name).type)
                for name in columns
            ]
            yield pa.record_batch(arrays, schema=schema)


def timers_table(savepoint: Savepoint, restored: RestoredState, options: TableOptions) -> SparkTable:
    """The timers of the operator that the options name; raises `StateTableError`, naming what there is."""
    operator_uid = chosen_operator(savepoint, options)
    states = savepoint.operators[operator_uid].states
    names = [name for name, state in states.items() if state.kind == PRIORITY_QUEUE.name and domain_and_service(name)]
    if options.state is not None:
        if options.state not in names:
            raise StateTableError(
                f"operator {operator_uid!r} has no timers in a state {options.state!r}; it has them in "
                f"{', '.join(names) or 'none'}"
            )
        names = [options.state]
    tables: dict[str, KeyedTable] = {}
    for name in names:
        tables[name] = keyed_table(savepoint, restored, evolve(options, state=name, operator=operator_uid))
    return TimersTable(_schema(operator_uid, tables), operator_uid, tables)


def _schema(operator_uid: str, tables: Mapping[str, KeyedTable]) -> pa.Schema:
    fields = {name: pa.field(name, pa.string(), nullable=False) for name in ("operator", "service", "domain")}
    fields["key_group"] = pa.field("key_group", pa.int32())
    found: dict[str, pa.DataType] = {}
    for state_name, table in tables.items():
        for name in ("key", "namespace"):
            if name not in table.schema.names:
                continue
            held = table.schema.field(name).type
            if found.setdefault(name, held) != held:
                raise StateTableError(
                    f"the timers of operator {operator_uid!r} have {name}s of different types ({found[name]}, and "
                    f"{held} in {state_name!r}): choose one by the option state, of {', '.join(tables)}"
                )
    fields |= {name: pa.field(name, found.get(name, pa.string())) for name in ("key", "namespace")}
    fields["timestamp_ms"] = pa.field("timestamp_ms", pa.int64())
    fields["timestamp"] = pa.field("timestamp", pa.timestamp("us", "UTC"))
    return pa.schema(list(fields.values()))


def _timestamps(times_ms: pa.Array) -> pa.Array:
    """As timestamps; null where they are too far from now."""
    is_near = pc.and_(pc.less_equal(times_ms, _LAST_MS), pc.greater_equal(times_ms, _FIRST_MS))
    near = pc.if_else(is_near, times_ms, pa.scalar(None, pa.int64()))
    return near.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def _itself(column: pa.Array) -> pa.Array:
    return column


_SOURCES: Final[Mapping[str, str]] = {"timestamp_ms": "value", "timestamp": "value"}
_MADE: Final = {"timestamp": _timestamps}
