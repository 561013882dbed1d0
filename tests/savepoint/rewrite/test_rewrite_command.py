"""The command `statebackend rewrite`: a plan in a file, its output, and its exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from state_contents import entries_of

from statebackend import KeyedProcessFunction, RuntimeContext, Savepoint, ValueStateDescriptor
from statebackend.cli.main import main
from statebackend.cli.streams import NOT_READABLE
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.rewrite import Plan, SavepointWriter

pytestmark = pytest.mark.usefixtures("own_registrations")

_PLAN = """
from statebackend.savepoint.rewrite import Plan

def plan(savepoint):
    assert "shops" in savepoint.operators
    return Plan().rename_operator("shops", "stores").keep_keys("stores", lambda shop: shop != "b")
"""


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    plan = (
        Plan()
        .add_operator("shops", "string")
        .add_state("shops", ValueStateDescriptor("sales", int), [("a", 1), ("b", 2)])
    )
    SavepointWriter.new(tmp_path / "stored", max_parallelism=8).write(plan)
    return tmp_path / "stored"


def run(stored: Path, text: str, *options: str) -> tuple[int, Path]:
    plan, new = stored.parent / "plan.py", stored.parent / "new"
    plan.write_text(text)
    return main(["rewrite", str(stored), str(new), "--plan", str(plan), *options]), new


def test_a_plan_in_a_file_is_executed(stored: Path, capsys: Any) -> None:
    status, new = run(stored, _PLAN)
    assert status == 0
    assert entries_of(new, "stores", "sales") == {"a": 1}
    reported = capsys.readouterr()
    assert "operator stores, state sales: 1 entry written, 1 left out" in reported.out
    assert "warning" not in reported.out


def test_the_answer_is_one_json_document_whatever_the_plan_prints(stored: Path, capsys: Any) -> None:
    talkative = _PLAN.replace("lambda shop: ", "lambda shop: print('looking') or ").replace(
        "    assert", "    print('planning')\n    assert"
    )
    status, new = run(stored, f"print('loading')\n{talkative}", "--json")
    assert status == 0
    reported = capsys.readouterr()
    assert all(word in reported.err for word in ("loading", "planning", "looking"))
    answer = json.loads(reported.out)
    assert answer["uri"] == str(new)
    assert answer["operators"] == {
        "stores": {"is_copied": False, "rows": {"sales": 1}, "operator_state_rows": {}, "left_out": {"sales": 1}}
    }
    assert answer["warnings"] == []


_IDLE_PLAN = """
from statebackend.savepoint.rewrite import Plan

def plan(savepoint):
    return Plan().keep_keys("shops", lambda shop: shop != "b").keep_keys("shops", lambda shop: shop != 13)
"""


def test_a_change_that_removed_nothing_is_a_warning(stored: Path, capsys: Any) -> None:
    status, _ = run(stored, _IDLE_PLAN)
    reported = capsys.readouterr().out
    assert status == 0
    assert "state sales: 1 entry written, 1 left out" in reported
    [warning] = [line for line in reported.splitlines() if line.startswith("warning: ")]
    assert "change 2 of the plan (keep_keys of operator 'shops') left out nothing" in warning


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no function plan"),
        ("def plan(savepoint): pass", "returned a NoneType, not a Plan"),
        ("def plan(savepoint): return 1 / 0", "failed with ZeroDivisionError"),
        ("import nothing_of_that_name", "failed: ModuleNotFoundError"),
        ("def plan(:", "failed: SyntaxError"),
        (
            "from statebackend.savepoint.rewrite import Plan\ndef plan(one): return Plan().remove_operator('x')",
            "no operator 'x'",
        ),
    ],
)
def test_an_invalid_plan_ends_with_3_and_writes_nothing(stored: Path, capsys: Any, text: str, reason: str) -> None:
    status, new = run(stored, text)
    assert status == 3
    assert reason in capsys.readouterr().err
    assert not new.exists()


def test_an_existing_target_and_a_missing_plan_end_with_3(stored: Path, capsys: Any) -> None:
    plan = stored.parent / "plan.py"
    plan.write_text(_PLAN)
    assert main(["rewrite", str(stored), str(stored), "--plan", str(plan)]) == 3
    assert "already is a checkpoint or savepoint" in capsys.readouterr().err
    assert main(["rewrite", str(stored), str(stored.parent / "new"), "--plan", str(stored.parent / "other.py")]) == 3
    assert main(["rewrite", str(stored), str(stored.parent / "new")]) == 64


def test_inspect_shows_the_origin_of_a_rewritten_savepoint(stored: Path, capsys: Any) -> None:
    origin = Savepoint.open(stored).metadata
    assert main(["inspect", str(stored), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rewritten_from"] is None
    _, new = run(stored, _PLAN)
    assert Savepoint.open(new).metadata.timestamp_ms != origin.timestamp_ms
    capsys.readouterr()
    identity = f"{origin.job_id}/{origin.checkpoint_id}/{origin.timestamp_ms}"
    assert main(["inspect", str(new), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rewritten_from"] == identity
    assert main(["inspect", str(new)]) == 0
    assert identity in capsys.readouterr().out


@pytest.mark.parametrize("text", ["raise SystemExit(0)", "def plan(savepoint):\n    raise SystemExit(0)\n"])
def test_a_plan_that_exits_the_process_is_reported_and_is_no_success(stored: Path, capsys: Any, text: str) -> None:
    status, new = run(stored, text)
    assert (status, new.exists()) == (3, False)
    assert "SystemExit: 0" in capsys.readouterr().err


class Count(KeyedProcessFunction[str, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        return iter(())


def run_job(job_directory: Path, keys: str) -> None:
    """Count these records too, in one epoch."""
    environment = LocalStreamEnvironment(job_dir=job_directory, epoch_size=10)
    environment.from_elements([{"key": key} for key in keys], schema="key string").key_by("key").process(
        Count(), uid="count", schema="key string"
    ).sink_to([])
    environment.execute("count")


def test_the_checkpoint_that_the_plan_was_made_of_is_rewritten(tmp_path: Path) -> None:
    job = tmp_path / "job"
    run_job(job, "aa")
    status, new = run(
        job,
        f"""
from pathlib import Path
from statebackend.savepoint.rewrite import Plan
from {__name__} import run_job

def plan(savepoint):
    [[key, count]] = [(entry.key, entry.value) for entry in savepoint.read("count", "count")]
    # The job goes on meanwhile.
    run_job(Path({str(job)!r}), "aaa")
    return Plan().drop_source_progress().keep_entries("count", lambda entry: entry.value == count)
""",
    )
    assert status == 0
    assert entries_of(job, "count", "count")["a"] > 2
    assert entries_of(new, "count", "count") == {"a": 2}


@pytest.mark.parametrize("known", ["int", "5", "None", "'Order'"])
def test_classes_of_the_program_are_given_as_a_list(stored: Path, capsys: Any, known: str) -> None:
    status, new = run(stored, f"{_PLAN}\nknown = {known}\n")
    assert (status, new.exists()) == (NOT_READABLE, False)
    assert "not a list of the program's classes: known = [Order]" in capsys.readouterr().err
