"""Entries that several tasks have sorted, in any partitions, are read by one writer."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from state_contents import entries_of

from statebackend import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.savepoint.errors import EntryError, RepeatedKeyError
from statebackend.savepoint.rewrite import (
    Plan,
    SavepointWriter,
    StagedEntries,
    StagedPart,
    discard_staged,
    stage_entries,
)
from statebackend.state.state_kind import StateDescriptor

NUMBER = ValueStateDescriptor("number", int)


def stage(store: CheckpointFileSystem, keys: range, max_parallelism: int = 16) -> StagedPart:
    entries = ((key, key * key) for key in keys)
    part = stage_entries(store, NUMBER, ("bigint",), entries, max_parallelism=max_parallelism)
    return pickle.loads(pickle.dumps(part))


def plan_of(staged: StagedEntries) -> Plan:
    return Plan().change_parallelism(3).add_operator("one", "bigint").add_state("one", NUMBER, staged)


def test_staged_entries_of_tasks_are_one_state(tmp_path: Path) -> None:
    store = CheckpointFileSystem.from_uri(tmp_path / "staging")
    parts = [stage(store, range(start, 1000, 4)) for start in range(4)]
    # A task ran twice, and only one of its results counts.
    stage(store, range(0, 1000, 4))
    SavepointWriter.new(tmp_path / "new", max_parallelism=16).write(plan_of(StagedEntries(store, parts)))
    assert entries_of(tmp_path / "new", "one", "number") == {key: key * key for key in range(1000)}
    discard_staged(store, parts)
    assert len(store.list_files()) == 1
    discard_staged(store)
    assert store.list_files() == ()


def test_a_key_in_two_tasks_is_detected(tmp_path: Path) -> None:
    store = CheckpointFileSystem.from_uri(tmp_path / "staging")
    parts = [stage(store, range(10)), stage(store, range(9, 20))]
    with pytest.raises(RepeatedKeyError, match="same key 9"):
        SavepointWriter.new(tmp_path / "new", max_parallelism=16).write(plan_of(StagedEntries(store, parts)))
    assert not (tmp_path / "new").exists()


def test_entries_staged_for_other_key_groups_are_rejected(tmp_path: Path) -> None:
    store = CheckpointFileSystem.from_uri(tmp_path / "staging")
    staged = StagedEntries(store, [stage(store, range(10), max_parallelism=8)])
    with pytest.raises(EntryError, match="staged for max_parallelism 8"):
        SavepointWriter.new(tmp_path / "new", max_parallelism=16).write(plan_of(staged))


@pytest.mark.parametrize(
    ("descriptor", "key", "namespace", "written"),
    [
        (NUMBER, ("string",), None, "key str"),
        (NUMBER, ("bigint", "int"), None, "key tuple"),
        (ValueStateDescriptor("number", str), ("bigint",), None, "value str"),
        (
            ValueStateDescriptor("number", int, ttl=StateTtlConfig(1000)),
            ("bigint",),
            None,
            "with the time of its last access",
        ),
        (ValueStateDescriptor("other", int), ("bigint",), None, "a value state 'other'"),
        (ListStateDescriptor("number", int), ("bigint",), None, "a list state"),
        (MapStateDescriptor("number", int, int), ("bigint",), None, "a map state"),
        (NUMBER, ("bigint",), str, "namespace str"),
    ],
)
def test_entries_staged_with_other_types_are_rejected(
    tmp_path: Path, descriptor: StateDescriptor, key: tuple[str, ...], namespace: object, written: str
) -> None:
    store = CheckpointFileSystem.from_uri(tmp_path / "staging")
    part = stage_entries(store, descriptor, key, [], max_parallelism=16, namespace=namespace)
    with pytest.raises(
        EntryError, match=f"were staged for max_parallelism 16 and .*{written}.*, but are to be written"
    ):
        SavepointWriter.new(tmp_path / "new", max_parallelism=16).write(plan_of(StagedEntries(store, [part])))
    assert not (tmp_path / "new").exists()
