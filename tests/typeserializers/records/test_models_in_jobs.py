"""Records of pydantic and msgspec in a job: as state, as output, and in tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pydantic
import pytest

from statebackend import KeyedProcessFunction, Savepoint, StateMigrationException, ValueStateDescriptor
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.plain_values import plain_value

SCHEMA = "shop string, sales bigint"


@attrs.frozen
class OfAttrs:
    shop: str
    sales: int


class OfPydantic(pydantic.BaseModel):
    shop: str
    sales: int
    note: str = "new"

    @pydantic.field_validator("sales")
    @classmethod
    def few(cls, sales: int) -> int:
        if sales > 2:
            raise ValueError("too many sales")
        return sales


class OfMsgspec(msgspec.Struct):
    shop: str
    sales: int


class Count(KeyedProcessFunction[str, Any, Any]):
    def __init__(self, record_class: Any) -> None:
        self.record_class = record_class

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", self.record_class))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        before = self.total.value()
        self.total.update(self.record_class(shop=value.shop, sales=1 if before is None else before.sales + 1))
        yield {"shop": self.total.value().shop, "sales": self.total.value().sales}


def run(record_class: Any, shops: list[str], tmp_path: Path, former: Path | None, backend: str) -> tuple[Any, Path]:
    rows: list[Any] = []
    env = LocalStreamEnvironment(backend=backend)
    sales = env.from_elements([{"shop": shop} for shop in shops], "shop string")
    sales.key_by("shop").process(Count(record_class), uid="count", schema=SCHEMA).sink_to(rows)
    # State identifies a record by its name. The three classes stand for one class in three versions of a program.
    name, record_class.__qualname__ = record_class.__qualname__, "Total"
    try:
        job = env.execute("sales", from_savepoint=former)
    finally:
        record_class.__qualname__ = name
    target = tmp_path / record_class.__name__
    job.savepoint(target)
    return sorted(map(tuple, rows)), target


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_model_adopts_an_attrs_class_and_a_struct_adopts_the_model(tmp_path: Path, backend: str) -> None:
    _, first = run(OfAttrs, ["a", "b"], tmp_path, None, backend)
    rows, second = run(OfPydantic, ["a"], tmp_path, first, backend)
    assert rows == [("a", 2)]
    rows, _ = run(OfMsgspec, ["a", "b"], tmp_path, second, backend)
    assert rows == [("a", 3), ("b", 2)]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_validator_that_rejects_old_state_is_reported_with_state_key_and_value(tmp_path: Path, backend: str) -> None:
    _, first = run(OfAttrs, ["a", "a", "a", "b"], tmp_path, None, backend)
    with pytest.raises(StateMigrationException, match=r"(?s)'total'.*'a'.*too many sales.*sales=3"):
        run(OfPydantic, ["b"], tmp_path, first, backend)


def test_state_of_models_is_read_with_and_without_their_classes(tmp_path: Path) -> None:
    _, savepoint = run(OfPydantic, ["a"], tmp_path, None, "heap")
    for known in ([], [OfPydantic]):
        [entry] = Savepoint.open(savepoint, known=known).read("count", "total")
        assert plain_value(entry.value) == {"shop": "a", "sales": 1, "note": "new"}
    assert plain_value(OfPydantic(shop="a", sales=1)) == {"shop": "a", "sales": 1, "note": "new"}
    assert plain_value(OfMsgspec("a", 1)) == {"shop": "a", "sales": 1}


@pytest.mark.parametrize("record_class", [OfPydantic, OfMsgspec])
def test_models_are_emitted_by_field_name(record_class: Any) -> None:
    class Emit(KeyedProcessFunction[str, Any, Any]):
        def process_element(self, value: Any, context: Any) -> Iterator[Any]:
            yield record_class(sales=2, shop=value.shop)

    rows: list[Any] = []
    env = LocalStreamEnvironment()
    sales = env.from_elements([{"shop": "a"}], "shop string")
    schema = "sales bigint, shop string" + (", note string" if record_class is OfPydantic else "")
    sales.key_by("shop").process(Emit(), uid="emit", schema=schema).sink_to(rows)
    env.execute("sales")
    assert (rows[0].sales, rows[0].shop) == (2, "a")
