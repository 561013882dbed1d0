"""Contenders take turns, so one disturbed round does not change the reported median."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.alternating import Measurement, measure_alternating


def recording(name: str, order: list[str], values: list[float]) -> Callable[[], float]:
    remaining = iter(values)

    def run() -> float:
        order.append(name)
        return next(remaining)

    return run


def test_each_round_runs_each_contender_once_in_rotated_order() -> None:
    order: list[str] = []
    contenders = {name: recording(name, order, [1.0] * 3) for name in "abc"}
    measure_alternating(contenders, rounds=3)
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]


def test_warm_up_rounds_are_run_but_not_counted() -> None:
    order: list[str] = []
    measured = measure_alternating({"a": recording("a", order, [900.0, 10.0, 12.0])}, rounds=2, warm_up_rounds=1)
    assert order == ["a", "a", "a"]
    assert measured == {"a": Measurement((10.0, 12.0))}


def test_one_disturbed_round_does_not_move_the_median() -> None:
    measurement = Measurement((100.0, 2.0, 101.0))
    assert measurement.median == 100.0
    assert measurement.spread == pytest.approx(0.99)


def test_an_error_of_a_contender_ends_the_run() -> None:
    def fail() -> float:
        raise RuntimeError("no such column")

    with pytest.raises(RuntimeError, match="no such column"):
        measure_alternating({"a": fail})


@pytest.mark.parametrize(("rounds", "warm_up_rounds"), [(0, 0), (1, -1)])
def test_a_run_without_rounds_is_rejected(rounds: int, warm_up_rounds: int) -> None:
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        measure_alternating({"a": lambda: 1.0}, rounds=rounds, warm_up_rounds=warm_up_rounds)


def test_a_measurement_without_values_is_rejected() -> None:
    with pytest.raises(ValueError, match="a measurement needs at least one round"):
        Measurement(())
