"""Reads a state table like Spark but without it: the table is created, pickled, planned, and read by partition."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import Filter, InputPartition

from statebackend.spark.state_tables.source import StateTableReader, StateTableSource

__all__ = ["parts_of", "reader_of", "rows_of"]


def reader_of(path: Path | str, *filters: Filter, **options: str) -> StateTableReader:
    """The reader of a table, with the filters of a query."""
    source = pickle.loads(pickle.dumps(StateTableSource({"path": str(path), **options})))
    schema = source.schema()
    reader: StateTableReader = pickle.loads(pickle.dumps(source)).reader(schema)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark is to apply every filter"
    return reader


def parts_of(reader: StateTableReader) -> list[InputPartition]:
    """The partitions of a reader, as tasks receive them."""
    parts: list[InputPartition] = pickle.loads(pickle.dumps(list(reader.partitions())))
    return parts


def rows_of(path: Path | str, *filters: Filter, **options: str) -> list[dict[str, Any]]:
    """The rows of a table that may satisfy the filters."""
    reader = reader_of(path, *filters, **options)
    in_task: StateTableReader = pickle.loads(pickle.dumps(reader))
    batches = [batch for part in parts_of(reader) for batch in in_task.read(part)]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist() if batches else []
    return rows
