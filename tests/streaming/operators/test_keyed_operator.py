"""Results of a function, and registrations, in both loops over the records."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from emitted_objects import OBJECT, collecting, emitting_objects

from statebackend import (
    IncrementalCleanup,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    RuntimeContext,
    StateRegistrationError,
    StateTtlConfig,
    UserFunctionError,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment

Pair = namedtuple("Pair", ["left", "right"])


class LikeARow:
    def asDict(self) -> dict[str, int]:  # noqa: N802
        return {"a": 1}

    def __iter__(self) -> Iterator[int]:
        return iter((1,))


class Returning(KeyedProcessFunction[Any, Any, Any]):
    """Returns a given result, and counts the elements of each key."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        self.ttl: StateTtlConfig | None = None

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, ttl=self.ttl))

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Any:
        assert context.current_key == value["key"]
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return self.make(count)


SWEEPING = StateTtlConfig(1 << 40, incremental_cleanup=IncrementalCleanup(1, for_every_record=True))
LOOPS = {"in place": None, "by the backend": SWEEPING}
"""A TTL with which the loop writes the key in place, and one with which it asks the backend for every record."""


def run(function: Returning, loop: str = "in place", job_dir: Path | None = None) -> list[Any]:
    function.ttl = LOOPS[loop]
    results: list[Any] = []
    environment = LocalStreamEnvironment(epoch_size=2, job_dir=job_dir)
    environment.from_elements([{"key": key} for key in "aba"]).key_by("key").process(
        emitting_objects(function), uid="operator", schema=OBJECT
    ).sink_to(collecting(results))
    environment.execute("job")
    return results


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda count: None, []),
        (lambda count: [], []),
        (lambda count: [count, -count], [1, -1, 1, -1, 2, -2]),
        (lambda count: (count, 0), [1, 0, 1, 0, 2, 0]),
        (lambda count: iter([count]), [1, 1, 2]),
        (lambda count: (one for one in (count,)), [1, 1, 2]),
        (lambda count: {count}, [1, 1, 2]),
    ],
)
def test_any_iterable_of_records_is_emitted_and_none_means_no_record(
    loop: str, make: Callable[[int], Any], expected: list[Any]
) -> None:
    assert run(Returning(make), loop) == expected


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("result", ["text", b"bytes", bytearray(b"x"), {"a": 1}, Pair(1, 2), LikeARow()])
def test_a_single_record_is_rejected_before_its_parts_are_emitted(loop: str, result: Any) -> None:
    with pytest.raises(UserFunctionError, match="which is one record and not an iterable of records"):
        run(Returning(lambda count: result), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_result_that_is_not_iterable_is_rejected(loop: str) -> None:
    with pytest.raises(UserFunctionError, match="returned 5, which is not an iterable of records"):
        run(Returning(lambda count: 5), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_error_names_key_and_record_in_either_loop(loop: str) -> None:
    with pytest.raises(UserFunctionError, match=r"'operator', key 'a', record {'key': 'a'}: .*ArithmeticError"):
        run(Returning(lambda count: (_ for _ in ()).throw(ArithmeticError("no"))), loop)


class InSubtask(Returning):
    """Registers a second state in given epochs, in any subtask or function."""

    def __init__(self, descriptor: Any, *, when: str) -> None:
        super().__init__(lambda count: [count])
        self.descriptor = descriptor
        self.when = when

    def open(self, context: RuntimeContext) -> None:
        super().open(context)
        self.context = context
        is_on_driver = type(context).__name__ == "RegistrationContext"
        if (self.when == "on the driver" and is_on_driver) or (self.when == "in subtasks" and not is_on_driver):
            context.register(self.descriptor)

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Any:
        if self.when == "later":
            self.context.register(self.descriptor)
            self.context.register(self.descriptor)
        return super().process_element(value, context)


def test_a_state_that_only_the_driver_registers_is_missed_once_stored(tmp_path: Path) -> None:
    class Both(Returning):
        def open(self, context: RuntimeContext) -> None:
            super().open(context)
            self.other = context.get_list_state(ListStateDescriptor("other", int))

        def process_element(self, value: Any, context: ProcessContext[Any]) -> Any:
            self.other.add(1)
            return super().process_element(value, context)

    run(Both(lambda count: [count]), job_dir=tmp_path / "job")
    with pytest.raises(StateRegistrationError, match=r"open\(\) registered 'other' on the driver.*subtask 0"):
        run(InSubtask(ListStateDescriptor("other", int), when="on the driver"), job_dir=tmp_path / "job")


@pytest.mark.parametrize("when", ["in subtasks", "later"])
def test_a_new_state_unknown_to_the_driver_is_rejected(when: str) -> None:
    with pytest.raises((StateRegistrationError, UserFunctionError), match="state 'other' is new, but open"):
        run(InSubtask(MapStateDescriptor("other", str, int), when=when))


def test_a_known_state_may_be_registered_again_while_records_are_processed() -> None:
    assert run(InSubtask(ValueStateDescriptor("count", int), when="later")) == [1, 1, 2]
