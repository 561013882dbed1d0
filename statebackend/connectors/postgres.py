"""A sink that writes each epoch, with its number, to PostgreSQL in one transaction.

The tasks encode their rows as CSV for ``COPY`` and stage them (`statebackend.connectors.staged_content`). They need
neither psycopg nor a connection. `PostgresSink.commit` runs on the driver, in one transaction:

1. It upserts the row of the lineage in the table of epochs. If the row has this epoch or a later one, the epoch is
   committed already, and nothing changes. Other drivers wait for the lock of this row until the transaction ends.
2. It runs ``COPY`` for each subtask, into the table, or into a temporary table that is merged by key. Tasks stage only
   the last row of each key.

    CREATE TABLE statebackend_epochs (
        lineage text PRIMARY KEY,       <job id>/<sink uid>
        epoch bigint NOT NULL,          the newest epoch
        run text NOT NULL,              the run that staged it
        committed_at timestamptz NOT NULL DEFAULT now())
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from typing_extensions import override

from snapshots.errors import format_value
from statebackend.connectors.sink_errors import check_names
from statebackend.connectors.staged_content import StagedContent, StagingArea, json_text
from statebackend.streaming.sink import Sink, SinkEpoch, SinkError, SinkLineage

if TYPE_CHECKING:
    import psycopg

__all__ = ["PostgresSink", "csv_rows"]

_CSV: Final = pa.csv.WriteOptions(include_header=False, quoting_style="all_valid")
"""Values are quoted and nulls are not, so that an empty string differs from null."""

_ROWS: Final = "statebackend_rows"
_POSITION: Final = "statebackend_position"
_BATCH_ROWS: Final = 1 << 16
_ATTEMPTS: Final = 5
"""The number of attempts of a transaction that conflicts with another one."""

_FIXES: Final[Mapping[str, str]] = {
    "28": "Correct the user or the password",
    "3D000": "Create the database, or correct its name",
    "42P01": "Create the table, or correct its name",
    "3F000": "Create the schema, or correct its name",
    "42703": "Add the column to the table, or remove the field from the rows of the sink",
    "42501": "GRANT the user INSERT and SELECT on both tables, UPDATE on the table of epochs, and for a sink with key "
    "also UPDATE and DELETE on the target and TEMPORARY on the database",
    "42P10": "A sink with key needs a unique index on these columns: CREATE UNIQUE INDEX ON <table> (<key>)",
    "55000": "Make the unique index of the key immediate: without DEFERRABLE",
    "428C9": "The server computes this column: remove the field from the rows of the sink",
    "42809": "Write to a table",
    "P0001": "Change the trigger of the table, or the rows",
    "42804": "Change the type of the column, or of the field",
    "21000": "Two keys of the epoch are equal in the table, such as texts that differ in case or in spaces at the end. "
    "Change the type or the collation of the column",
    "22": "Change the type of the column, or of the field",
    "23": "Change the constraint of the table, or the rows",
    "53100": "Free space on the disk of the server",
    "25006": "Connect to the primary server: this one is read-only",
}
"""How to fix an error, by SQLSTATE or its class."""

_ROW_SECURITY_FIX: Final = (
    "Row-level security applies to the user. A sink without key needs ALTER ROLE <user> BYPASSRLS. A sink with key "
    "needs it, or a policy with which the user can read and write all rows of the sink"
)
"""The fix of two errors, one with the code of a missing right, and one with the code of any missing feature."""

_CONNECTION_FIXES: Final[Mapping[str, str]] = {
    "password": "Correct the user or the password",
    "role": "Create the role, or correct the user",
    "database": "Create the database, or correct its name",
    "pg_hba": "Allow the user in pg_hba.conf",
}
"""How to fix a connection error without SQLSTATE, by a word in its message."""

_NOTHING_LOST: Final = "The rows are in the checkpoint: the next start of the job commits them"


class PostgresSink(Sink):
    """Writes rows to a PostgreSQL table, each epoch exactly once: by append, or by upsert with deletes.

    Rows with the same key must come from one subtask, as from a keyed operator. If an epoch has several rows with the
    same key, the last one is written. The secrets of ``conninfo`` stay on the driver.

    Args:
        conninfo: A connection string of libpq: ``host=db dbname=shop user=job`` or ``postgresql://job@db/shop``.
            The password may also come from ``password``, ``PGPASSWORD`` or ``~/.pgpass``.
        table: The name of the table, with or without its schema. It must exist and have a column for each field.
        key: The columns of a unique index. Without them, rows are appended.
        delete_field: A boolean field that is not a column. If it is true, the row with this key is deleted.
        password: A function that returns the password, called for each connection.
        epochs_table: The table of epochs, which the sink creates if it does not exist.
        staging: A directory or URI for rows that do not fit into the checkpoint (16 MiB per subtask and epoch).

    Example:
        >>> balances.sink_to(PostgresSink("dbname=bank", "balances", key=["account"]), uid="balances")  # doctest: +SKIP
    """

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        key: Sequence[str] = (),
        delete_field: str | None = None,
        password: Callable[[], str] | None = None,
        epochs_table: str = "statebackend_epochs",
        staging: str | None = None,
    ) -> None:
        if isinstance(key, str):
            raise TypeError(f"PostgresSink: key is a list of columns, such as [{key!r}]")
        if delete_field is not None and not key:
            raise ValueError("PostgresSink: delete_field needs key, the columns of a unique index")
        for name in (table, epochs_table):
            if not isinstance(name, str) or not all(name.split(".")):
                raise ValueError(f"PostgresSink: {name!r} is not the name of a table, such as 'shop.balances'")
        self._target, self._identity = _target_of(conninfo, table)
        self._conninfo: str | None = conninfo
        self._password = password
        self._table, self._epochs_table = table, epochs_table
        self._key, self._delete_field = tuple(key), delete_field
        self._staging = StagingArea(self._identity, staging)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without secrets, because the tasks do not connect."""
        return {**vars(self), "_conninfo": None, "_password": None}

    @override
    def __repr__(self) -> str:
        return self._identity

    @property
    @override
    def identity(self) -> str:
        return self._identity

    @override
    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: pa.RecordBatchReader) -> bytes:
        fields = [name for name in rows.schema.names if name != self._delete_field]
        self._check_fields(rows.schema)
        order = [*fields, *([] if self._delete_field is None else [self._delete_field])]
        content, count, deleted = io.BytesIO(), 0, 0
        for batch in self._latest(rows) if self._key else rows:
            if batch.num_rows:
                content.write(csv_rows(batch.select(order), self._identity))
                count += batch.num_rows
                deleted += (self._delete_field and pc.sum(batch[self._delete_field]).as_py()) or 0
        if not count:
            return b""
        header = {"columns": fields, "rows": count, "deleted": deleted}
        return self._staging.stage(epoch, subtask_index, header, content.getvalue())

    @override
    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        import psycopg

        for attempt in range(_ATTEMPTS):
            try:
                with self._reporting(f"cannot commit {epoch}", _NOTHING_LOST), self._connected() as connection:
                    self._commit(connection, epoch, committables)
                break
            except SinkError as error:
                cause = error.__cause__
                is_conflict = isinstance(cause, (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected))
                if not is_conflict or attempt == _ATTEMPTS - 1:
                    raise
        self._staging.discard(epoch)

    @override
    def abort(self, epoch: SinkEpoch) -> None:
        self._staging.discard(epoch)

    @override
    def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:
        with self._reporting("cannot recover"), self._connected() as connection:
            self._create_epochs_table(connection)
            committed = self._checked_epoch(connection, lineage.name, last_epoch_id)
            if lineage.parent is not None and committed is None:
                parent = SinkLineage(lineage.sink_uid, lineage.parent.job_id).name
                self._checked_epoch(connection, parent, lineage.parent.checkpoint_id)
            # Report a missing table or permission before the first epoch.
            connection.execute(_sql("SELECT FROM {} LIMIT 0", _name(self._table)))
        self._staging.recover(lineage, last_epoch_id, committed)

    def _check_fields(self, schema: pa.Schema) -> None:
        check_names(self._identity, schema)
        missing = [name for name in (*self._key, self._delete_field) if name is not None and name not in schema.names]
        if missing:
            raise SinkError(
                f"{self._identity}: the rows have no field {missing[0]!r}, only {', '.join(schema.names)}. Add it to "
                f"the rows, or correct key and delete_field"
            )
        for name in self._key:
            if pa.types.is_nested(schema.field(name).type):
                raise SinkError(
                    f"{self._identity}: field {name!r} is {schema.field(name).type}, which cannot be part of a key. "
                    f"Convert it to a text or a number"
                )
        if self._delete_field is not None and not pa.types.is_boolean(schema.field(self._delete_field).type):
            raise SinkError(
                f"{self._identity}: delete_field {self._delete_field!r} is {schema.field(self._delete_field).type}; it "
                f"must be a boolean"
            )

    def _latest(self, rows: pa.RecordBatchReader) -> list[pa.RecordBatch]:
        """Return the last row of each key, sorted by key, so that two writers rarely block each other."""
        table = rows.read_all()
        for name in self._key:
            if table[name].null_count:
                raise SinkError(f"{self._identity}: a row has a null in {name!r}, which is a column of its key")
        keys = [table[name] for name in self._key]
        keys = [one.cast(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in keys]
        positions = pa.table(keys, names=self._key).append_column(
            _POSITION, pa.array(range(table.num_rows), pa.int64())
        )
        latest = positions.group_by(self._key).aggregate([(_POSITION, "max")])
        ordered = latest.sort_by([(name, "ascending") for name in self._key])
        batches: list[pa.RecordBatch] = table.take(ordered[f"{_POSITION}_max"]).to_batches(_BATCH_ROWS)
        return batches

    def _commit(self, connection: psycopg.Connection[Any], epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        # With synchronous_commit = off, a crash of the server would lose an epoch that the job has completed.
        connection.execute("SET LOCAL synchronous_commit = on")
        if not self._has_claimed(connection, epoch):
            return
        staged = self._staging.read(epoch, committables)
        for one in staged:
            if self._key:
                self._merge(connection, one)
            else:
                self._check_stored(_copy(connection, self._table, one.fields["columns"], one), one.fields["rows"])

    def _has_claimed(self, connection: psycopg.Connection[Any], epoch: SinkEpoch) -> bool:
        """Store the epoch. Returns False if it is stored already; raises `SinkError` if another run committed it."""
        name = epoch.lineage.name
        claimed = connection.execute(
            _sql(
                "INSERT INTO {} AS known (lineage, epoch, run) VALUES (%s, %s, %s) ON CONFLICT (lineage) DO UPDATE "
                "SET epoch = EXCLUDED.epoch, run = EXCLUDED.run, committed_at = now() "
                "WHERE known.epoch < EXCLUDED.epoch RETURNING epoch",
                _name(self._epochs_table),
            ),
            (name, epoch.epoch_id, epoch.run_id),
        ).fetchone()
        if claimed is not None:
            return True
        [known, run] = self._newest_epoch(connection, name) or (epoch.epoch_id, epoch.run_id)
        if known == epoch.epoch_id and run != epoch.run_id:
            raise SinkError(
                f"{self._identity} has rows of {epoch} that run {run} of the job wrote, but the checkpoint is of run "
                f"{epoch.run_id}: the job directory was replaced by an older one. Delete these rows, and the row "
                f"{name!r} of {self._epochs_table}, or write to another table with another uid"
            )
        return False

    def _newest_epoch(self, connection: psycopg.Connection[Any], name: str) -> tuple[int, str] | None:
        found = connection.execute(
            _sql("SELECT epoch, run FROM {} WHERE lineage = %s", _name(self._epochs_table)), (name,)
        ).fetchone()
        return None if found is None else (found[0], found[1])

    def _checked_epoch(self, connection: psycopg.Connection[Any], name: str, last_epoch_id: int | None) -> int | None:
        """Return the newest epoch of a lineage. Raises `SinkError` if the job has not completed it."""
        known = self._newest_epoch(connection, name)
        if known is not None and (last_epoch_id is None or known[0] > last_epoch_id):
            start = "without a checkpoint" if last_epoch_id is None else f"after epoch {last_epoch_id}"
            raise SinkError(
                f"{self._identity} contains epochs up to {known[0]} of {name}, but the job starts {start}, and would "
                f"write their rows twice. Start from a later checkpoint or savepoint, or delete these rows and the row "
                f"{name!r} of {self._epochs_table}, or write to another table with another uid"
            )
        return None if known is None else known[0]

    def _create_epochs_table(self, connection: psycopg.Connection[Any]) -> None:
        # Query first: a user without the permission to create tables can use an existing table.
        table = ".".join(f'"{part}"' for part in self._epochs_table.split("."))
        if connection.execute("SELECT to_regclass(%s)", (table,)).fetchone() != (None,):
            return
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (table,))
        connection.execute(
            _sql(
                "CREATE TABLE IF NOT EXISTS {} (lineage text PRIMARY KEY, epoch bigint NOT NULL, run text NOT NULL, "
                "committed_at timestamptz NOT NULL DEFAULT now())",
                _name(self._epochs_table),
            )
        )

    def _merge(self, connection: psycopg.Connection[Any], staged: StagedContent) -> None:
        """Upsert the rows of a subtask. Their keys are distinct."""
        from psycopg import sql

        def named(names: Sequence[str], form: str = "{0}", separator: str = ", ") -> Any:
            return sql.SQL(separator).join(_sql(form, sql.Identifier(name)) for name in names)

        columns = staged.fields["columns"]
        flag = None if self._delete_field is None else sql.Identifier(self._delete_field)
        target, rows, selected = _name(self._table), sql.Identifier(_ROWS), named(columns)
        connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {}{} FROM {} WITH NO DATA").format(
                rows, selected, sql.SQL("" if flag is None else ", false AS {}").format(flag), target
            )
        )
        _copy(connection, _ROWS, [*columns, *([] if self._delete_field is None else [self._delete_field])], staged)
        same = named(self._key, "target.{0} = source.{0}", " AND ")

        def count_there(condition: Any) -> int:
            """How many of the rows that satisfy the condition are in the target, by their keys."""
            statement = sql.SQL(
                "SELECT count(*) FROM {} AS source WHERE {} AND EXISTS (SELECT FROM {} AS target WHERE {})"
            )
            [count] = connection.execute(statement.format(rows, condition, target, same)).fetchone() or (0,)
            return int(count)

        # The statement may read the whole target. Committables of earlier versions have no count.
        if flag is not None and staged.fields.get("deleted") != 0:
            statement = sql.SQL("DELETE FROM {} AS target USING {} AS source WHERE source.{} AND {}")
            connection.execute(statement.format(target, rows, flag, same))
            kept = count_there(sql.SQL("source.{}").format(flag))
            if kept:
                raise SinkError(
                    f"{self._identity} did not delete {kept} rows: a trigger or a rule of the table kept them. Remove "
                    f"it, and start again. {_NOTHING_LOST}"
                )
        others = [name for name in columns if name not in self._key]
        update = sql.SQL("UPDATE SET {}").format(named(others, "{0} = EXCLUDED.{0}")) if others else sql.SQL("NOTHING")
        is_live = sql.SQL("true" if flag is None else "source.{} IS NOT TRUE").format(flag)
        upserted = connection.execute(
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} AS source WHERE {} ON CONFLICT ({}) DO {}").format(
                target, selected, selected, rows, is_live, named(self._key), update
            )
        )
        if "deleted" in staged.fields:
            stored = upserted.rowcount
            if not others:
                # The statement does not count the rows that were there.
                stored = count_there(is_live)
            self._check_stored(stored, staged.fields["rows"] - staged.fields["deleted"])
        connection.execute(sql.SQL("DROP TABLE {}").format(rows))

    def _check_stored(self, stored: int, expected: int) -> None:
        if stored != expected:
            raise SinkError(
                f"{self._identity} stored {stored} of {expected} rows: a trigger or a rule of the table dropped the "
                f"others. Remove it, and start again. {_NOTHING_LOST}"
            )

    @contextlib.contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        import psycopg

        if self._conninfo is None:
            raise SinkError(f"{self._identity} cannot connect: a copy of a sink in a task has no credentials")
        password: dict[str, Any] = {} if self._password is None else {"password": self._password()}
        with psycopg.connect(self._conninfo, **password) as connection:
            yield connection

    @contextlib.contextmanager
    def _reporting(self, what: str, advice: str = "") -> Iterator[None]:
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            message = " ".join(str(error).split())
            parts = [_fix_of(error, bool(self._key)), advice]
            raise SinkError(f"{self._identity} {what}: {message}. {'. '.join(filter(None, parts))}") from error


