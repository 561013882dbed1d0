"""A sink for Iceberg tables, without a JVM: the extra ``iceberg`` (the package ``pyiceberg``).

    <table>/data/<lineage>/<epoch>/<run>-<subtask>-<32 hex>.parquet    the files of an epoch; <lineage> is a hash

The tasks write the files, with the field ids of the table. The driver commits one snapshot that adds the files of all
subtasks. The summary of the snapshot names the lineage and the epoch. The same transaction sets the table property
``statebackend.epoch.<lineage>``, because snapshots expire.

Before a commit, the driver looks for the epoch in the history of the table. The commit then requires that the newest
snapshot of the table is the one that it has seen (Iceberg's ``assert-ref-snapshot-id``). So a driver that is no longer
the leader cannot add an epoch twice.

A SQL catalog changes a table by compare-and-swap: it sets the location of the new metadata, if the table still has the
location that was loaded. Metadata files never change. So a commit can start from the metadata that the last commit
returned, however old it is: the swap succeeds only if the table still has this metadata, in which the epoch was not
found. Otherwise the table is loaded, and the epoch is looked for again. This saves the reading of all snapshots.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import decimal
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
from attrs import evolve, frozen

from statebackend.connectors.sink_errors import check_names, check_parent, checked_columns, reported, retry_conflicts
from statebackend.connectors.staged_parquet import (
    EPOCH,
    LINEAGE,
    MOST_OPEN_EPOCHS,
    ROLLBACK,
    check_staged,
    committed_epochs,
    convert_rows,
    count_files_after,
    decode_committable,
    delete_staged,
    epoch_directory,
    history_entry,
    lineage_directory,
    secret_values,
    split_by_columns,
    stored_type,
    widened_type,
    write_parquet,
)
from statebackend.streaming.sink import Sink, SinkEpoch, SinkError, SinkLineage

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction

_VERSION: Final = 1
_ATTEMPTS: Final = 20
"""The number of attempts of a commit that conflicts with another writer."""

_REUSED_S: Final = 300.0
"""The number of seconds after which a table is loaded again. Catalogs give credentials that expire."""

_FILE_IO: Final = "pyiceberg.io.pyarrow.PyArrowFileIO"
_PARTITION: Final = re.compile(r"(?:(\w+)\((?:(\d+) *, *)?)?([^(),]*[^(), ])\)?")


@frozen
class _Layout:
    """What a task needs to write files of a table. It is sent with the sink."""

    uuid: str
    location: str
    schema: Any
    spec: Any
    properties: Mapping[str, str]
    io: Any

    @property
    def local_root(self) -> str | None:
        parsed = urlparse(self.location)
        return unquote(parsed.path) if parsed.scheme in ("", "file") else None

    def file_system(self) -> pyarrow.fs.FileSystem:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        if not isinstance(self.io, PyArrowFileIO):
            raise SinkError(
                f"the table is opened with {type(self.io).__name__}; set the property py-io-impl={_FILE_IO}"
            )
        scheme, netloc, path = PyArrowFileIO.parse_location(self.location, self.io.properties)
        return pyarrow.fs.SubTreeFileSystem(path, self.io.fs_by_scheme(scheme, netloc))


class IcebergSink(Sink):
    """Writes each epoch as one snapshot of an Iceberg table. Needs the extra ``iceberg``.

    The first task with rows creates the table, if it does not exist. Rows are partitioned as the table is. Other
    writers may append to it, compact it and expire its snapshots.
    A rollback of the job removes the files of later epochs from the table. It needs their snapshots, and fails if
    another writer has compacted these files.

    Args:
        table: The name of the table with its namespace, such as ``"weather.reports"``.
        catalog: The name of the catalog. Its properties are those of pyiceberg's configuration: the file
            ``.pyiceberg.yaml`` and the environment variables ``PYICEBERG_CATALOG__<NAME>__<PROPERTY>``.
        catalog_properties: More properties of the catalog, as for `pyiceberg.catalog.load_catalog`. They are sent to
            the tasks.
        partition_by: The partitions of a new table: columns and transforms, such as ``"day(at)"``,
            ``"bucket(16, word)"`` or ``"truncate(4, word)"``.
        evolve_schema: Add new columns of the rows to the table, and widen its types to theirs. If False, both are an
            error. Narrower types are always widened to the types of the table, and missing columns are null.
        table_properties: Properties of a new table, such as ``{"write.parquet.compression-codec": "snappy"}``.

    Raises:
        ImportError: The extra is not installed.

    Example:
        ``rows.sink_to(IcebergSink("shop.orders", "lake", partition_by=["day(at)"]), uid="orders")``
    """

    def __init__(
        self,
        table: str,
        catalog: str = "default",
        catalog_properties: Mapping[str, str] | None = None,
        *,
        partition_by: Sequence[str] = (),
        evolve_schema: bool = False,
        table_properties: Mapping[str, str] | None = None,
    ) -> None:
        _check_installed()
        if not all(table.split(".")) or "." not in table:
            raise ValueError(
                f"IcebergSink: {table!r} is not the name of a table with its namespace, such as 'shop.orders'"
            )
        self._name = table
        self._catalog_name = catalog
        self._catalog_properties = {"py-io-impl": _FILE_IO, **(catalog_properties or {})}
        self._partition_by = tuple(map(_parsed_partition, checked_columns(partition_by, "IcebergSink", "partition_by")))
        self._evolve_schema = evolve_schema
        self._table_properties = {"commit.manifest-merge.enabled": "true", **(table_properties or {})}
        self._catalog: Catalog | None = None
        self._table: Table | None = None
        self._outdated_at_s = 0.0
        self._layout: _Layout | None = None
        """The table when it was last read. It is sent to the tasks with the sink."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_catalog": None, "_table": None}

    def __repr__(self) -> str:
        return self.identity

    @property
    def identity(self) -> str:
        return f"IcebergSink({self._name!r}, {self._catalog_name!r})"

    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: pa.RecordBatchReader) -> bytes:
        # This method runs in the task.
        check_names(self.identity, rows.schema)
        stored = pa.schema([pa.field(one.name, _iceberg_type(one.type)) for one in rows.schema])
        with self._reported("the table cannot be prepared"):
            layout = self._prepared(stored)
        target = _arrow_schema(layout.schema)
        statistics = _statistics(layout)

        with self._reported(f"the rows of {epoch} cannot be written"):
            staged = write_parquet(
                layout.file_system(),
                epoch,
                subtask_index,
                (self._completed(batch, stored, target, layout) for batch in rows if batch.num_rows),
                split=None if layout.spec.is_unpartitioned() else lambda batch: _split(batch, layout),
                statistics=statistics,
                compression=layout.properties.get("write.parquet.compression-codec", "zstd").replace(
                    "uncompressed", "none"
                ),
                local_root=layout.local_root,
            )

        if not staged:
            return b""
        fields = {
            "version": _VERSION,
            "table": layout.uuid,
            "location": layout.location,
            "spec": layout.spec.spec_id,
            "files": [[one.path, one.size_bytes, one.partition, one.statistics] for one in staged],
        }
        return json.dumps(fields).encode()

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        staged = [decode_committable(one, epoch, _VERSION, "IcebergSink") for one in committables]

        def add() -> None:
            # Reading the metadata of many snapshots takes time. If they are outdated, the commit conflicts.
            table, self._table = self._table, None
            is_outdated = time.monotonic() > self._outdated_at_s
            if table is None or is_outdated or any(one["spec"] not in table.specs() for one in staged):
                table = self._loaded()
            if table is None:
                raise SinkError(
                    f"{self}: the table of {epoch} does not exist any longer. Restore it with the same UUID "
                    f"(register_table), or start from a savepoint with another sink"
                )
            if self._newest_epoch(table, epoch.lineage) >= epoch.epoch_id:
                return
            self._check_table(table, staged, epoch)
            with _transaction(table) as transaction:
                transaction.set_properties({_property(epoch.lineage): str(epoch.epoch_id)})
                for spec_id in sorted({one["spec"] for one in staged}):
                    # pyiceberg writes files of the default spec only. This changes the copy of the table.
                    table.metadata = table.metadata.model_copy(update={"default_spec_id": spec_id})
                    files = [_data_file(one, file) for one in staged if one["spec"] == spec_id for file in one["files"]]
                    with _append(transaction, history_entry(epoch.lineage, epoch.epoch_id, str(len(files)))) as append:
                        for file in files:
                            append.append_data_file(file)
            self._table, self._layout = table, _layout_of(table)

        self._retry(f"{epoch} cannot be committed", add)

    def abort(self, epoch: SinkEpoch) -> None:
        self._delete_staged(epoch.lineage, [epoch.epoch_id], f"{epoch.run_id}-")

    def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:
        last_id = -1 if last_epoch_id is None else last_epoch_id
        with self._reported("the table cannot be read"):
            table = self._loaded()
        if table is None:
            return
        newest = self._newest_epoch(table, lineage)
        if newest > last_id:
            raise SinkError(
                f"{self} has epoch {newest} of {lineage.name}, but the job has completed {last_epoch_id} only: its job "
                f"directory is older than the table. Roll the table back to an earlier snapshot and remove its "
                f"property {_property(lineage)!r}, or write to another table"
            )
        check_parent(
            str(self),
            lineage,
            lambda one: self._newest_epoch(table, one),
            "Roll the table back to an earlier snapshot and remove the table property of that job, take a later "
            "savepoint, or write to another table",
        )
        # Tags, branches and old snapshots have the files of an epoch that was rolled back.
        summaries = [one.summary.additional_properties for one in table.metadata.snapshots if one.summary is not None]
        committed = committed_epochs(summaries, lineage)
        later = range(last_id + 1, last_id + 1 + MOST_OPEN_EPOCHS)
        self._delete_staged(lineage, [one for one in later if one not in committed])

    def roll_back(self, lineage: SinkLineage, last_epoch_id: int) -> Sequence[str]:
        def remove() -> None:
            table = self._loaded()
            if table is None or self._newest_epoch(table, lineage) <= last_epoch_id:
                return
            files = self._files_after(table, lineage, last_epoch_id)
            with _transaction(table) as transaction:
                transaction.set_properties({_property(lineage): str(last_epoch_id)})
                update = transaction.update_snapshot(history_entry(lineage, last_epoch_id, ROLLBACK))
                with update.overwrite() as overwrite:
                    for file in files:
                        overwrite.delete_data_file(file)

        self._retry(f"the epochs after {last_epoch_id} cannot be removed", remove)
        place = f"{'' if self._layout is None else self._layout.location}/{lineage_directory(lineage)}"
        return [f"the files in {place} that the newest snapshot does not name any longer"]

    def _prepared(self, stored: pa.Schema) -> _Layout:
        """Return the table for rows of a schema. Creates it or adds columns, if necessary."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        if self._layout is not None and not _changes(stored, self._layout.schema):
            return self._layout
        for _ in range(_ATTEMPTS):
            table = self._loaded()
            if table is None:
                # The task of another subtask may be faster.
                with contextlib.suppress(CommitFailedException, TableAlreadyExistsError):
                    self._create(stored)
                continue
            changes = _changes(stored, table.schema())
            if not changes:
                return _layout_of(table)
            self._check_changes(changes, table)
            with contextlib.suppress(CommitFailedException), table.update_schema() as update:
                update.union_by_name(pa.schema(changes))
        raise SinkError(f"{self}: other writers change the schema of the table all the time. Start the job again")

    def _check_changes(self, changes: Sequence[pa.Field], table: Table) -> None:
        """Raise `SinkError` for columns that may not be added or widened."""
        known = _arrow_schema(table.schema())
        for one in changes:
            if one.name not in known.names:
                if self._evolve_schema:
                    continue
                raise SinkError(
                    f"{self}: the table has no column {one.name!r}: pass evolve_schema=True to add it, or drop it "
                    f"from the rows"
                )
            kind = known.field(one.name).type
            is_promoted = (kind, one.type) in _PROMOTIONS or (
                pa.types.is_decimal(kind) and widened_type(kind, one.type).equals(one.type)
            )
            if not self._evolve_schema or not is_promoted:
                raise SinkError(
                    f"{self}: column {one.name!r} is {kind} in the table and {one.type} in the rows: convert the rows, "
                    f"{'pass evolve_schema=True to widen it, ' if is_promoted else ''}or write to another table"
                )

    def _create(self, stored: pa.Schema) -> None:
        from pyiceberg.transforms import parse_transform

        catalog = self._open_catalog()
        namespace = self._name.rpartition(".")[0]
        try:
            catalog.create_namespace_if_not_exists(namespace)
        except Exception:
            # The task of another subtask may be faster, which a SQL catalog reports as an error of its database.
            if not catalog.namespace_exists(namespace):
                raise
        transaction = catalog.create_table_transaction(self._name, stored, properties=self._table_properties)
        with transaction:
            if self._partition_by:
                with transaction.update_spec() as update:
                    for column, transform in self._partition_by:
                        update.add_field(column, parse_transform(transform))

    def _completed(
        self, batch: pa.RecordBatch, stored: pa.Schema, target: pa.Schema, layout: _Layout
    ) -> pa.RecordBatch:
        """Convert rows to the columns of the table. Raises `SinkError` if a required column has no value."""
        columns = []
        for one, iceberg in zip(target, layout.schema.fields, strict=True):
            if one.name in stored.names:
                column = batch.column(one.name)
                if one.type == pa.uuid() and column.type != one.type:
                    column = pa.ExtensionArray.from_storage(one.type, column.cast(one.type.storage_type))
            elif getattr(iceberg, "write_default", None) is not None:
                column = pa.repeat(pa.scalar(iceberg.write_default, one.type), batch.num_rows)
            else:
                column = pa.nulls(batch.num_rows, one.type)
            if iceberg.required and column.null_count:
                raise SinkError(f"{self}: column {one.name!r} of the table is required, and a row has no value")
            columns.append(column)
        return convert_rows(pa.RecordBatch.from_arrays(columns, names=target.names), target)

    def _check_table(self, table: Table, staged: Sequence[Mapping[str, Any]], epoch: SinkEpoch) -> None:
        """Raise `SinkError` unless files that were staged can be added to the table."""
        for one in staged:
            if one["table"] != str(table.metadata.table_uuid):
                raise SinkError(
                    f"{self}: the table was replaced by another one (UUID {table.metadata.table_uuid}) after the rows "
                    f"of {epoch} were written to {one['location']}. Restore the table with the UUID {one['table']}, or "
                    f"start from a savepoint with another sink"
                )
        for location in {one["location"] for one in staged}:
            paths = [path for one in staged if one["location"] == location for path, *_ in one["files"]]
            files = evolve(_layout_of(table), location=location).file_system()
            check_staged(str(self), files, epoch, location, paths)

    def _newest_epoch(self, table: Table, lineage: SinkLineage) -> int:
        """Return the newest epoch of a lineage in the table; -1 without one."""
        for summary, _ in _history(table):
            if summary.get(LINEAGE) == lineage.name:
                return int(summary[EPOCH])
        # The snapshots have expired, or there are none.
        return int(table.properties.get(_property(lineage), -1))

    def _files_after(self, table: Table, lineage: SinkLineage, last_epoch_id: int) -> list[DataFile]:
        """Return the files of later epochs. Raises `SinkError` if any of them is not in the table."""
        written, is_complete = count_files_after(_history(table), lineage, last_epoch_id)
        snapshot = table.current_snapshot()
        prefix = f"{_layout_of(table).location}/{lineage_directory(lineage)}/"
        found = [
            entry.data_file
            for manifest in (() if snapshot is None else snapshot.manifests(table.io))
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            if entry.data_file.file_path.startswith(prefix)
            and int(entry.data_file.file_path.removeprefix(prefix).split("/")[0]) > last_epoch_id
        ]
        if not is_complete or len(found) != written:
            raise SinkError(
                f"{self} cannot remove the epochs after {last_epoch_id}: its snapshots added {written} files, and "
                f"{len(found)} of them are in the table. Another writer has compacted or removed them, or old "
                f"snapshots have expired. Roll the table back to an earlier snapshot, or start from a savepoint in a "
                f"new job directory"
            )
        return found

    def _loaded(self) -> Table | None:
        """Return the newest metadata of the table, or None if it does not exist."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = self._open_catalog().load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            self._layout = None
            return None
        self._layout = _layout_of(table)
        self._outdated_at_s = time.monotonic() + _REUSED_S
        return table

    def _open_catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        if self._catalog is None:
            self._catalog = load_catalog(self._catalog_name, **self._catalog_properties)
        return self._catalog

    def _retry(self, what: str, act: Callable[[], None]) -> None:
        from pyiceberg.exceptions import CommitFailedException

        with self._reported(what):
            retry_conflicts(act, CommitFailedException, _ATTEMPTS)

    def _reported(self, what: str) -> AbstractContextManager[None]:
        """Raise errors of pyiceberg and of the store as `SinkError` without secrets."""

        def secrets() -> list[str]:
            # A configuration file or the environment may have others.
            configured = {} if self._catalog is None else self._catalog.properties
            of_files = {} if self._layout is None else self._layout.io.properties
            return secret_values(self._catalog_properties, configured, of_files)

        return reported(f"{self}: {what}", "Check the catalog, the permissions and the properties", secrets)

    def _delete_staged(self, lineage: SinkLineage, epoch_ids: Sequence[int], prefix: str = "") -> None:
        with self._reported(f"staged files of {lineage.name} cannot be deleted"):
            if self._layout is not None or self._loaded() is not None:
                assert self._layout is not None
                for epoch_id in epoch_ids:
                    delete_staged(self._layout.file_system(), epoch_directory(lineage, epoch_id), prefix)


