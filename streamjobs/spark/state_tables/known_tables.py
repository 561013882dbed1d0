"""The tables that there are, by their kinds, and how each is made of a checkpoint and what a user says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from savepoints.reading.state_location import find_state
from savepoints.restored_state import RestoredState
from savepoints.savepoint import Savepoint
from streamjobs.spark.state_tables.keyed_table import keyed_table
from streamjobs.spark.state_tables.metadata_table import MetadataTable
from streamjobs.spark.state_tables.operator_state_table import broadcast_table, operator_table
from streamjobs.spark.state_tables.state_table import SparkTable
from streamjobs.spark.state_tables.table_options import TableOptions
from streamjobs.spark.state_tables.timers_table import timers_table

__all__ = ["opened_table"]


def opened_table(options: TableOptions) -> SparkTable:
    """The table that the options ask for, of the checkpoint that is the newest now where they do not choose one.

    Raises `StateTableError` for what cannot be, and what `savepoints.Savepoint` raises for what is not there.
    """
    restored = find_state(options.path, options.checkpoint, options.high_availability)
    return _TABLES[options.kind](Savepoint(restored), restored, options)


def _metadata(savepoint: Savepoint, restored: RestoredState, options: TableOptions) -> SparkTable:
    return MetadataTable.of(savepoint, restored.file_system)


_TABLES: Final[Mapping[str, Callable[[Savepoint, RestoredState, TableOptions], SparkTable]]] = {
    "keyed": keyed_table,
    "metadata": _metadata,
    "timers": timers_table,
    "operator": operator_table,
    "broadcast": broadcast_table,
}
