"""The contract of sinks passes for a correct sink, and catches faulty ones."""

from __future__ import annotations

import inspect
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statebackend.connectors import Sink, SinkEpoch, SinkError, SinkLineage
from statebackend.testing.sinks import Row, SinkContract

pytestmark = pytest.mark.slow

PASSWORD = "s3cret"

TABLES = """
    CREATE TABLE IF NOT EXISTS target (k TEXT, n INTEGER);
    CREATE TABLE IF NOT EXISTS epochs (lineage TEXT PRIMARY KEY, epoch INTEGER);
"""


class TableSink(Sink):
    """Writes to an SQLite table, with the epoch in the same transaction."""

    def __init__(self, path: str, password: str = PASSWORD) -> None:
        self.path = path
        self._password = password

    @property
    def identity(self) -> str:
        return f"TableSink({self.path!r})"

    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: pa.RecordBatchReader) -> bytes:
        return json.dumps(rows.read_all().to_pylist()).encode()

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        with closing(self.connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            if not self.has(connection, epoch):
                self.mark(connection, epoch)
                self.write(connection, committables)
            connection.execute("COMMIT")

    def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:
        with closing(self.connect()) as connection:
            connection.executescript(TABLES)

    def roll_back(self, lineage: SinkLineage, last_epoch_id: int) -> Sequence[str]:
        raise SinkError(f"{self} cannot hide rows")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=60, isolation_level=None)

    def has(self, connection: sqlite3.Connection, epoch: SinkEpoch) -> bool:
        query = "SELECT 1 FROM epochs WHERE lineage = ? AND epoch >= ?"
        return connection.execute(query, (epoch.lineage.name, epoch.epoch_id)).fetchone() is not None

    def mark(self, connection: sqlite3.Connection, epoch: SinkEpoch) -> None:
        connection.execute("REPLACE INTO epochs VALUES (?, ?)", (epoch.lineage.name, epoch.epoch_id))

    def write(self, connection: sqlite3.Connection, committables: Sequence[bytes]) -> None:
        for one in committables:
            connection.executemany("INSERT INTO target VALUES (:k, :n)", json.loads(one))


class CommitsTwice(TableSink):
    """Does not look for the epoch."""

    def has(self, connection: sqlite3.Connection, epoch: SinkEpoch) -> bool:
        return False


class LosesAnEpoch(TableSink):
    """Stores the epoch in a transaction of its own, before the rows."""

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        with closing(self.connect()) as connection:
            if self.has(connection, epoch):
                return
            self.mark(connection, epoch)
            self.write(connection, committables)


class DoublesAnEpoch(TableSink):
    """Stores the epoch in a transaction of its own, after the rows."""

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        with closing(self.connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            is_there = self.has(connection, epoch)
            if not is_there:
                self.write(connection, committables)
            connection.execute("COMMIT")
            self.mark(connection, epoch)


class LeaksInItsRepr(TableSink):
    """Shows its password in its text, like a class with a generated `__repr__`."""

    def __repr__(self) -> str:
        return f"TableSink({self.path!r}, {self._password!r})"


class LeaksInItsCommittables(TableSink):
    """Sends the password to the checkpoint."""

    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: pa.RecordBatchReader) -> bytes:
        return json.dumps({"password": self._password, "rows": rows.read_all().to_pylist()}).encode()

    def write(self, connection: sqlite3.Connection, committables: Sequence[bytes]) -> None:
        super().write(connection, [json.dumps(json.loads(one)["rows"]).encode() for one in committables])


class TestTableSink(SinkContract):
    can_roll_back = False
    secrets = (PASSWORD,)
    kind: type[TableSink] = TableSink

    def new_sink(self, target: Path) -> Sink:
        return self.kind(str(target))

    def rows_in(self, target: Path) -> list[Row]:
        with closing(sqlite3.connect(target)) as connection:
            return list(connection.execute("SELECT k, n FROM target"))


def failed_tests(kind: type[TableSink], directory: Path) -> set[str]:
    """The names of the tests of the contract that fail for a sink."""
    contract, failed, numbers = type("Contract", (TestTableSink,), {"kind": kind})(), set(), count()

    def new_target() -> Path:
        return directory / str(next(numbers))

    for name, test in inspect.getmembers(contract, inspect.ismethod):
        if name.startswith("test_") and name != "test_secrets_do_not_appear_in_errors":
            wanted = inspect.signature(test).parameters
            given: dict[str, Any] = {one: new_target if one == "target_of" else new_target() for one in wanted}
            try:
                test(**given)
            except pytest.skip.Exception:
                pass
            except Exception:
                failed.add(name)
    return failed


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (CommitsTwice, "a_lost_response_of_the_target_duplicates_no_rows"),
        (LosesAnEpoch, "a_kill_before_any_line_of_a_commit_loses_and_duplicates_no_rows"),
        (DoublesAnEpoch, "a_kill_before_any_line_of_a_commit_loses_and_duplicates_no_rows"),
        (LeaksInItsRepr, "secrets_appear_neither_in_committables_nor_in_names"),
        (LeaksInItsCommittables, "secrets_appear_neither_in_committables_nor_in_names"),
    ],
)
def test_the_contract_catches_a_faulty_sink(kind: type[TableSink], name: str, tmp_path: Path) -> None:
    failed = failed_tests(kind, tmp_path)
    assert f"test_{name}" in failed
    assert "test_rows_are_visible_when_their_epoch_is_committed_and_not_before" not in failed
