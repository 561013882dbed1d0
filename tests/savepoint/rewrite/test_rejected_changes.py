"""Changes for another kind of operator or state are rejected by name before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from state_contents import entries_of

from statebackend import (
    BroadcastStateDescriptor,
    MapStateDescriptor,
    Savepoint,
    SplitListStateDescriptor,
    StateTtlConfig,
    UnionListStateDescriptor,
    ValueStateDescriptor,
)
from statebackend.checkpoint.errors import SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata, ReadSource, SourcePositions
from statebackend.checkpoint.state_handles import OpaqueStateHandle, OperatorState, SubtaskState
from statebackend.checkpoint.store.savepoint_directory import create_savepoint_directory
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import EntryError, PlanError
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.state.key_columns import serializer_of_key
from typeserializers import VoidNamespaceSerializer

NUMBER = ValueStateDescriptor("number", int)
TIMERS = "_timer_state/event_user-timers"
LIST = SplitListStateDescriptor("list", int)


def written(path: Path, plan: Plan) -> Path:
    SavepointWriter.new(path, max_parallelism=8).write(plan)
    return path


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Operators with every form of state."""
    plan = Plan().add_operator("one", "string").add_state("one", NUMBER, [("a", 1)])
    plan.add_timers("one", [("a", 5)], time="event").add_operator_state("one", LIST, [1, 2])
    plan.add_operator("other key", "bigint").add_state("other key", ValueStateDescriptor("own", int), [(1, 1)])
    plan.add_operator("other value", "string").add_state("other value", ValueStateDescriptor("number", str), [])
    for uid in ("union", "broadcast", "also broadcast", "more"):
        plan.add_operator(uid, "string").add_state(uid, ValueStateDescriptor(uid, int), [("a", 1)])
        if "broadcast" in uid:
            plan.add_operator_state(uid, BroadcastStateDescriptor("rules", str, int), {"a": 1})
    plan.add_operator_state("union", UnionListStateDescriptor("list", int), [3])
    plan.add_operator_state("more", LIST, [4])
    return written(tmp_path_factory.mktemp("state") / "stored", plan)


