"""Tables, JSON and lockfiles show the namespaces of window state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from statebackend import ListStateDescriptor, Savepoint, ValueStateDescriptor
from statebackend.savepoint.lockfile import LockedOperator, StateLock, lock_from_bytes, lock_to_bytes
from statebackend.savepoint.plain_values import plain_value
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.state_meta import KeyedStateMeta, first_meta_of
from typeserializers import StringSerializer, TypeSerializer

COUNT = ValueStateDescriptor("count", int)


class Place(NamedTuple):
    name: str
    size: int


def test_a_table_of_state_with_namespaces_has_a_column_of_them(tmp_path: Path) -> None:
    plan = Plan().add_operator("one", "string")
    plan = plan.add_state("one", COUNT, [("a", "first", 1), ("a", "second", 2)], namespace=str)
    SavepointWriter.new(tmp_path / "new", max_parallelism=4).write(plan)
    table = Savepoint.open(tmp_path / "new").read("one", "count").to_arrow().sort_by("namespace")
    assert table.select(["key", "namespace", "value"]).to_pylist() == [
        {"key": "a", "namespace": "first", "value": 1},
        {"key": "a", "namespace": "second", "value": 2},
    ]


def test_a_list_in_each_namespace_of_a_key_is_a_separate_entry(tmp_path: Path) -> None:
    plan = Plan().add_operator("one", "string")
    lists = [("a", "first", [1, 2]), ("a", "second", [3]), ("b", "second", [4])]
    plan = plan.add_state("one", ListStateDescriptor("list", int), lists, namespace=str)
    SavepointWriter.new(tmp_path / "new", max_parallelism=1).write(plan)
    statistics = Savepoint.open(tmp_path / "new").statistics("one", "list")
    assert statistics.entries == 3
    stored = StringSerializer().to_bytes
    found = {(one.key, one.namespace) for one in statistics.largest}
    assert found == {(stored(key), stored(namespace)) for key, namespace, _ in lists}


def test_a_lock_has_the_type_of_namespaces() -> None:
    keys = StringSerializer().snapshot_configuration()

    def lock(*namespaces: TypeSerializer[Any]) -> str:
        metas = tuple(first_meta_of(COUNT, one) for one in namespaces)
        data = lock_to_bytes(StateLock(128, (LockedOperator("one", KeyedStateMeta(keys, 0, metas)),), "state.lock"))
        assert lock_to_bytes(lock_from_bytes(data, "state.lock")) == data
        return data.decode()

    assert [line.strip() for line in lock(StringSerializer()).splitlines() if "namespace" in line] == ["namespace: str"]
    assert "namespace" not in lock(VOID_NAMESPACE_SERIALIZER)


def test_a_named_tuple_is_shown_by_its_names() -> None:
    assert plain_value([Place("hall", 3), ("hall", 3)]) == [{"name": "hall", "size": 3}, ["hall", 3]]
