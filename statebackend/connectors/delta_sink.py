"""A sink for Delta Lake tables, without a JVM: the extra ``delta`` (the package ``deltalake``).

    <table>/_delta_log/                                           Delta's log
    <table>/<lineage>/<epoch>/<run>-<subtask>-<32 hex>.parquet    the files of an epoch; <lineage> is a hash of its name

The tasks write the files. They are visible when the driver commits one transaction that adds the files of all subtasks.
The transaction also stores the epoch as the version of an application (Delta's idempotent writes). The id of the
application is the name of the lineage. Delta rejects two concurrent transactions of one application, so a driver that
is no longer the leader cannot add an epoch twice.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.fs
from attrs import asdict, evolve

from statebackend.checkpoint.fs.store_uri import check_path, without_secrets
from statebackend.connectors.sink_errors import check_names, check_parent, checked_columns, reported, retry_conflicts
from statebackend.connectors.staged_parquet import (
    MOST_OPEN_EPOCHS,
    ROLLBACK,
    StagedFile,
    check_staged,
    committed_epochs,
    convert_rows,
    count_files_after,
    decode_committable,
    delete_staged,
    epoch_directory,
    history_entry,
    lineage_directory,
    partition_text,
    secret_values,
    split_by_columns,
    stored_type,
    widened_type,
    write_parquet,
)
from statebackend.streaming.sink import Sink, SinkEpoch, SinkError, SinkLineage

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_VERSION: Final = 1
_ATTEMPTS: Final = 10
"""The number of attempts of a commit that conflicts with another writer. Each attempt includes retries by deltalake."""

_COMPUTED: Final = ("delta.generationExpression", "delta.identity.", "delta.invariants")
"""Metadata of columns that a writer must compute or check."""

_PATH_SIZE: Final = ("path", "size_bytes")

_INDEXED_COLUMNS: Final = 32
_LONGEST_TEXT: Final = 256
_LATEST_BOUND: Final = datetime.datetime.max.replace(microsecond=999_000)


class DeltaSink(Sink):
    """Writes each epoch as one transaction of a Delta Lake table. Needs the extra ``delta``.

    The table is created with the first epoch that has rows. A table with CHECK constraints, generated or identity
    columns, or column mapping is rejected. Other writers may append to it, compact it and vacuum it.
    A rollback of the job removes the files of later epochs from the table. It needs their entries in the log, and fails
    if another writer has compacted these files.

    Args:
        path: A directory that the driver and all workers share, or the URI of an object store.
        partition_by: The partition columns. Delta stores their values in the log, where an empty string becomes null.
        evolve_schema: Add new columns of the rows to the table. If False, they are an error. Narrower types are always
            widened to the types of the table, and missing columns are null.
        storage_options: Options as for `deltalake.DeltaTable`. Prefer environment variables for credentials.
        compression: The codec of Parquet files.
        configuration: Properties of a new table, such as ``{"delta.logRetentionDuration": "interval 60 days"}``.

    Raises:
        ImportError: The extra is not installed.

    Example:
        ``rows.sink_to(DeltaSink("s3://bucket/flights", partition_by=["day"]), uid="flights")``
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: Sequence[str] = (),
        evolve_schema: bool = False,
        storage_options: Mapping[str, str] | None = None,
        compression: str = "zstd",
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        _deltalake()
        given = os.fspath(path)
        check_path(given)
        self._uri = given if "://" in given else os.path.abspath(os.path.expanduser(given))
        self._partition_by = checked_columns(partition_by, "DeltaSink", "partition_by")
        self._evolve_schema = evolve_schema
        self._options = dict(storage_options or {})
        self._compression = compression
        self._configuration = dict(configuration or {})
        self._table: DeltaTable | None = None
        self._table_schema: pa.Schema | None = None
        """The columns of the table when it was last read. They are sent to the tasks with the sink."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    def __repr__(self) -> str:
        return self.identity

    @property
    def identity(self) -> str:
        return f"DeltaSink({without_secrets(self._uri)!r})"

    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: pa.RecordBatchReader) -> bytes:
        # This method runs in the task.
        check_names(self.identity, rows.schema)
        schema = self._stored_schema(rows.schema)
        for one in schema:
            if not self._is_known(one):
                raise SinkError(
                    f"{self}: Delta Lake cannot store column {one.name!r} of type {one.type}. Change its type, or drop "
                    f"it from the rows"
                )
        with self._reported("the table cannot have these columns"):
            delta_schema = _deltalake().Schema.from_arrow(schema)
        if self._table_schema is not None:
            self._check_schema(delta_schema, _deltalake().Schema.from_arrow(self._table_schema))
        missing = [name for name in self._partition_by if name not in schema.names]
        if missing:
            raise SinkError(f"{self}: the rows have no column {missing[0]!r} to partition by")
        if set(schema.names) <= set(self._partition_by):
            raise SinkError(f"{self}: all columns are in partition_by, so the files would have no rows; leave one out")
        required = [one.name for one in self._table_schema or () if not one.nullable]

        def converted() -> Any:
            for batch in rows:
                if batch.num_rows:
                    for name in required:
                        if name not in schema.names or batch.column(name).null_count:
                            raise SinkError(f"{self}: column {name!r} of the table is NOT NULL, and a row has no value")
                    yield convert_rows(batch, schema)

        with self._reported(f"the rows of {epoch} cannot be written"):
            files = write_parquet(
                self._file_system(),
                epoch,
                subtask_index,
                converted(),
                split=self._split if self._partition_by else None,
                statistics=_statistics,
                compression=self._compression,
                local_root=self._local_root(),
            )
        if not files:
            return b""
        # Delta's log has the values by column.
        files = [evolve(one, partition=dict(zip(self._partition_by, one.partition, strict=True))) for one in files]
        fields = {"version": _VERSION, "schema": delta_schema.to_json(), "files": [asdict(one) for one in files]}
        return json.dumps(fields).encode()

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        staged = [decode_committable(one, epoch, _VERSION, "DeltaSink") for one in committables]
        deltalake = _deltalake()
        schemas = {one["schema"] for one in staged}
        schema = deltalake.Schema.from_json(schemas.pop())
        if schemas:
            raise SinkError(f"{self}: the subtasks of {epoch} staged rows of different schemas")
        files = [StagedFile(**file) for one in staged for file in one["files"]]
        now_ms = int(time.time() * 1000)
        actions = [
            deltalake.transaction.AddAction(
                path=file.path,
                size=file.size_bytes,
                partition_values=file.partition,
                modification_time=now_ms,
                data_change=True,
                stats=json.dumps(file.statistics),
            )
            for file in files
        ]
        properties = self._properties(epoch.lineage, epoch.epoch_id, str(len(files)))

        def add(table: DeltaTable) -> None:
            if self._newest_epoch(table, epoch.lineage) >= epoch.epoch_id:
                return
            check_staged(str(self), self._file_system(), epoch, without_secrets(self._uri), [one.path for one in files])
            self._fit_schema(table, schema)
            table.create_write_transaction(
                actions,
                mode="append",
                schema=schema,
                partition_by=list(self._partition_by) or None,
                commit_properties=properties,
            )

        self._retry(f"{epoch} cannot be committed", lambda: add(self._opened(schema)))

    def abort(self, epoch: SinkEpoch) -> None:
        self._delete_staged(epoch.lineage, epoch.epoch_id, f"{epoch.run_id}-")

    def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:
        last_id = -1 if last_epoch_id is None else last_epoch_id
        with self._reported("the table cannot be read"):
            table = self._existing()
        if table is not None:
            newest = self._newest_epoch(table, lineage)
            if newest > last_id:
                raise SinkError(
                    f"{self} has epoch {newest} of {lineage.name}, but the job has completed {last_epoch_id} only: its "
                    f"job directory is older than the table. Restore the table to an earlier version, or write to "
                    f"another one"
                )
            check_parent(
                str(self),
                lineage,
                lambda one: self._newest_epoch(table, one),
                "Restore the table to an earlier version, take a later savepoint, or write to another table",
            )
            self._check_features(table)
            self._table_schema = pa.schema(table.schema().to_arrow())
        # The history of a long table takes time, and mostly nothing is staged.
        committed = cache(partial(self._committed_epochs, lineage))
        for epoch_id in range(last_id + 1, last_id + 1 + MOST_OPEN_EPOCHS):
            self._delete_staged(lineage, epoch_id, committed=committed)

    def roll_back(self, lineage: SinkLineage, last_epoch_id: int) -> Sequence[str]:
        def remove() -> None:
            table = self._existing()
            if table is None or self._newest_epoch(table, lineage) <= last_epoch_id:
                return
            files = self._files_after(table, lineage, last_epoch_id)
            deltalake = _deltalake()
            now_ms = int(time.time() * 1000)
            actions = [deltalake.transaction.RemoveAction(path, True, now_ms, size) for path, size in files]
            table.create_write_transaction(
                actions,
                mode="append",
                schema=table.schema(),
                commit_properties=self._properties(lineage, last_epoch_id, ROLLBACK),
            )

        self._retry(f"the epochs after {last_epoch_id} cannot be removed", remove)
        place = f"{without_secrets(self._uri)}/{lineage_directory(lineage)}"
        return [f"the files in {place} that its log does not name any longer"]

    def _is_known(self, column: pa.Field) -> bool:
        try:
            _deltalake().Schema.from_arrow(pa.schema([column]))
        except Exception:
            return False
        return True

    def _stored_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the files. Narrower types are widened to those of the table."""
        table = self._table_schema
        fields = []
        for one in schema:
            stored = stored_type(one.type)
            if table is not None and one.name in table.names:
                stored = widened_type(stored, table.field(one.name).type)
            fields.append(pa.field(one.name, stored, nullable=True))
        return pa.schema(fields)

    def _files_after(self, table: DeltaTable, lineage: SinkLineage, last_epoch_id: int) -> list[tuple[str, int]]:
        """Return the files of later epochs and their sizes. Raises `SinkError` if any of them is not in the table."""
        history = ((entry, entry.get("version") == 0) for entry in table.history())
        written, is_complete = count_files_after(history, lineage, last_epoch_id)
        tag = f"{lineage_directory(lineage)}/"
        added = zip(*(pa.table(table.get_add_actions()).column(name).to_pylist() for name in _PATH_SIZE), strict=True)
        found = [
            (path, size) for path, size in added if path.startswith(tag) and int(path.split("/")[1]) > last_epoch_id
        ]
        if not is_complete or len(found) != written:
            raise SinkError(
                f"{self} cannot remove the epochs after {last_epoch_id}: its log says that {written} files were added, "
                f"and {len(found)} of them are in the table. Another writer has compacted or removed them, or old "
                f"entries of the log have expired. Restore the table to an earlier version, or start from a savepoint "
                f"in a new job directory"
            )
        return found

    def _fit_schema(self, table: DeltaTable, schema: Any) -> None:
        """Add missing columns to the table, if allowed. Raises `SinkError` for a column of another type."""
        self._check_features(table)
        self._check_schema(schema, table.schema())
        partition_by = table.metadata().partition_columns
        if list(partition_by) != list(self._partition_by):
            raise SinkError(f"{self}: the table is partitioned by {partition_by}: pass partition_by={partition_by}")
        known = {one.name for one in table.schema().fields}
        added = [one for one in schema.fields if one.name not in known]
        if added:
            table.alter.add_columns([_deltalake().Field(one.name, one.type, nullable=True) for one in added])
            table.update_incremental()
        self._table_schema = pa.schema(table.schema().to_arrow())

    def _check_features(self, table: DeltaTable) -> None:
        """Raise `SinkError` if writers must check or compute values of the table, or map its columns."""
        found = [name for name in table.metadata().configuration if name.startswith("delta.constraints.")]
        if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            found.append("delta.columnMapping.mode")
        for one in table.schema().fields:
            found += [name for name in one.metadata if name.startswith(_COMPUTED)]
        if found:
            raise SinkError(
                f"{self}: the table has {found[0]}, which this sink does not apply. Remove it from the table, or write "
                f"to another table"
            )

    def _check_schema(self, schema: Any, table: Any) -> None:
        """Raise `SinkError` if rows of a schema do not fit the table. Tasks check this too, before the commit."""
        known = {one.name: one.type for one in table.fields}
        for one in schema.fields:
            if one.name in known and known[one.name] != one.type:
                raise SinkError(
                    f"{self}: column {one.name!r} is {known[one.name]} in the table and {one.type} in the rows: "
                    f"convert the rows, or write to another table"
                )
            if one.name not in known and not self._evolve_schema:
                raise SinkError(
                    f"{self}: the table has no column {one.name!r}: pass evolve_schema=True to add it, or drop it from "
                    f"the rows"
                )

    def _opened(self, schema: Any) -> DeltaTable:
        table = self._existing()
        if table is None:
            table = self._table = _deltalake().DeltaTable.create(
                self._uri,
                schema,
                mode="ignore",
                partition_by=list(self._partition_by) or None,
                configuration=self._configuration or None,
                storage_options=self._options or None,
            )
        return table

    def _existing(self) -> DeltaTable | None:
        """Return the newest version of the table, or None if it does not exist."""
        deltalake = _deltalake()
        if self._table is not None:
            self._table.update_incremental()
            return self._table
        try:
            self._table = deltalake.DeltaTable(self._uri, storage_options=self._options or None)
        except deltalake.exceptions.TableNotFoundError:
            return None
        return self._table

    def _newest_epoch(self, table: DeltaTable, lineage: SinkLineage) -> int:
        version = table.transaction_version(lineage.name)
        return -1 if version is None else version

    def _properties(self, lineage: SinkLineage, epoch_id: int, files: str) -> CommitProperties:
        deltalake = _deltalake()
        properties: CommitProperties = deltalake.CommitProperties(
            custom_metadata=history_entry(lineage, epoch_id, files),
            app_transactions=[deltalake.Transaction(lineage.name, epoch_id)],
        )
        return properties

    @contextlib.contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Raise errors of deltalake and of the store as `SinkError` without secrets."""
        try:
            with reported(
                f"{self}: {what}",
                "Check the table, the permissions and the storage options",
                lambda: secret_values(self._options, {"": self._uri}),
            ):
                yield
        except SinkError:
            self._forget()
            raise

    def _retry(self, what: str, act: Callable[[], None]) -> None:
        with self._reported(what):
            retry_conflicts(act, _deltalake().exceptions.CommitFailedError, _ATTEMPTS, self._forget)

    def _forget(self) -> None:
        self._table = None

    def _committed_epochs(self, lineage: SinkLineage) -> set[int]:
        table = self._existing()
        return committed_epochs([] if table is None else table.history(), lineage)

    def _delete_staged(
        self,
        lineage: SinkLineage,
        epoch_id: int,
        prefix: str = "",
        committed: Callable[[], Collection[int]] = tuple,
    ) -> None:
        directory = epoch_directory(lineage, epoch_id)
        with self._reported(f"staged files in {directory} cannot be deleted"):
            delete_staged(self._file_system(), directory, prefix, lambda: epoch_id in committed())

    def _split(self, batch: pa.RecordBatch) -> list[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        names = self._partition_by
        rest = batch.select([name for name in batch.schema.names if name not in names])
        return [
            (tuple(map(partition_text, names, values)), part)
            for values, part in split_by_columns(rest, [batch.column(name) for name in names])
        ]

    def _local_root(self) -> str | None:
        parsed = urlparse(self._uri)
        if parsed.scheme == "file":
            return unquote(parsed.path)
        return None if "://" in self._uri else self._uri

    def _file_system(self) -> pyarrow.fs.FileSystem:
        root = self._local_root()
        if root is not None:
            Path(root).mkdir(parents=True, exist_ok=True)
            return pyarrow.fs.SubTreeFileSystem(root, pyarrow.fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return pyarrow.fs.PyFileSystem(DeltaStorageHandler(self._uri, self._options or None))


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError as error:
        raise ImportError("DeltaSink needs deltalake: pip install 'statebackend[delta]'") from error
    return deltalake


def _statistics(metadata: Any) -> dict[str, Any]:
    """Return the statistics of a file as in Delta's log, for the first columns that are not nested."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    null_counts: dict[str, int] = {}
    unknown: set[str] = set()
    for group_index in range(metadata.num_row_groups):
        group = metadata.row_group(group_index)
        for column_index in range(min(group.num_columns, _INDEXED_COLUMNS)):
            column = group.column(column_index)
            name, found = column.path_in_schema, column.statistics
            if "." in name or found is None or not found.has_null_count:
                unknown.add(name)
                continue
            null_counts[name] = null_counts.get(name, 0) + found.null_count
            if not found.has_min_max:
                if found.null_count != column.num_values:
                    unknown.add(name)
                continue
            low, high = found.min, found.max
            if _json_value(low, is_upper=False) is None or _json_value(high, is_upper=True) is None:
                unknown.add(name)
                continue
            least[name] = low if name not in least else min(least[name], low)
            greatest[name] = high if name not in greatest else max(greatest[name], high)
    return {
        "numRecords": metadata.num_rows,
        "minValues": {name: _json_value(one, is_upper=False) for name, one in least.items() if name not in unknown},
        "maxValues": {name: _json_value(one, is_upper=True) for name, one in greatest.items() if name not in unknown},
        "nullCount": {name: count for name, count in null_counts.items() if "." not in name},
    }


def _json_value(value: Any, *, is_upper: bool) -> Any:
    """Return a value as in Delta's log; None if the log cannot represent it exactly."""
    if isinstance(value, int) and not isinstance(value, bool):
        # Bounds of floats do not include NaN, so leave them out.
        return value
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else None
    if isinstance(value, datetime.datetime):
        # The log has milliseconds, so round the upper bound up.
        rest = value.microsecond % 1000
        rounded = value - datetime.timedelta(microseconds=rest)
        if is_upper and rest:
            if value.replace(tzinfo=None) > _LATEST_BOUND:
                return None
            rounded += datetime.timedelta(milliseconds=1)
        zone = "Z" if value.tzinfo is not None else ""
        return rounded.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
    if isinstance(value, datetime.date):
        return value.isoformat()
    return None
