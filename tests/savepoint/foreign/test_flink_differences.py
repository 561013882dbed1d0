"""`diff` matches operators of Flink by uid or by its hash, and compares entries across different key groups."""

from __future__ import annotations

import json
import pathlib

import pytest
from golden_savepoints import GOLDEN, NAMES

from statebackend import ValueStateDescriptor
from statebackend.cli.main import main
from statebackend.cli.streams import DIFFERENT
from statebackend.savepoint.foreign.flink_import import without_sources
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.state_location import find_state

pytestmark = pytest.mark.slow

UIDS = ("golden-keyed", "golden-op", "golden-longkey", "golden-window")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "rocksdb-native"])
def test_savepoints_of_all_versions_have_the_same_entries(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Flink 1.x stores no uids, and Flink 2.3 does.
    places = [str(GOLDEN / one / "savepoint") for one in (name, "rocksdb-native")]
    assert main(["diff", *places, "--entries"]) == 0
    assert capsys.readouterr().out.strip() == "no difference"


@pytest.mark.parametrize("is_flink_first", [True, False])
@pytest.mark.extended
def test_an_imported_savepoint_differs_by_what_the_plan_changed(
    is_flink_first: bool, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flink = GOLDEN / "1.20.5-hashmap-native" / "savepoint"
    source, _ = without_sources(find_state(flink), UIDS)
    plan = Plan().change_values("golden-keyed", "count", ValueStateDescriptor("count", int), lambda count: count + 1)
    plan.remove_state("golden-op", "op-empty").change_max_parallelism(64)
    SavepointWriter.copy_of_restored(source, tmp_path / "ours").write(plan)
    places = [str(flink), str(tmp_path / "ours")]
    assert main(["diff", *(places if is_flink_first else reversed(places)), "--entries", "--json"]) == DIFFERENT
    answer = json.loads(capsys.readouterr().out)
    [removed] = answer["schema"]
    assert removed["path"] == "golden-op.operator_states.op-empty", removed
    assert {(one["operator"], one["state"], one["change"]) for one in answer["entries"]} == {
        ("golden-keyed", "count", "changed")
    }
    assert len(answer["entries"]) == 200
