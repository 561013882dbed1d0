"""Changes that a test file leaves are detected, and registrations of test files do not collide."""

from __future__ import annotations

import importlib
import logging
import sys
from contextvars import ContextVar
from pathlib import Path

import process_state
import pytest
from pyspark import cloudpickle

from snapshots import (
    SimpleTypeSerializerSnapshot,
    UnknownSnapshotError,
    allow_snapshot_modules,
    allowed_snapshot_modules,
    register_snapshot,
    registered_names,
    snapshot_class_for,
)
from snapshots.permitted_modules import declare_snapshot_modules, declare_unavailable_snapshots

TESTS = Path(__file__).resolve().parents[1]
VARIABLE: ContextVar[int] = ContextVar("a variable of this file")
WRITTEN = """
from snapshots import SimpleTypeSerializerSnapshot, register_snapshot

@register_snapshot("tests.process_state.Written", aliases=("tests.process_state.Former",))
class Written(SimpleTypeSerializerSnapshot):
    pass
"""


def import_written(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "written_to_be_forgotten.py").write_text(WRITTEN)
    monkeypatch.syspath_prepend(str(directory))
    importlib.import_module("written_to_be_forgotten")


def test_every_change_of_a_test_for_others_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = process_state.process_state()
    with process_state.own_registrations():
        import_written(tmp_path, monkeypatch)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("A_VARIABLE_OF_THIS_TEST", "1")
        token = VARIABLE.set(1)
        logger = logging.getLogger("statebackend")
        monkeypatch.setattr(logger, "propagate", False)
        allow_snapshot_modules("a.module")
        declare_snapshot_modules({"a.declared.name": "a.module"})
        declare_unavailable_snapshots({"a.lost.name": "lost"})
        cloudpickle.register_pickle_by_value(process_state)
        reported = [line.partition(": was ")[0] for line in process_state.left_behind(before)]
        VARIABLE.reset(token)
        monkeypatch.undo()
    assert reported == [
        "setting sys.path",
        "setting working directory",
        "environment variable A_VARIABLE_OF_THIS_TEST",
        "context variable a variable of this file",
        "logger statebackend",
        "module written_to_be_forgotten",
        "name of a snapshot tests.process_state.Former",
        "name of a snapshot tests.process_state.Written",
        "snapshot class written_to_be_forgotten:Written",
        "allowed module a.module",
        "declared module a.declared.name",
        "unavailable snapshot a.lost.name",
        "module pickled by value process_state",
    ]
    assert process_state.left_behind(before) == []


def test_a_registration_for_one_test_is_reverted_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with process_state.own_registrations():
        import_written(tmp_path, monkeypatch)

        @register_snapshot("tests.process_state.Local")
        class Local(SimpleTypeSerializerSnapshot[int]): ...

        allow_snapshot_modules("a.module")
        with process_state.own_registrations():
            allow_snapshot_modules("another.module")
            del sys.modules["written_to_be_forgotten"]
        assert "a.module" in allowed_snapshot_modules()
        assert "another.module" not in allowed_snapshot_modules()
        assert snapshot_class_for("tests.process_state.Local") is Local
        written = sys.modules["written_to_be_forgotten"]
        assert snapshot_class_for("written_to_be_forgotten:Written") is written.Written
    assert "a.module" not in allowed_snapshot_modules()
    assert "written_to_be_forgotten" not in sys.modules
    for name in ("tests.process_state.Local", "tests.process_state.Former", "written_to_be_forgotten:Written"):
        with pytest.raises(UnknownSnapshotError):
            snapshot_class_for(name)
    # The names are free again for another class.
    with process_state.own_registrations():
        register_snapshot("tests.process_state.Written")(Local)


def test_a_shared_requirement_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_state, "_for_all", {})
    before = process_state.process_state()
    with process_state.for_all_tests():
        monkeypatch.setenv("A_VARIABLE_OF_ALL_TESTS", "1")
    assert process_state.left_behind(before) == []
    monkeypatch.setenv("A_VARIABLE_OF_ALL_TESTS", "2")
    assert len(process_state.left_behind(before)) == 1


def test_names_registered_by_test_files_belong_to_tests() -> None:
    """All test files are imported into one process: a registered name would be known to other tests."""
    of_tests = {
        name
        for name, known in registered_names().items()
        if (getattr(sys.modules.get(known.__module__), "__file__", None) or str(TESTS)).startswith(str(TESTS))
    }
    assert [name for name in sorted(of_tests) if not name.startswith("tests.")] == []