def _check_installed() -> None:
    try:
        import pyiceberg.catalog  # noqa: F401
    except ImportError as error:
        raise ImportError("IcebergSink needs pyiceberg: pip install 'statebackend[iceberg]'") from error


def _property(lineage: SinkLineage) -> str:
    return f"{EPOCH}.{lineage.name}"


class _SharedList(list[Any]):
    """A list of immutable elements. Its deep copy has the same elements."""

    def __add__(self, other: list[Any]) -> _SharedList:
        return _SharedList([*self, *other])

    def __deepcopy__(self, memo: object) -> _SharedList:
        return _SharedList(self)


def _start_from(table: Table) -> None:
    """Let the next commit start from the metadata of a table. The catalog would load, and copy, all snapshots."""
    from pyiceberg.catalog.sql import SqlCatalog

    # Other catalogs may load the table inside of a lock, and compare nothing.
    if type(table.catalog) is SqlCatalog:
        base = copy.copy(table)
        shared = {name: _SharedList(getattr(table.metadata, name)) for name in ("snapshots", "snapshot_log")}
        base.metadata = table.metadata.model_copy(update=shared)
        table.catalog = copy.copy(table.catalog)
        table.catalog.load_table = lambda identifier: base  # type: ignore[method-assign]


def _transaction(table: Table) -> Transaction:
    """Return a transaction that is tried once. If it fails, the table must be loaded again."""
    _start_from(table)
    newest = table.current_snapshot()
    # pyiceberg deletes the files that the log names and the new log does not.
    is_deleting = table.properties.get("write.metadata.delete-after-commit.enabled", "false").lower() == "true"
    table.metadata = table.metadata.model_copy(
        update={
            # pyiceberg would repeat a commit that conflicts, without looking for the epoch again.
            "properties": {**table.properties, "commit.retry.num-retries": "0"},
            # pyiceberg copies the metadata many times. It needs the newest snapshot only.
            "snapshots": [] if newest is None else [newest],
            "snapshot_log": [],
            "metadata_log": table.metadata.metadata_log if is_deleting else [],
        }
    )
    return table.transaction()


