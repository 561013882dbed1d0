"""A new kind of keyed state needs a class and an entry in the table of kinds, and works in all tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from statebackend import KeyedProcessFunction, ListStateDescriptor, Savepoint, StateTtlConfig
from statebackend.local import LocalStreamEnvironment
from statebackend.state.internal_states import Lifetime
from statebackend.state.list_state import ListKind
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.state_meta import STATE_KINDS
from typeserializers.kernel.type_serializer import TypeSerializer


class DistinctKind(ListKind):
    """A kind with the table form of lists."""

    name = "distinct"

    def timed_descriptor(
        self, descriptor: Any, serializers: Mapping[str, TypeSerializer[Any]], lifetime: Lifetime
    ) -> StateDescriptor:
        stored: Any = super().timed_descriptor(descriptor, serializers, lifetime)
        return DistinctStateDescriptor(stored.name, stored.element_serializer)


DISTINCT = DistinctKind()


@frozen
class DistinctStateDescriptor(ListStateDescriptor[Any]):
    kind = DISTINCT

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> DistinctStateDescriptor:
        same = super().with_serializers(serializers)
        return DistinctStateDescriptor(same.name, same.element_serializer, ttl=same.ttl)


class CountDistinct(KeyedProcessFunction):
    def __init__(self, ttl: StateTtlConfig | None) -> None:
        self.ttl = ttl

    def open(self, context: Any) -> None:
        self.seen = context.register(DistinctStateDescriptor("seen", int, ttl=self.ttl))

    def process_element(self, sale: Any, context: Any) -> Iterator[Any]:
        if sale.item not in self.seen.get():
            self.seen.add(sale.item)
        yield sale.shop, len(list(self.seen.get()))


def run(job_dir: Path, backend: str, ttl: StateTtlConfig | None, *sales: tuple[str, int]) -> list[tuple[str, int]]:
    counted: list[Any] = []
    environment = LocalStreamEnvironment(backend=backend, parallelism=2, job_dir=str(job_dir))
    keyed = environment.from_elements(list(sales), "shop string, item bigint").key_by("shop")
    keyed.process(CountDistinct(ttl), uid="count", schema="shop string, items bigint").sink_to(counted)
    environment.execute("count")
    return [tuple(row) for row in counted]


@pytest.mark.parametrize("ttl", [None, StateTtlConfig(10**15)], ids=["for ever", "with a time-to-live"])
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_kind_in_the_table_is_stored_restored_read_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, ttl: StateTtlConfig | None
) -> None:
    assert isinstance(STATE_KINDS, dict)
    monkeypatch.setitem(STATE_KINDS, DISTINCT.name, DISTINCT)
    assert run(tmp_path / "job", backend, ttl, ("a", 1), ("b", 1), ("a", 1)) == [("a", 1), ("b", 1), ("a", 1)]
    assert run(tmp_path / "job", backend, ttl, ("a", 2), ("a", 1), ("b", 3)) == [("a", 2), ("a", 2), ("b", 2)]

    stored = Savepoint.open(tmp_path / "job")

    assert stored.schema("count", "seen").kind == "distinct"
    assert {entry.key: entry.value for entry in stored.read("count", "seen")} == {"a": [1, 2], "b": [1, 3]}
    assert stored.statistics("count", "seen").entries == 2
