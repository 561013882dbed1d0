"""The table of all states, and the arguments of tables: options, paths and columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected_job import run_job
from tables_read import parts_of, reader_of, rows_of

from statebackend import Savepoint
from statebackend.checkpoint import CheckpointNotFoundError, CorruptFileError, MissingFileError, SavepointError
from statebackend.spark.state_tables.options import StateTableError


def test_every_state_is_a_row_with_its_kind_types_and_entries(stored: Path) -> None:
    opened = Savepoint.open(stored)
    rows = {row["state"]: row for row in rows_of(stored, kind="metadata")}
    assert set(rows) == {*opened.operators["per shop"].states, "handled", "names"}
    for state, schema in opened.operators["per shop"].states.items():
        assert rows[state]["entries"] == opened.statistics("per shop", state).entries, state
        assert rows[state]["kind"] == schema.kind
        assert dict(rows[state]["types"]) == {role: one.name for role, one in schema.types.items()}
    assert (rows["handled"]["kind"], rows["handled"]["entries"]) == ("split", 100)
    assert (rows["names"]["kind"], rows["names"]["entries"]) == ("broadcast", 1)
    assert {row["checkpoint_id"] for row in rows.values()} == {opened.metadata.checkpoint_id}
    assert {row["operator"] for row in rows.values()} == {"per shop"}
    assert rows["totals"]["size_bytes"] > 0 < rows["totals"]["files"]


def test_entries_are_not_counted_unless_the_column_is_selected(savepoint: Path, tmp_path: Path) -> None:
    run_job("heap").savepoint(tmp_path / "damaged")
    reader = reader_of(tmp_path / "damaged", kind="metadata", columns="state, kind")
    for file in (tmp_path / "damaged" / "operators").rglob("*.parquet"):
        file.unlink()
    rows = [row for part in parts_of(reader) for batch in reader.read(part) for row in batch.to_pylist()]
    assert {"state": "totals", "kind": "value"} in rows


def test_a_table_keeps_the_newest_checkpoint_of_its_creation(tmp_path: Path) -> None:
    run_job("heap", tmp_path / "job")
    newest = Savepoint.open(tmp_path / "job").metadata
    assert {row["checkpoint_id"] for row in rows_of(tmp_path / "job", kind="metadata")} == {newest.checkpoint_id}
    older_id = str(newest.parent_checkpoint_id)
    rows = rows_of(tmp_path / "job", kind="metadata", checkpoint=older_id)
    assert {row["checkpoint_id"] for row in rows} == {int(older_id)}
    with pytest.raises(CheckpointNotFoundError, match="99"):
        rows_of(tmp_path / "job", kind="metadata", checkpoint="99")


@pytest.mark.usefixtures("own_registrations")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": "metadata"}, "there is no option 'kinds'.*did you mean 'kind'"),
        ({"qqq": "1"}, "there is no option 'qqq'.*there are path, kind, operator"),
        ({"kind": "meta"}, "no tables of the kind 'meta'; did you mean 'metadata'"),
        ({"kind": "metadata", "checkpoint": "newest"}, "the id of a checkpoint, such as 17, not 'newest'"),
        ({"kind": "metadata", "columns": "state,entry"}, "no column 'entry'; there are checkpoint_id, operator, state"),
        ({"kind": "metadata", "modules": "no.such.module"}, "'no.such.module' .* cannot be imported"),
    ],
)
def test_an_invalid_option_is_reported_with_the_valid_ones(
    savepoint: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(StateTableError, match=message):
        rows_of(savepoint, **options)


def test_options_ignore_case_and_a_path_is_required(savepoint: Path) -> None:
    assert rows_of(savepoint, KIND="Metadata")
    with pytest.raises(StateTableError, match="needs the directory or URI"):
        rows_of("", kind="metadata")


def test_places_without_state_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SavepointError, match="does not exist"):
        rows_of(tmp_path / "nowhere", kind="metadata")


@pytest.mark.parametrize("damage", ["absent", "truncated", "changed"])
def test_a_file_damaged_after_planning_is_named(tmp_path: Path, damage: str) -> None:
    run_job("heap").savepoint(tmp_path / "savepoint")
    reader = reader_of(tmp_path / "savepoint", kind="metadata")
    parts = parts_of(reader)
    [first, *_] = sorted((tmp_path / "savepoint" / "operators" / "per%20shop" / "totals").iterdir())
    content = first.read_bytes()
    first.unlink()
    if damage != "absent":
        changed = content[:-1] if damage == "truncated" else content[:9] + bytes([content[9] ^ 1]) + content[10:]
        first.write_bytes(changed)
    with pytest.raises((MissingFileError, CorruptFileError), match="totals/part-00000"):
        [list(reader.read(part)) for part in parts]