def _history(table: Table) -> Iterator[tuple[Mapping[str, str], bool]]:
    """Yield the summaries of the snapshots, newest first, and whether a snapshot is the first of the table."""
    # pyiceberg's ancestors_of searches the whole list for each snapshot.
    by_id = {one.snapshot_id: one for one in table.metadata.snapshots}
    one = table.current_snapshot()
    while one is not None:
        parent_id = one.parent_snapshot_id
        yield {} if one.summary is None else one.summary.additional_properties, parent_id is None
        one = None if parent_id is None else by_id.get(parent_id)


def _append(transaction: Transaction, summary: dict[str, str]) -> Any:
    update = transaction.update_snapshot(summary)
    is_merging = transaction.table_metadata.properties.get("commit.manifest-merge.enabled", "true").lower() == "true"
    return update.merge_append() if is_merging else update.fast_append()


def _layout_of(table: Table) -> _Layout:
    metadata = table.metadata
    location = metadata.properties.get("write.data.path", f"{metadata.location.rstrip('/')}/data").rstrip("/")
    properties = {name: one for name, one in metadata.properties.items() if name.startswith("write.")}
    return _Layout(str(metadata.table_uuid), location, table.schema(), table.spec(), properties, table.io)


def _parsed_partition(text: str) -> tuple[str, str]:
    found = _PARTITION.fullmatch(text.strip())
    if found is None or (found[1] is not None) != text.strip().endswith(")"):
        raise ValueError(
            f"IcebergSink: {text!r} is no partition: use a column, or a transform such as 'day(at)' or "
            f"'bucket(16, word)'"
        )
    name, width, column = found.groups()
    transform = "identity" if name is None else name if width is None else f"{name}[{width}]"
    return column.strip(), transform


