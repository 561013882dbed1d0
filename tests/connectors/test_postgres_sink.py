"""`PostgresSink` against a real server: each epoch once, by append and by key, and errors that name target and fix."""

from __future__ import annotations

import contextlib
import datetime
import pickle
import random
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import psycopg
import pyarrow as pa
import pytest

from statebackend import KeyedProcessFunction, ValueStateDescriptor
from statebackend.checkpoint.metadata import SavepointIdentity
from statebackend.connectors.postgres import PostgresSink, csv_rows
from statebackend.connectors.staged_content import StagingArea
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.errors import UserFunctionError
from statebackend.streaming.sink import SinkEpoch, SinkError, SinkLineage

if TYPE_CHECKING:
    from postgres_server import PostgresServer

LINEAGE = SinkLineage("balances", "job-1")
SCHEMA = pa.schema([("account", pa.string()), ("balance", pa.int64())])


def epoch_of(epoch_id: int, run_id: str = "run-1", lineage: SinkLineage = LINEAGE) -> SinkEpoch:
    return SinkEpoch(lineage, epoch_id, run_id)


def staged(sink: PostgresSink, epoch: SinkEpoch, subtasks: Sequence[Sequence[Any]], schema: pa.Schema = SCHEMA) -> Any:
    """Stage as subtasks do, each with its own copy of the sink."""
    committables = []
    for index, rows in enumerate(subtasks):
        arrays = [pa.array([row[place] for row in rows], one.type) for place, one in enumerate(schema)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        task = pickle.loads(pickle.dumps(sink))
        committables.append(task.stage(epoch, index, pa.RecordBatchReader.from_batches(schema, [batch])))
    return [one for one in committables if one]


class Database:
    """A database for one test."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = server.new_database()
        self.conninfo = server.conninfo(self.name)
        self.execute("CREATE TABLE balances (account text PRIMARY KEY, balance bigint)")
        self.execute("CREATE TABLE payments (account text, balance bigint)")

    def execute(self, statement: str) -> None:
        with self.server.connect(self.name) as connection:
            connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.server.connect(self.name) as connection:
            return connection.execute(query.encode()).fetchall()

    def write(self, sink: PostgresSink, epoch_id: int, *subtasks: Sequence[Any], run_id: str = "run-1") -> None:
        epoch = epoch_of(epoch_id, run_id)
        sink.commit(epoch, staged(sink, epoch, subtasks))


@pytest.fixture
def database(postgres_server: PostgresServer) -> Database:
    return Database(postgres_server)


@pytest.fixture
def append(database: Database) -> PostgresSink:
    sink = PostgresSink(database.conninfo, "payments")
    sink.recover(LINEAGE, None)
    return sink


@pytest.fixture
def upsert(database: Database) -> PostgresSink:
    sink = PostgresSink(database.conninfo, "public.balances", key=["account"])
    sink.recover(LINEAGE, None)
    return sink


def test_it_appends_the_rows_of_all_subtasks(database: Database, append: PostgresSink) -> None:
    database.write(append, 1, [("a", 1), ("", None)], [], [(None, 3)])
    database.write(append, 2, [("a", 1)])

    assert sorted(database.rows("SELECT * FROM payments"), key=repr) == [("", None), ("a", 1), ("a", 1), (None, 3)]


def test_a_repeated_commit_changes_nothing(database: Database, append: PostgresSink) -> None:
    epoch = epoch_of(1)
    committables = staged(append, epoch, [[("a", 1)]])
    for _ in range(3):
        append.commit(epoch, committables)

    assert database.rows("SELECT * FROM payments") == [("a", 1)]


def test_an_older_epoch_changes_nothing(database: Database, append: PostgresSink) -> None:
    """A driver that lost the leadership commits after its successor has continued."""
    first = staged(append, epoch_of(1), [[("a", 1)]])
    append.commit(epoch_of(1), first)
    database.write(append, 2, [("b", 2)])
    append.commit(epoch_of(1), first)

    assert database.rows("SELECT * FROM payments") == [("a", 1), ("b", 2)]


def test_two_drivers_that_commit_at_once_write_the_epoch_once(database: Database, append: PostgresSink) -> None:
    epoch, count = epoch_of(1), 6
    committables = staged(append, epoch, [[("a", one) for one in range(2000)]])
    sinks = [PostgresSink(database.conninfo, "payments") for _ in range(count)]
    threads = [threading.Thread(target=one.commit, args=(epoch, committables)) for one in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert database.rows("SELECT count(*), count(DISTINCT balance) FROM payments") == [(2000, 2000)]


def test_a_transaction_that_fails_leaves_nothing(database: Database, append: PostgresSink) -> None:
    database.execute("ALTER TABLE payments ADD CHECK (balance < 100)")
    epoch = epoch_of(1)
    committables = staged(append, epoch, [[("a", 1)], [("b", 100)]])
    with pytest.raises(SinkError, match=r"cannot commit epoch 1 .*violates check constraint.*The rows are in the chec"):
        append.commit(epoch, committables)
    assert database.rows("SELECT * FROM payments") == []

    database.execute("ALTER TABLE payments DROP CONSTRAINT payments_balance_check")
    append.commit(epoch, committables)
    assert database.rows("SELECT * FROM payments") == [("a", 1), ("b", 100)]


def test_an_answer_that_is_lost_after_the_commit_doubles_nothing(
    database: Database, append: PostgresSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_then_break(connection: psycopg.Connection[Any]) -> None:
        commit(connection)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    epoch, commit = epoch_of(1), psycopg.Connection.commit
    committables = staged(append, epoch, [[("a", 1)]])
    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "commit", commit_then_break)
        with pytest.raises(SinkError, match="server closed the connection"):
            append.commit(epoch, committables)
    append.commit(epoch, committables)

    assert database.rows("SELECT * FROM payments") == [("a", 1)]


def test_a_session_that_the_server_ends_leaves_nothing(database: Database, append: PostgresSink) -> None:
    database.execute(
        "CREATE FUNCTION quit() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END$$"
    )
    database.execute("CREATE TRIGGER quit AFTER INSERT ON payments FOR EACH ROW EXECUTE FUNCTION quit()")
    epoch = epoch_of(1)
    committables = staged(append, epoch, [[("a", 1)]])
    with pytest.raises(SinkError, match="cannot commit epoch 1"):
        append.commit(epoch, committables)
    assert database.rows("SELECT * FROM statebackend_epochs") == []

    database.execute("DROP TRIGGER quit ON payments")
    append.commit(epoch, committables)
    assert database.rows("SELECT * FROM payments") == [("a", 1)]


def test_the_last_row_of_a_key_counts(database: Database, upsert: PostgresSink) -> None:
    database.write(upsert, 1, [("a", 1), ("b", 2), ("a", 3)], [("c", 4)])
    assert sorted(database.rows("SELECT * FROM balances")) == [("a", 3), ("b", 2), ("c", 4)]

    database.write(upsert, 2, [("a", 5)], [("d", None)])
    assert sorted(database.rows("SELECT * FROM balances")) == [("a", 5), ("b", 2), ("c", 4), ("d", None)]


def test_rows_with_a_true_delete_field_delete_their_key(database: Database) -> None:
    schema = pa.schema([*SCHEMA, ("is_closed", pa.bool_())])
    sink = PostgresSink(database.conninfo, "balances", key=["account"], delete_field="is_closed")
    sink.recover(LINEAGE, None)
    for epoch_id, rows in enumerate(
        [
            [("a", 1, False), ("b", 2, None), ("c", 3, False), ("d", 1, False), ("d", None, True)],
            [("a", None, True), ("b", None, True), ("b", 9, False), ("unknown", None, True)],
        ]
    ):
        epoch = epoch_of(epoch_id)
        sink.commit(epoch, staged(sink, epoch, [rows], schema))

    assert sorted(database.rows("SELECT * FROM balances")) == [("b", 9), ("c", 3)]


TRIGGER = """
    CREATE FUNCTION drop_row() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$;
    CREATE TRIGGER dropping BEFORE {} ON {} FOR EACH ROW EXECUTE FUNCTION drop_row()
"""
RULE = "CREATE RULE dropping AS ON INSERT TO {} DO INSTEAD NOTHING"


@pytest.mark.parametrize(
    ("dropping", "undo", "options", "stored"),
    [
        (TRIGGER.format("INSERT", "balances"), "DROP TRIGGER dropping ON balances", {}, "0 of 2"),
        (TRIGGER.format("INSERT", "balances"), "DROP TRIGGER dropping ON balances", {"key": ["account"]}, "0 of 2"),
        (TRIGGER.format("UPDATE", "balances"), "DROP TRIGGER dropping ON balances", {"key": ["account"]}, "1 of 2"),
        (RULE.format("balances"), "DROP RULE dropping ON balances", {"key": ["account"]}, "0 of 2"),
    ],
)
def test_rows_that_a_trigger_or_a_rule_drops_fail_the_epoch(
    database: Database, dropping: str, undo: str, options: dict[str, Any], stored: str
) -> None:
    sink = PostgresSink(database.conninfo, "balances", **options)
    sink.recover(LINEAGE, None)
    if options:
        database.execute("INSERT INTO balances VALUES ('b', 7)")
    database.execute(dropping)
    with pytest.raises(SinkError, match=rf"{stored} rows: a trigger or a rule .* Remove it") as raised:
        database.write(sink, 1, [("a", 1), ("b", 2)])
    assert sink.identity in str(raised.value)
    assert database.rows("SELECT * FROM statebackend_epochs") == []
    database.execute(undo)
    database.write(sink, 1, [("a", 1), ("b", 2)])
    assert sorted(database.rows("SELECT * FROM balances")) == [("a", 1), ("b", 2)]


def test_names_of_tables_may_need_quotes(database: Database) -> None:
    database.execute("""CREATE TABLE "Odd ""name" (account text, balance bigint)""")
    sink = PostgresSink(database.conninfo, 'Odd "name', epochs_table='public.Epochs of "jobs"')
    for _ in range(2):
        sink.recover(LINEAGE, None)
    database.write(sink, 1, [("a", 1)])
    assert database.rows("""SELECT * FROM "Odd ""name" """) == [("a", 1)]


def test_a_rule_that_copy_does_not_apply_is_an_error_of_the_start_and_of_the_commit(database: Database) -> None:
    sink = PostgresSink(database.conninfo, "payments")
    sink.recover(LINEAGE, None)
    database.execute(RULE.format("payments"))
    with pytest.raises(SinkError, match=r"COPY does not apply the rule 'dropping' .*trigger instead\. The rows are in"):
        database.write(sink, 1, [("a", 1)])
    with pytest.raises(SinkError, match=r"COPY does not apply the rule 'dropping' .*trigger instead$") as raised:
        sink.recover(LINEAGE, None)
    assert sink.identity in str(raised.value)
    assert database.rows("SELECT * FROM statebackend_epochs") == []
    database.execute("ALTER TABLE payments DISABLE RULE dropping")
    sink.recover(LINEAGE, None)
    database.write(sink, 1, [("a", 1)])
    assert database.rows("SELECT * FROM payments") == [("a", 1)]


def test_rules_that_an_upsert_cannot_apply_are_an_error_with_a_fix(database: Database, upsert: PostgresSink) -> None:
    database.execute("CREATE RULE logging AS ON INSERT TO balances DO ALSO INSERT INTO payments VALUES ('x', 1)")
    with pytest.raises(SinkError, match=r"has INSERT or UPDATE rules.*Drop the rules of the table"):
        database.write(upsert, 1, [("a", 1)])
    database.execute("DROP RULE logging ON balances")
    database.write(upsert, 1, [("a", 1)])
    assert database.rows("SELECT * FROM balances") == [("a", 1)]
    assert database.rows("SELECT * FROM payments") == []


@pytest.mark.parametrize("key", [[], ["account"]])
def test_an_identity_that_is_always_generated_is_not_overwritten(database: Database, key: list[str]) -> None:
    database.execute("CREATE TABLE numbered (account text PRIMARY KEY, balance bigint GENERATED ALWAYS AS IDENTITY)")
    sink = PostgresSink(database.conninfo, "numbered", key=key)
    sink.recover(LINEAGE, None)
    with pytest.raises(SinkError, match=r"GENERATED ALWAYS.*SET GENERATED BY DEFAULT.*remove the field.*The rows are"):
        database.write(sink, 1, [("a", 7)])
    assert database.rows("SELECT * FROM numbered") == []
    # A sink without this field lets the server number the rows.
    other, epoch = SinkLineage("accounts", "job-1"), epoch_of(1, lineage=SinkLineage("accounts", "job-1"))
    sink.recover(other, None)
    sink.commit(epoch, staged(sink, epoch, [[("b",)]], pa.schema([("account", pa.string())])))
    database.execute("ALTER TABLE numbered ALTER COLUMN balance SET GENERATED BY DEFAULT")
    database.write(sink, 1, [("a", 7)])
    assert sorted(database.rows("SELECT * FROM numbered")) == [("a", 7), ("b", 1)]


@pytest.mark.parametrize(
    ("keeping", "undo"),
    [
        (TRIGGER.format("DELETE", "balances"), "DROP TRIGGER dropping ON balances"),
        (RULE.replace("INSERT", "DELETE").format("balances"), "DROP RULE dropping ON balances"),
    ],
)
def test_rows_that_a_trigger_or_a_rule_keeps_fail_the_epoch(database: Database, keeping: str, undo: str) -> None:
    schema = pa.schema([*SCHEMA, ("is_closed", pa.bool_())])
    sink = PostgresSink(database.conninfo, "balances", key=["account"], delete_field="is_closed")
    sink.recover(LINEAGE, None)
    database.execute("INSERT INTO balances VALUES ('b', 7)")
    database.execute(keeping)
    epoch = epoch_of(1)
    committables = staged(sink, epoch, [[("a", 1, False), ("b", None, True), ("absent", None, True)]], schema)
    with pytest.raises(SinkError, match=r"did not delete 1 rows: a trigger or a rule .* Remove it") as raised:
        sink.commit(epoch, committables)
    assert sink.identity in str(raised.value)
    assert database.rows("SELECT * FROM balances") == [("b", 7)]
    database.execute(undo)
    sink.commit(epoch, committables)
    assert database.rows("SELECT * FROM balances") == [("a", 1)]


@pytest.mark.parametrize("delete_field", [None, "closed"])
def test_an_upsert_of_keys_only_counts_the_rows_that_are_there(database: Database, delete_field: str | None) -> None:
    database.execute("CREATE TABLE accounts (account text PRIMARY KEY)")
    database.execute("INSERT INTO accounts VALUES ('b'), ('c')")
    schema = pa.schema([("account", pa.string()), *([] if delete_field is None else [(delete_field, pa.bool_())])])
    rows = [("a", False), ("b", None), ("c", True)]
    if delete_field is None:
        rows = [one[:1] for one in rows]
    sink = PostgresSink(database.conninfo, "accounts", key=["account"], delete_field=delete_field)
    sink.recover(LINEAGE, None)
    sink.commit(epoch_of(1), staged(sink, epoch_of(1), [rows], schema))
    kept = [("a",), ("b",)] if delete_field else [("a",), ("b",), ("c",)]
    assert sorted(database.rows("SELECT * FROM accounts")) == kept
    database.execute(TRIGGER.format("INSERT", "accounts"))
    epoch = epoch_of(2)
    with pytest.raises(SinkError, match="1 of 2 rows: a trigger or a rule"):
        sink.commit(epoch, staged(sink, epoch, [[(key, False)[: len(schema)] for key in "ad"]], schema))
    assert sorted(database.rows("SELECT * FROM accounts")) == kept


def test_keys_that_are_equal_for_the_table_only_are_an_error_with_a_fix(
    database: Database, upsert: PostgresSink
) -> None:
    database.execute("ALTER TABLE balances ALTER COLUMN account TYPE char(5)")
    epoch = epoch_of(1)
    committables = staged(upsert, epoch, [[("a", 1), ("a ", 2)]])
    with pytest.raises(SinkError, match=r"Two keys of the epoch are equal in the table.*Change the type"):
        upsert.commit(epoch, committables)
    database.execute("ALTER TABLE balances ALTER COLUMN account TYPE text")
    upsert.commit(epoch, committables)
    assert sorted(database.rows("SELECT * FROM balances")) == [("a", 1), ("a ", 2)]


def test_an_epoch_without_deletes_runs_no_delete(database: Database) -> None:
    """The statement may scan the whole target."""
    schema = pa.schema([*SCHEMA, ("is_closed", pa.bool_())])
    database.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'it deletes'; END$$"
    )
    database.execute("CREATE TRIGGER fail BEFORE DELETE ON balances FOR EACH STATEMENT EXECUTE FUNCTION fail()")
    sink = PostgresSink(database.conninfo, "balances", key=["account"], delete_field="is_closed")
    sink.recover(LINEAGE, None)
    sink.commit(epoch_of(1), staged(sink, epoch_of(1), [[("a", 1, False), ("b", 2, None)]], schema))
    assert sorted(database.rows("SELECT * FROM balances")) == [("a", 1), ("b", 2)]
    with pytest.raises(SinkError, match="it deletes"):
        sink.commit(epoch_of(2), staged(sink, epoch_of(2), [[("a", 1, False)], [("b", None, True)]], schema))


def test_subtasks_with_other_columns_are_merged_in_one_epoch(database: Database, upsert: PostgresSink) -> None:
    """A job whose rows have one more field than the staged ones."""
    epoch = epoch_of(1)
    accounts = pa.schema([("account", pa.string())])
    committables = [*staged(upsert, epoch, [[("a", 1)]]), *staged(upsert, epoch, [[("b",), ("a",)]], accounts)]
    upsert.commit(epoch, committables)

    assert sorted(database.rows("SELECT * FROM balances")) == [("a", 1), ("b", None)]


VALUES: dict[str, tuple[pa.Array, str]] = {
    "text": (pa.array(["", None, 'a "b", c\nd\r\n\\.\n\\N', "\\.", "é€😀", "NULL", " "]), "text"),
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), "text"),
    "long_text": (pa.array(["a", None], pa.large_string()), "text"),
    "number": (pa.array([-(1 << 63), (1 << 63) - 1, None, 0]), "bigint"),
    "small": (pa.array([-128, 127], pa.int8()), "smallint"),
    "unsigned": (pa.array([(1 << 64) - 1], pa.uint64()), "numeric"),
    "double": (pa.array([float("inf"), float("-inf"), 1e-300, 0.1, None]), "double precision"),
    "flag": (pa.array([True, False, None]), "boolean"),
    "amount": (pa.array([Decimal("-1.10"), None, Decimal("99999999.99")], pa.decimal128(10, 2)), "numeric(10, 2)"),
    "blob": (pa.array([b"\x00\xff\\", b"", None]), "bytea"),
    "day": (pa.array([datetime.date(1600, 1, 1), datetime.date(9999, 12, 31), None]), "date"),
    "clock": (pa.array([datetime.time(23, 59, 59, 999999), None]), "time"),
    "local": (pa.array([datetime.datetime(1960, 1, 1, 0, 0, 0, 1), None]), "timestamp"),
    "instant": (
        pa.array([datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.timezone.utc), None], pa.timestamp("us", "UTC")),
        "timestamptz",
    ),
    "span": (pa.array([datetime.timedelta(days=1, microseconds=3), None]), "interval"),
    "list": (pa.array([[1, None], [], None]), "jsonb"),
    "struct": (pa.array([{"a": "x", "b": [True]}, None]), "jsonb"),
    "map": (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), "jsonb"),
    "none": (pa.nulls(2), "text"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_round_trip(database: Database, name: str) -> None:
    values, column = VALUES[name]
    database.execute(f"CREATE TABLE vals (position bigint, v {column})")
    schema = pa.schema([("v", values.type), ("position", pa.int64())])
    batch = pa.RecordBatch.from_arrays([values, pa.array(range(len(values)))], schema=schema)
    sink, epoch = PostgresSink(database.conninfo, "vals"), epoch_of(1)
    sink.recover(LINEAGE, None)
    sink.commit(epoch, [sink.stage(epoch, 0, pa.RecordBatchReader.from_batches(schema, [batch]))])

    expected = values.to_pylist(maps_as_pydicts="strict")
    assert [row[0] for row in database.rows("SELECT v FROM vals ORDER BY position")] == expected


def test_a_column_of_nulls_round_trips(database: Database, append: PostgresSink) -> None:
    """The CSV has empty lines."""
    epoch = epoch_of(1)
    append.commit(epoch, staged(append, epoch, [[(None,), ("",), (None,)]], pa.schema([("account", pa.string())])))

    assert database.rows("SELECT account FROM payments ORDER BY ctid") == [(None,), ("",), (None,)]


def test_keys_may_be_dictionaries_and_not_lists() -> None:
    sink, epoch = PostgresSink("dbname=bank", "balances", key=["account"]), epoch_of(1)
    accounts = pa.array(["b", "a", "b"]).dictionary_encode()
    committable = sink.stage(epoch, 0, pa.table({"account": accounts, "balance": [1, 2, 3]}).to_reader())
    [content] = StagingArea("", None).read(epoch, [committable])
    assert content.content == b'"a","2"\n"b","3"\n'
    with pytest.raises(SinkError, match=r"field 'account' is list<item: int64>, which cannot be part of a key"):
        sink.stage(epoch, 0, pa.table({"account": [[1]], "balance": [1]}).to_reader())
    with pytest.raises(SinkError, match=r"the rows have two columns 'account'\. Rename one of them"):
        sink.stage(epoch, 0, pa.table([["a"], ["b"]], names=["account", "account"]).to_reader())


def test_a_start_without_a_checkpoint_removes_all_staged_files(tmp_path: Path) -> None:
    area = StagingArea("target", tmp_path)
    for epoch_id in (0, 1):
        area.stage(epoch_of(epoch_id), 0, {}, random.Random(epoch_id).randbytes(100_000))

    def staged_epochs() -> set[int]:
        return {int(one.parent.name.partition("-")[0]) for one in tmp_path.rglob("*") if one.is_file()}

    area.recover(LINEAGE, 1, None)
    assert staged_epochs() == {0, 1}
    area.recover(LINEAGE, 0, None)
    assert staged_epochs() == {0}
    area.recover(LINEAGE, None, None)
    assert staged_epochs() == set()


def test_a_commit_that_conflicts_every_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = PostgresSink("dbname=bank", "balances", key=["account"])
    monkeypatch.setattr(sink, "_connected", contextlib.nullcontext)
    attempts: list[SinkEpoch] = []

    def conflicting(connection: Any, epoch: SinkEpoch, committables: Any) -> None:
        attempts.append(epoch)
        raise psycopg.errors.SerializationFailure("could not serialize access")

    monkeypatch.setattr(sink, "_commit", conflicting)
    with pytest.raises(SinkError, match="could not serialize access"):
        sink.commit(epoch_of(1), [])
    assert len(attempts) > 1


def test_a_parent_counts_only_until_the_first_epoch_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = PostgresSink("dbname=bank", "balances", key=["account"])
    known = {"parent/balances": (9, "run"), "child/balances": (3, "run")}
    monkeypatch.setattr(sink, "_connected", lambda: contextlib.nullcontext(mock.Mock()))
    monkeypatch.setattr(sink, "_create_epochs_table", lambda connection: None)
    monkeypatch.setattr(sink, "_newest_epoch", lambda connection, name: known.get(name))
    child = SinkLineage("balances", "child", SavepointIdentity("parent", 2, 1))
    sink.recover(child, 3)
    del known["child/balances"]
    with pytest.raises(SinkError, match="contains epochs up to 9 of parent/balances"):
        sink.recover(child, 2)


def test_a_text_that_postgres_cannot_store_fails_the_epoch() -> None:
    batch = pa.RecordBatch.from_pydict({"a": ["x"], "b": ["y\0z"]})
    with pytest.raises(SinkError, match=r"the target, field 'b': a text contains the character U\+0000.*Remove it"):
        csv_rows(batch, "the target")


def test_large_rows_need_a_staging_directory(
    database: Database, append: PostgresSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[(str(hash((one, "row"))), one) for one in range(20_000)]]
    monkeypatch.setattr("statebackend.connectors.staged_content.MAX_INLINE_BYTES", 1 << 16)
    with pytest.raises(SinkError, match=r"subtask 0 has \d+ compressed bytes .* Pass staging="):
        staged(append, epoch_of(1), rows)

    sink = PostgresSink(database.conninfo, "payments", staging=str(tmp_path))
    [committable] = staged(sink, epoch_of(1), rows)
    assert len(committable) < 1000
    staged(sink, epoch_of(1, "run-0"), rows)
    sink.commit(epoch_of(1), [committable])
    assert database.rows("SELECT count(*) FROM payments") == [(20_000,)]
    sink.commit(epoch_of(1), [committable])
    assert len(list(tmp_path.rglob("0*-*"))) == 2, "the directory and the file of the other run"
    [waiting] = staged(sink, epoch_of(2), rows)
    staged(sink, epoch_of(3), rows)
    sink.recover(LINEAGE, 2)
    sink.commit(epoch_of(2), [waiting])
    assert database.rows("SELECT count(*) FROM payments") == [(40_000,)]
    assert not [one for one in tmp_path.rglob("*") if one.is_file()]
    with pytest.raises(SinkError, match=r"cannot read the staged rows of epoch 3"):
        sink.commit(epoch_of(3), [committable])
    assert database.rows("SELECT max(epoch) FROM statebackend_epochs") == [(2,)]


def test_recovery_rejects_epochs_that_the_job_has_not_completed(database: Database, append: PostgresSink) -> None:
    for epoch_id in (1, 2, 3):
        database.write(append, epoch_id, [("a", epoch_id)])
    append.recover(LINEAGE, 3)
    with pytest.raises(SinkError, match=r"contains epochs up to 3 of job-1/balances, but the job starts after epoch 2"):
        append.recover(LINEAGE, 2)
    with pytest.raises(SinkError, match="starts without a checkpoint"):
        append.recover(LINEAGE, None)
    with pytest.raises(SinkError, match="cannot roll back"):
        append.roll_back(LINEAGE, 2)


def test_a_job_from_a_savepoint_continues_the_lineage(database: Database, append: PostgresSink) -> None:
    for epoch_id in (1, 2, 3):
        database.write(append, epoch_id, [("a", epoch_id)])
    child = SinkLineage("balances", "job-2", SavepointIdentity("job-1", 3, 0))
    append.recover(child, 3)
    late = SinkLineage("balances", "job-3", SavepointIdentity("job-1", 2, 0))
    with pytest.raises(SinkError, match="contains epochs up to 3 of job-1/balances"):
        append.recover(late, 2)

    epoch = epoch_of(4, lineage=child)
    append.commit(epoch, staged(append, epoch, [[("a", 4)]]))
    assert database.rows("SELECT balance FROM payments ORDER BY 1") == [(1,), (2,), (3,), (4,)]


def test_rows_of_another_run_under_the_same_epoch_are_an_error(database: Database, append: PostgresSink) -> None:
    database.write(append, 1, [("a", 1)])
    with pytest.raises(SinkError, match="run run-1 of the job wrote, but the checkpoint is of run run-2"):
        database.write(append, 1, [("b", 1)], run_id="run-2")


def test_two_sinks_of_one_job_do_not_mix(database: Database, append: PostgresSink, upsert: PostgresSink) -> None:
    other = SinkLineage("payments", "job-1")
    database.write(upsert, 1, [("a", 1)])
    epoch = epoch_of(1, lineage=other)
    append.commit(epoch, staged(append, epoch, [[("a", 2)]]))

    assert database.rows("SELECT * FROM balances") == [("a", 1)]
    assert database.rows("SELECT * FROM payments") == [("a", 2)]


FAULTS: dict[str, tuple[Callable[[Database], PostgresSink], str]] = {
    "password": (
        lambda one: PostgresSink(one.server.conninfo(one.name, password="wr0ng"), "payments"),
        r"password authentication failed.*Correct the user or the password",
    ),
    "no password": (
        lambda one: PostgresSink(f"host=127.0.0.1 port={one.server.port} dbname={one.name} user=admin", "payments"),
        r"no password supplied.*Correct the user or the password",
    ),
    "server": (lambda _: PostgresSink("host=127.0.0.1 port=1 dbname=x", "payments"), "Connection refused.*Start the s"),
    "database": (
        lambda one: PostgresSink(one.server.conninfo("nowhere"), "payments"),
        r'database "nowhere" does not exist.*Create the database',
    ),
    "table": (lambda one: PostgresSink(one.conninfo, "nothing"), "does not exist.*Create the table"),
    "schema": (lambda one: PostgresSink(one.conninfo, "no.table"), "does not exist.*Create the"),
    "column": (lambda one: PostgresSink(one.conninfo, "other"), "does not exist.*Add the column"),
    "type": (lambda one: PostgresSink(one.conninfo, "typed"), "invalid input syntax for type.*Change the type"),
    "null": (lambda one: PostgresSink(one.conninfo, "filled"), "violates not-null constraint.*Change the constraint"),
    "key": (
        lambda one: PostgresSink(one.conninfo, "payments", key=["account"]),
        r"no unique or exclusion constraint.*CREATE UNIQUE INDEX",
    ),
    "permission": (
        lambda one: PostgresSink(one.server.conninfo(one.name, "poor", "p00r"), "payments"),
        "permission denied.*GRANT",
    ),
    "view": (lambda one: PostgresSink(one.conninfo, "seen"), "cannot copy to view.*Write to a table"),
    "generated column": (lambda one: PostgresSink(one.conninfo, "computed"), "generated column.*remove the field"),
    "generated column, key": (
        lambda one: PostgresSink(one.conninfo, "computed", key=["account"]),
        "generated column.*remove the field",
    ),
    "deferrable index": (
        lambda one: PostgresSink(one.conninfo, "deferred", key=["account"]),
        "does not support deferrable.*without DEFERRABLE",
    ),
    "row-level security": (
        lambda one: PostgresSink(one.server.conninfo(one.name, "poor", "p00r"), "secured", epochs_table="known"),
        r"COPY FROM not supported with row-level security.*without key needs ALTER ROLE <user> BYPASSRLS",
    ),
    "row-level security, key": (
        lambda one: PostgresSink(
            one.server.conninfo(one.name, "poor", "p00r"), "secured", key=["account"], epochs_table="known"
        ),
        r"violates row-level security policy.*or a policy with which the user can read and write all rows",
    ),
    "trigger": (lambda one: PostgresSink(one.conninfo, "closed"), "not on Sundays.*Change the trigger"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_errors_name_target_and_fix_and_no_secret(database: Database, name: str) -> None:
    database.execute("CREATE TABLE other (account text)")
    database.execute("CREATE TABLE typed (account bigint, balance text)")
    database.execute("CREATE TABLE filled (account text, balance bigint NOT NULL)")
    database.execute("CREATE VIEW seen AS SELECT * FROM payments")
    database.execute("CREATE TABLE computed (account text PRIMARY KEY, balance bigint GENERATED ALWAYS AS (1) STORED)")
    database.execute("CREATE TABLE deferred (account text UNIQUE DEFERRABLE, balance bigint)")
    database.execute("CREATE TABLE closed (account text, balance bigint)")
    database.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not on Sundays'; END$$;"
        "CREATE TRIGGER failing BEFORE INSERT ON closed FOR EACH ROW EXECUTE FUNCTION fail()"
    )
    database.execute(
        "DO $$BEGIN CREATE ROLE poor LOGIN PASSWORD 'p00r'; EXCEPTION WHEN duplicate_object THEN NULL; END$$"
    )
    database.execute(
        "CREATE TABLE secured (account text PRIMARY KEY, balance bigint);"
        "ALTER TABLE secured ENABLE ROW LEVEL SECURITY;"
        "CREATE TABLE known (lineage text PRIMARY KEY, epoch bigint, run text, committed_at timestamptz);"
        "GRANT ALL ON secured, known TO poor"
    )
    sink = FAULTS[name][0](database)

    def start_and_commit() -> None:
        sink.recover(LINEAGE, None)
        sink.commit(epoch_of(1), staged(sink, epoch_of(1), [[("a", None)]]))

    with pytest.raises(SinkError, match=FAULTS[name][1]) as raised:
        start_and_commit()
    assert sink.identity in str(raised.value)
    assert not any(secret in str(raised.value) for secret in ("wr0ng", "p00r", "a password of tests"))


def test_a_user_needs_no_right_to_create_a_table_that_exists(database: Database, append: PostgresSink) -> None:
    database.execute(
        "DO $$BEGIN CREATE ROLE writer LOGIN PASSWORD 'w'; EXCEPTION WHEN duplicate_object THEN NULL; END$$"
    )
    database.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    database.execute("GRANT SELECT, INSERT, UPDATE ON statebackend_epochs TO writer")
    database.execute("GRANT SELECT, INSERT ON payments TO writer")
    sink = PostgresSink(database.server.conninfo(database.name, "writer", "w"), "payments")
    sink.recover(LINEAGE, None)
    database.write(sink, 1, [("a", 1)])

    assert database.rows("SELECT * FROM payments") == [("a", 1)]


def test_secrets_are_never_shown(database: Database) -> None:
    conninfo = database.conninfo.replace("a password of tests", "s3cret")
    sink = PostgresSink(conninfo, "payments", password=lambda: "an0ther")
    [committable] = staged(sink, epoch_of(1), [[("a", 1)]])
    for text in (sink.identity, repr(sink), pickle.dumps(sink), committable):
        assert not any(one in str(text) for one in ("s3cret", "an0ther"))
    with pytest.raises(ValueError, match="conninfo is not valid") as raised:
        PostgresSink("host=x s3cret", "payments")
    assert "s3cret" not in str(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("password", ["s3/cret", "/s3cret", "s3@cret", "s3@c/ret", "s3/c@ret", "1234/s3cret"])
def test_a_password_that_a_uri_cuts_is_rejected_without_showing_it(password: str) -> None:
    with pytest.raises(ValueError, match="Escape it with urllib") as raised:
        PostgresSink(f"postgresql://job:{password}@db/shop", "payments")
    assert not any(part in str(raised.value) for part in ("s3", "cret", "1234"))
    escaped = PostgresSink(f"postgresql://job:{urllib.parse.quote(password, safe='')}@db/shop", "payments")
    assert escaped.identity == "PostgresSink('db:5432/shop', 'payments')"
    PostgresSink("host=db password=a://b/c@d", "payments")
    assert "a@b" in PostgresSink("postgresql://job:p?x@db/a%40b?application_name=a@b/c", "payments").identity


def test_the_password_is_read_for_each_connection(database: Database) -> None:
    given: Iterator[str] = iter(["a password of tests", "a password of tests"])
    without = f"host=127.0.0.1 port={database.server.port} dbname={database.name} user=admin"
    sink = PostgresSink(without, "payments", password=lambda: next(given))
    sink.recover(LINEAGE, None)
    database.write(sink, 1, [("a", 1)])

    assert database.rows("SELECT * FROM payments") == [("a", 1)]
    assert next(given, None) is None


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(TypeError, match="key is a list of columns"):
        PostgresSink("", "t", key="account")
    with pytest.raises(ValueError, match="delete_field needs key"):
        PostgresSink("", "t", delete_field="is_closed")
    with pytest.raises(ValueError, match="is not the name of a table"):
        PostgresSink("", "a..b")
    with pytest.raises(SinkError, match="the rows have no field 'id', only account, balance"):
        staged(PostgresSink("", "t", key=["id"]), epoch_of(1), [[("a", 1)]])
    with pytest.raises(SinkError, match="a row has a null in 'account', which is a column of its key"):
        staged(PostgresSink("", "t", key=["account"]), epoch_of(1), [[(None, 1)]])
    with pytest.raises(SinkError, match="delete_field 'balance' is int64; it must be a boolean"):
        staged(PostgresSink("", "t", key=["account"], delete_field="balance"), epoch_of(1), [[("a", 1)]])


@pytest.mark.parametrize("damaged", [b"", b"{}\n", b"[1]\n", b"\x00", b'{"version": 2, "size": 0, "file": null}\n'])
def test_damaged_committables_are_rejected(append: PostgresSink, damaged: bytes) -> None:
    with pytest.raises(SinkError, match=r"is not a committable of this sink|version 2"):
        append.commit(epoch_of(1), [damaged])


def test_a_flipped_byte_of_the_rows_is_reported(database: Database, append: PostgresSink) -> None:
    [committable] = staged(append, epoch_of(1), [[("a", 1)] * 100])
    start = committable.index(b"\n") + 1
    for damaged in (committable[:start], committable[:-3], committable[:start] + bytes(len(committable) - start)):
        with pytest.raises(SinkError, match="its staged rows"):
            append.commit(epoch_of(1), [damaged])
    assert database.rows("SELECT * FROM payments") == []


class Running(KeyedProcessFunction[str, Any, Any]):
    """Emits the balance of an account after each payment. An account with a balance of 100 fails."""

    def open(self, context: Any) -> None:
        self.balance = context.get_state(ValueStateDescriptor("balance", int))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        balance = (self.balance.value() or 0) + value.amount
        if balance == 100:
            raise ValueError("too rich")
        self.balance.update(balance)
        yield value.account, balance


def test_a_job_that_fails_writes_each_balance_once(database: Database, tmp_path: Path) -> None:
    def run(amount: int) -> None:
        environment = LocalStreamEnvironment(job_dir=tmp_path / "job", epoch_size=10, parallelism=2)
        elements = [(f"a{number % 7}", amount if number == 60 else 1) for number in range(100)]
        paid = environment.from_elements(elements, "account string, amount bigint", uid="payments").key_by("account")
        balances = paid.process(Running(), uid="running", schema="account string, balance bigint")
        balances.sink_to(PostgresSink(database.conninfo, "balances", key=["account"]), uid="balances")
        balances.sink_to(PostgresSink(database.conninfo, "payments"), uid="payments-sink")
        environment.execute("job")

    with pytest.raises(UserFunctionError, match="too rich"):
        run(92)
    before = database.rows("SELECT count(*) FROM payments")
    assert before == [(60,)]
    run(1)

    # The source starts again from its first element: 100 records after the 60 committed ones.
    [(rows, distinct)] = database.rows("SELECT count(*), count(DISTINCT (account, balance)) FROM payments")
    assert (rows, distinct) == (160, 160)
    latest = database.rows("SELECT account, max(balance) FROM payments GROUP BY account ORDER BY account")
    assert database.rows("SELECT * FROM balances ORDER BY account") == latest