def csv_rows(batch: pa.RecordBatch, target: str) -> bytes:
    """Encode rows as the CSV of ``COPY``: bytes in hex, durations as intervals, nested values as JSON.

    Raises `SinkError` for a value that PostgreSQL cannot store.
    """
    columns = [_csv_column(batch.column(index), name, target) for index, name in enumerate(batch.schema.names)]
    encoded = io.BytesIO()
    pa.csv.write_csv(pa.RecordBatch.from_arrays(columns, batch.schema.names), encoded, _CSV)
    data = encoded.getvalue()
    if b"\0" in data:
        for name, column in zip(batch.schema.names, columns, strict=True):
            if pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "\0")).as_py():
                raise SinkError(
                    f"{target}, field {name!r}: a text contains the character U+0000, which PostgreSQL cannot store. "
                    f"Remove it, or use bytes and a bytea column"
                )
    return data


def _csv_column(column: pa.Array, name: str, target: str) -> pa.Array:
    types = pa.types
    kind = column.type
    if types.is_dictionary(kind):
        return _csv_column(column.dictionary_decode(), name, target)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return column.cast(pa.string())
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.array([None if one is None else "\\x" + one.hex() for one in column.to_pylist()], pa.string())
    if types.is_duration(kind):
        micros = column.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(micros, "microseconds", " ")
    if types.is_nested(kind):
        try:
            return pa.array(
                [None if one is None else json_text(one) for one in column.to_pylist(maps_as_pydicts="strict")],
                pa.string(),
            )
        except (TypeError, ValueError) as error:
            raise SinkError(f"{target}, field {name!r}: {error}. Convert the field to a text or a number") from error
    return column