_PROMOTIONS: Final = ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))
"""The types of columns that Iceberg can widen, in addition to decimals."""

_SMALL: Final = {pa.int8(): pa.int32(), pa.int16(): pa.int32(), pa.float16(): pa.float32(), pa.date64(): pa.date32()}
_PLAIN: Final = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
    pa.time64("ns"): pa.time64("us"),
}
_TYPES: Final[Mapping[pa.DataType, pa.DataType]] = {**_SMALL, **_PLAIN}


def _iceberg_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type with which Iceberg stores a column."""
    kinds = pa.types
    if kinds.is_dictionary(data_type):
        return _iceberg_type(data_type.value_type)
    if kinds.is_list(data_type) or kinds.is_large_list(data_type) or kinds.is_fixed_size_list(data_type):
        return pa.list_(_iceberg_type(data_type.value_type))
    if kinds.is_struct(data_type):
        return pa.struct([pa.field(one.name, _iceberg_type(one.type)) for one in data_type])
    if kinds.is_map(data_type):
        return pa.map_(_iceberg_type(data_type.key_type), _iceberg_type(data_type.item_type))
    stored = stored_type(data_type)
    return _TYPES.get(stored, stored)


def _arrow_schema(schema: Any) -> pa.Schema:
    """Return the Arrow schema of an Iceberg schema, with field ids."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.schema([_plain_field(one) for one in schema_to_pyarrow(schema)])


