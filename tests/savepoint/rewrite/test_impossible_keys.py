"""Every part of a plan rejects keys that serializers could write but that no job has."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from state_contents import entries_of

from statebackend import ValueStateDescriptor
from statebackend.savepoint.errors import EntryError
from statebackend.savepoint.rewrite import Plan, SavepointWriter

NUMBER = ValueStateDescriptor("number", int)


def write(path: Path, key: Any, keys: list[Any]) -> None:
    entries = [(one, number) for number, one in enumerate(keys)]
    SavepointWriter.new(path, max_parallelism=8).write(Plan().add_operator("o", key).add_state("o", NUMBER, entries))


@pytest.mark.parametrize("column", ["bigint", "int", "smallint", "tinyint"])
@pytest.mark.parametrize("given", [[True], [7, False], [7, 8, True]])
def test_a_boolean_is_not_a_number(tmp_path: Path, column: str, given: list[Any]) -> None:
    rejection = r"key does not fit: (True|False) is a bool, and the column has numbers"
    with pytest.raises(EntryError, match=rejection):
        write(tmp_path / "new", column, given)
    with pytest.raises(EntryError, match=rejection):
        write(tmp_path / "new", (column, "string"), [(key, "a") for key in given])
    plan = Plan().add_operator("o", column).add_timers("o", [(key, 1) for key in given], time="event")
    with pytest.raises(EntryError, match=rejection):
        SavepointWriter.new(tmp_path / "new", max_parallelism=8).write(plan)
    write(tmp_path / "old", "string", list("abc"[: len(given)]))
    changed = Plan().change_keys("o", lambda key: given["abc".index(key)], column)
    with pytest.raises(EntryError, match=rejection):
        SavepointWriter.copy_of(tmp_path / "old", tmp_path / "new").write(changed)
    assert not (tmp_path / "new").exists()


def test_a_boolean_key_stays_a_boolean(tmp_path: Path) -> None:
    write(tmp_path / "one", "boolean", [True, False])
    write(tmp_path / "two", ("boolean", "bigint"), [(True, 1), (False, 1)])
    assert entries_of(tmp_path / "one", "o", "number") == {True: 0, False: 1}
    assert entries_of(tmp_path / "two", "o", "number") == {(True, 1): 0, (False, 1): 1}


@pytest.mark.parametrize("key", [("a", None), ["a", None], (None, datetime.date(2024, 2, 29))], ids=repr)
def test_no_key_column_is_none(tmp_path: Path, key: Any) -> None:
    good = ("b", datetime.date(2024, 2, 29))
    with pytest.raises(EntryError, match="key does not fit: a column of it is None"):
        write(tmp_path / "new", ("string", "date"), [good, list(good), key])