def _copy(connection: psycopg.Connection[Any], table: str, columns: Sequence[str], staged: StagedContent) -> int:
    from psycopg import sql

    statement = _sql(
        "COPY {} ({}) FROM STDIN (FORMAT csv)", _name(table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            copy.write(staged.content)
        return cursor.rowcount


def _name(table: str) -> Any:
    from psycopg import sql

    return sql.Identifier(*table.split("."))


def _sql(statement: str, *parts: Any) -> Any:
    from psycopg import sql

    return sql.SQL(statement).format(*parts)


def _target_of(conninfo: str, table: str) -> tuple[str, str]:
    """Return server and database, and the identity, without secrets. Raises `ValueError` that omits ``conninfo``."""
    try:
        import psycopg.conninfo
    except ImportError as error:
        raise ImportError("PostgresSink needs psycopg: pip install 'statebackend[postgres]'") from error
    try:
        parts = psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.Error:
        raise ValueError(
            "PostgresSink: conninfo is not valid. Pass 'host=db dbname=shop user=job' or 'postgresql://job@db/shop'"
        ) from None
    scheme, _, uri = conninfo.partition("://")
    path = uri.partition("/")[2].partition("?")[0]
    if scheme in ("postgresql", "postgres") and ("@" in path or "@" in str(parts.get("host"))):
        # libpq takes a part of the password for the host or the database, which errors show.
        raise ValueError(
            "PostgresSink: the user or the password of conninfo has a character that ends it in a URI, such as / or @. "
            "Escape it with urllib.parse.quote(password, safe='')"
        )
    host = parts.get("host") or parts.get("hostaddr") or parts.get("service") or "localhost"
    database = parts.get("dbname") or parts.get("user") or ""
    target = f"{host}:{parts.get('port') or 5432}/{database}"
    return target, f"PostgresSink({target!r}, {format_value(table, 200)})"


def _fix_of(error: psycopg.Error, has_key: bool) -> str:
    state = error.sqlstate
    if state == "42P10" and not has_key:
        # COPY reports a generated column with the code of a missing index.
        state = "428C9"
    if state is None:
        for word, fix in _CONNECTION_FIXES.items():
            if word in str(error):
                return fix
        return "Start the server, or correct its host and port"
    if "row-level security" in str(error):
        return _ROW_SECURITY_FIX
    return _FIXES.get(state) or _FIXES.get(state[:2]) or ""