MIGRATED = [(NUMBER, VoidNamespaceSerializer())]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan().change_values("one", TIMERS, NUMBER, int), "is a queue; its elements have no values to change"),
        (
            Plan().change_values("one", "number", MapStateDescriptor("number", str, int), int),
            "a map stays a map, and state with a time-to-live keeps one",
        ),
        (
            Plan().change_values("one", "number", ValueStateDescriptor("number", int, ttl=StateTtlConfig(5)), int),
            "a map stays a map, and state with a time-to-live keeps one",
        ),
        (Plan().change_values("one", "number", ValueStateDescriptor("list", int), int), "has a state 'list' already"),
        (Plan().replace_state("one", ValueStateDescriptor("none", int), []), "has no keyed state 'none'"),
        (Plan().add_timers("one", [], time="event", namespace=str), "have other keys or namespaces"),
        (
            Plan().add_state("one", EntrySchema.of_timers("queue", serializer_of_key(["string"]), None), []),
            "'queue' is a queue, not a state of entries",
        ),
        (
            Plan().remove_state("one", "number").migrate_operator("one", MIGRATED),
            "'one' is changed by this plan; migrate it with",
        ),
        (
            Plan().migrate_operator("one", MIGRATED).remove_state("one", "number"),
            "'one' is migrated by this plan; change it with",
        ),
        (Plan().split_operator("one", ["a", "b"], lambda key: "a"), r"operator 'one' has operator state \(list\)"),
        (
            Plan().split_operator("one", ["a", "b"], lambda key: "a", operator_state="c"),
            r"operator 'one' has operator state \(list\)",
        ),
        (Plan().merge_operators(["one", "other key"], "all"), "'one' and 'other key' have different key types"),
        (Plan().merge_operators(["other key", "one"], "all"), "'other key' and 'one' have different key types"),
        (
            Plan().merge_operators(["one", "other value"], "all"),
            "'number' of operator 'other value' has another schema",
        ),
        (Plan().merge_operators(["one", "union"], "all"), "'list' exists twice, the second time in operator 'union'"),
        (Plan().merge_operators(["broadcast", "also broadcast"], "all"), "'rules' exists twice, .* 'also broadcast'"),
        (
            Plan().keep_elements("one", "list", bool).merge_operators(["one", "more"], "all"),
            "operator state 'list': merge the operators before its elements are changed",
        ),
        (
            Plan().keep_elements("more", "list", bool).merge_operators(["one", "more"], "all"),
            "operator state 'list': merge the operators before its elements are changed",
        ),
        (
            Plan()
            .remove_state("more", "list")
            .add_operator_state("more", LIST, [5])
            .merge_operators(["one", "more"], "all"),
            "operator state 'list': merge the operators before its elements are changed",
        ),
    ],
)
def test_a_change_that_does_not_fit_is_rejected(stored: Path, tmp_path: Path, plan: Plan, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        SavepointWriter.copy_of(stored, tmp_path / "copy").write(plan)
    assert not (tmp_path / "copy").exists()


def test_operator_lists_of_merged_operators_are_concatenated(stored: Path, tmp_path: Path) -> None:
    SavepointWriter.copy_of(stored, tmp_path / "copy").write(Plan().merge_operators(["one", "more"], "all"))
    elements = Savepoint.open(tmp_path / "copy").read_operator_state("all", "list")
    assert sorted(one.value for one in elements) == [1, 2, 4]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_operator_state_may_have_fewer_elements_than_subtasks(tmp_path: Path, parallelism: int) -> None:
    plan = Plan().add_operator("one").change_parallelism(parallelism)
    plan.add_operator_state("one", LIST, []).add_operator_state("one", SplitListStateDescriptor("few", int), [1, 2])
    plan.add_operator_state("one", BroadcastStateDescriptor("rules", str, int), {})
    plan.add_operator_state("one", BroadcastStateDescriptor("nulls", str, int), {"a": None, "b": 2})
    savepoint = Savepoint.open(written(tmp_path / "new", plan))
    found = {
        name: sorted((one.key, one.value) for one in savepoint.read_operator_state("one", name))
        for name in ("list", "few", "rules")
    }
    assert found == {"list": [], "few": [(None, 1), (None, 2)], "rules": []}
    nulls = {one.key: one.value for one in savepoint.read_operator_state("one", "nulls")}
    assert nulls == {"a": None, "b": 2}


def test_entries_replace_the_present_ones(stored: Path, tmp_path: Path) -> None:
    plan = Plan().replace_state("one", NUMBER, [("b", 2)])
    SavepointWriter.copy_of(stored, tmp_path / "copy").write(plan)
    assert entries_of(tmp_path / "copy", "one", "number") == {"b": 2}


def test_timers_are_of_event_time_or_processing_time() -> None:
    with pytest.raises(ValueError, match="time is 'event' or 'processing', not 'ingestion'"):
        Plan().add_timers("one", [], time="ingestion")  # type: ignore[arg-type]


def test_more_timers_are_added_to_the_present_ones(stored: Path, tmp_path: Path) -> None:
    plan = Plan().add_timers("one", [("a", 5), ("b", 3)], time="event")
    SavepointWriter.copy_of(stored, tmp_path / "copy").write(plan)
    assert entries_of(tmp_path / "copy", "one", TIMERS) == {"a": 5, "b": 3}


@pytest.mark.parametrize("processes", [0, -1, True, 1.0, "2"])
def test_tasks_run_in_one_process_or_more(stored: Path, tmp_path: Path, processes: Any) -> None:
    with pytest.raises(PlanError, match=r"processes is .*; it must be a whole number of at least 1"):
        SavepointWriter.copy_of(stored, tmp_path / "copy", processes=processes).write(Plan())
    assert not (tmp_path / "copy").exists()


def test_read_entries_are_not_mixed_with_others(stored: Path, tmp_path: Path) -> None:
    [entry] = Savepoint.open(stored).read("one", "number")
    plan = Plan().replace_state("one", NUMBER, [entry, entry, ("b", 2)])
    with pytest.raises(EntryError, match=r"state 'number': .*'b'.* is among entries that were read"):
        SavepointWriter.copy_of(stored, tmp_path / "copy").write(plan)
    assert not (tmp_path / "copy").exists()


def checkpoint(directory: Path, kind: CheckpointKind, subtask: SubtaskState, **sections: Any) -> RestoredState:
    target = create_savepoint_directory(directory)
    metadata = CheckpointMetadata(
        checkpoint_id=7,
        kind=kind,
        job_id="job",
        job_name="job",
        timestamp_ms=0,
        max_parallelism=4,
        operators=(OperatorState("one", "one", 4, (SubtaskState(), subtask)),),
        **sections,
    )
    return RestoredState(metadata, target)


def rewritten(source: RestoredState, target: Path, plan: Plan) -> None:
    SavepointWriter(target, source, None, "job", (), None, 1).write(plan)


POSITIONS = SourcePositions(batch_id=3, offsets=b"log", sources=(ReadSource("orders", "rows"),))


@pytest.mark.parametrize(
    ("sections", "wrong", "right", "message"),
    [
        (
            {"sink_committables": {"ledger": b"rows"}},
            Plan().drop_watermarks(),
            Plan().drop_sinks(),
            r"\(ledger\).*drop_sinks",
        ),
        (
            {"source_positions": POSITIONS},
            Plan().drop_sinks(),
            Plan().drop_source_progress(),
            r"is next to the checkpoint 7.*drop_source_progress",
        ),
    ],
)
def test_other_parts_of_a_checkpoint_than_state_are_kept(
    tmp_path: Path, sections: dict[str, Any], wrong: Plan, right: Plan, message: str
) -> None:
    source = checkpoint(tmp_path / "checkpoint", CheckpointKind.CHECKPOINT, SubtaskState(), **sections)
    with pytest.raises(PlanError, match=message):
        rewritten(source, tmp_path / "copy", wrong)
    assert not (tmp_path / "copy").exists()
    rewritten(source, tmp_path / "copy", right)
    made = Savepoint.open(tmp_path / "copy").metadata
    assert (made.sink_committables, made.source_positions) == ({}, None)


@pytest.mark.parametrize("plan", [Plan(), Plan().change_max_parallelism(8)])
def test_records_in_flight_are_lost_in_no_copy(tmp_path: Path, plan: Plan) -> None:
    file = CheckpointFileSystem.from_uri(tmp_path / "checkpoint").write_file("records", b"r")
    channels = SubtaskState(input_channels=OpaqueStateHandle("records", b"", (file,)))
    source = checkpoint(tmp_path / "other", CheckpointKind.CHECKPOINT, channels)
    with pytest.raises(SavepointError, match="subtask 1 of operator 'one' has records in flight"):
        rewritten(source, tmp_path / "copy", plan)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("elements", ["ab", b"ab", {"a": 1}, 5, None])
def test_elements_of_a_list_are_not_a_text_or_a_mapping(tmp_path: Path, elements: Any) -> None:
    plan = Plan().add_operator("one").add_operator_state("one", LIST, elements)
    with pytest.raises(EntryError, match="is not an iterable of list elements"):
        SavepointWriter.new(tmp_path / "new", max_parallelism=8).write(plan)
    assert not (tmp_path / "new").exists()


def test_timers_are_not_replaced_by_a_state_of_their_name(stored: Path, tmp_path: Path) -> None:
    plan = Plan().replace_state("one", ValueStateDescriptor(TIMERS, int), [("a", 1)])
    with pytest.raises(PlanError, match="are timers, not a state of entries; remove them"):
        SavepointWriter.copy_of(stored, tmp_path / "new").write(plan)