def _changes(stored: pa.Schema, schema: Any) -> list[pa.Field]:
    """Return the columns of rows that a table does not have, or that do not fit it."""
    table = _arrow_schema(schema)
    return [one for one in stored if one.name not in table.names or not _fits(one.type, table.field(one.name).type)]


def _fits(kind: pa.DataType, table_kind: pa.DataType) -> bool:
    # Rows of jobs have no UUIDs.
    is_uuid = kind.equals(pa.binary()) and table_kind.equals(pa.uuid())
    return is_uuid or bool(widened_type(kind, table_kind).equals(table_kind))


def _plain_field(field: pa.Field) -> pa.Field:
    """Replace types with large offsets: columns of rows have small ones, and Parquet makes no difference."""
    kind = field.type
    if pa.types.is_large_list(kind):
        kind = pa.list_(_plain_field(kind.value_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_plain_field(one) for one in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    return field.with_type(_PLAIN.get(kind, kind))


def _split(batch: pa.RecordBatch, layout: _Layout) -> list[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """Split rows by the partition spec of the table. The keys are values of Iceberg's partitions, as JSON has them."""
    from pyiceberg.partitioning import partition_record_value
    from pyiceberg.types import IntegerType

    keys, transforms = [], []
    for one in layout.spec.fields:
        source = layout.schema.find_field(one.source_id)
        column = _column(batch, layout.schema.find_column_name(one.source_id))
        if isinstance(column, pa.ExtensionArray):
            # A UUID. Arrow groups its bytes only.
            column = column.storage
        unit = str(one.transform)
        if pa.types.is_timestamp(column.type) and unit in ("year", "month", "day", "hour"):
            # There are fewer distinct values to transform.
            column = pc.floor_temporal(column, unit=unit)
        keys.append(column)
        transforms.append((one, one.transform.transform(source.field_type)))

    def partition_value(one: Any, value: Any) -> Any:
        # pyiceberg fails for a number of a transformed time.
        if not isinstance(value, int):
            return _encoded(partition_record_value(one, value, layout.schema))
        # A number near the smallest one of its type has no truncated value.
        smallest = -(1 << 31) if isinstance(layout.schema.find_type(one.source_id), IntegerType) else -(1 << 63)
        if value < smallest:
            raise SinkError(f"the partition {one.name!r} of a row would be {value}, which is too small for its type")
        return value

    return [
        (
            tuple(
                partition_value(one, transform(value))
                for (one, transform), value in zip(transforms, values, strict=True)
            ),
            part,
        )
        for values, part in split_by_columns(batch, keys)
    ]


def _column(batch: pa.RecordBatch, path: str) -> pa.Array:
    name = next(one for one in batch.schema.names if path == one or path.startswith(f"{one}."))
    column = batch.column(name)
    return column if path == name else pc.struct_field(column, path.removeprefix(f"{name}.").split("."))


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return "bytes", value.hex()
    if isinstance(value, decimal.Decimal):
        return "decimal", str(value)
    return value


def _decoded_value(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    kind, text = value
    return bytes.fromhex(text) if kind == "bytes" else decimal.Decimal(text)


_BOUNDS: Final = ("lower_bounds", "upper_bounds")


def _statistics(layout: _Layout) -> Callable[[Any], dict[str, Any]]:
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )

    plan = compute_statistics_plan(layout.schema, dict(layout.properties))
    ids = parquet_path_to_id_mapping(layout.schema)

    def computed(metadata: Any) -> dict[str, Any]:
        found = data_file_statistics_from_parquet_metadata(metadata, plan, ids).to_serialized_dict()
        for name in _BOUNDS:
            found[name] = {key: base64.b64encode(one).decode() for key, one in found[name].items()}
        return found

    return computed


def _data_file(staged: Mapping[str, Any], file: Sequence[Any]) -> DataFile:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    path, size_bytes, partition, statistics = file
    arguments: dict[str, Any] = {
        name: {int(key): base64.b64decode(one) if name in _BOUNDS else one for key, one in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in statistics.items()
    }
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{staged['location']}/{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*map(_decoded_value, partition)),
        file_size_in_bytes=size_bytes,
        sort_order_id=None,
        spec_id=staged["spec"],
        equality_ids=None,
        key_metadata=None,
        **arguments,
    )
