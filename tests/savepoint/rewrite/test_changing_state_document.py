"""The page about changing state: its examples run in the shown order, and it lists all changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from state_contents import entries_of

from statebackend import Savepoint
from statebackend.cli.main import main
from statebackend.savepoint.rewrite import Plan

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "changing-state.md").read_text()


@pytest.mark.usefixtures("own_registrations")
def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(example.replace("/savepoints", str(tmp_path)), "changing-state.md", "exec"), {})
    assert entries_of(tmp_path / "begin", "per shop", "stock") == {
        ("north", "apples"): 12,
        ("north", "pears"): 3,
        ("south", "apples"): 1,
    }
    assert entries_of(tmp_path / "second", "shops", "cents") == {"north": 12050, "south": 8000, "west": 725}
    [plan] = re.findall(r"(?m)^    # forget\.py\n((?:    .*\n|\n)+)", PAGE)
    (tmp_path / "forget.py").write_text(re.sub(r"(?m)^    ", "", plan))
    paths = [str(tmp_path / name) for name in ("second", "third", "forget.py")]
    assert main(["rewrite", *paths[:2], "--plan", paths[2]]) == 0
    third = Savepoint.open(tmp_path / "third")
    assert entries_of(tmp_path / "third", "shops", "cents") == {"north": 12050, "west": 725}
    assert third.metadata.max_parallelism == 1024
    assert [one.operator_uid for one in third.metadata.timers_due] == ["shops"]


def test_every_change_is_on_the_page() -> None:
    methods = {name for name in vars(Plan) if not name.startswith("_") and name != "changes"}
    rows = "".join(re.findall(r"(?m)^\| `.*", PAGE))
    assert {name for name in methods if re.search(rf"`{name}\b", rows)} == methods
