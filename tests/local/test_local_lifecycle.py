"""A local job calls setup() and teardown() of its functions once per run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from statebackend import KeyedProcessFunction, RuntimeContext, UserFunctionError
from statebackend.local import LocalStreamEnvironment


class Connecting(KeyedProcessFunction[Any, Any, Any]):
    """Records its calls, and emits the number of its connection."""

    calls: ClassVar[list[str]] = []

    def setup(self) -> None:
        self.calls.append("setup")
        self.connection = [self.calls.count("setup")]

    def open(self, context: RuntimeContext) -> None:
        if hasattr(self, "connection"):
            self.calls.append("open")

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        if value["key"] == "poison":
            raise ArithmeticError("poison")
        self.connection.append(0)
        yield value["key"], self.connection[0]

    def close(self) -> None:
        if hasattr(self, "connection"):
            self.calls.append("close")

    def teardown(self) -> None:
        self.calls.append(f"teardown after {len(self.connection) - 1} records")


def run(keys: str | list[str]) -> list[Any]:
    results: list[Any] = []
    environment = LocalStreamEnvironment(epoch_size=2, parallelism=1)
    environment.from_elements([{"key": key} for key in keys]).key_by("key").process(
        Connecting(), uid="operator", schema="key string, connection int"
    ).sink_to(results)
    environment.execute("job")
    return results


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    fresh: list[str] = []
    monkeypatch.setattr(Connecting, "calls", fresh)
    return fresh


def test_a_run_sets_up_and_opens_once_and_closes_and_tears_down_at_its_end(calls: list[str]) -> None:
    assert [row[1] for row in run("abcde")] == [1] * 5
    assert calls == ["setup", "open", "close", "teardown after 5 records"]


def test_a_failed_run_tears_down_too(calls: list[str]) -> None:
    with pytest.raises(UserFunctionError, match="poison"):
        run(["a", "b", "poison"])
    assert calls[-1] == "teardown after 2 records"
