"""Values of sliding windows stay in memory until a snapshot: stored bytes and results are equal."""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend.state.states import AggregateFunction
from statebackend.streaming.errors import UserFunctionError
from statebackend.streaming.operators import aligned_batches
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.windows.assigners import SlidingEventTimeWindows
from statebackend.testing.backends.harness import BackendHarness
from tests.streaming.operators.windows.window_harness import BACKENDS, HEAP, Sum, Values, WindowRun, windows
from typeserializers.scalars.fixed_width import DoubleSerializer

pytestmark = pytest.mark.slow

SLIDING = SlidingEventTimeWindows.of(10, 4, -1)
RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5), st.integers(-30, 60)), max_size=8)


class Joined(AggregateFunction[int, str, str]):
    """Joins its input, in order."""

    def create_accumulator(self) -> str:
        return ""

    def add(self, value: int, accumulator: str) -> str:
        return f"{accumulator},{value}"

    def get_result(self, accumulator: str) -> str:
        return accumulator


def rows_of(run: WindowRun) -> list[Any]:
    """Every stored row, as bytes."""
    run.operator.prepare_snapshot()
    names = [state.name for state in run.backend.current_meta().states]
    return [(name, list(batch)) for name in names for batch in run.backend.export_state(name)]


def kept(run: WindowRun) -> int:
    """The number of values in memory."""
    changed: Any = run.operator
    return sum(map(len, changed._changed._windows.values()))


@BACKENDS
@settings(max_examples=examples(25))
@given(
    epochs=st.lists(st.tuples(st.lists(RECORDS, max_size=3), st.integers(-30, 70)), max_size=5),
    most=st.sampled_from([0, 2, 1 << 16]),
    reduces=st.booleans(),
)
def test_stored_rows_and_results_equal_those_of_records_stored_one_by_one(
    state_backend: Any, epochs: list[Any], most: int, reduces: bool
) -> None:
    stream = windows(SLIDING)
    definition = (
        stream.reduce(lambda one, other: 2 * one + other, element_type=int) if reduces else stream.aggregate(Joined())
    )
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(aligned_batches, "_MOST_CHANGED", most)
        whole, single = (BackendHarness(f"{directory}/{name}") for name in ("whole", "single"))
        runs = [WindowRun(harness, state_backend, definition) for harness in (whole, single)]
        for batches, watermark in epochs:
            for batch in batches:
                runs[0].records(*batch)
                for record in batch:
                    runs[1].records(record)
                    runs[1].operator.prepare_snapshot()
            for run in runs:
                run.watermark(watermark)
            assert runs[0].rows() == runs[1].rows()
            assert rows_of(runs[0]) == rows_of(runs[1])
            assert kept(runs[0]) == 0
            now = [run.timers.current_watermark() for run in runs]
            handles = [run.snapshot() for run in runs]
            runs = [
                WindowRun(harness, state_backend, definition, handle, watermark=max(time, MIN_TIMESTAMP))
                for harness, handle, time in zip((whole, single), handles, now, strict=True)
            ]
        whole.close()
        single.close()


def test_a_window_that_fires_before_the_next_snapshot_is_never_stored(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, windows(SLIDING).aggregate(Sum(), Values()))
    run.records(("a", 1, 0), ("b", 2, 0))
    run.records(("a", 3, 1), ("a", 4, 5))
    assert kept(run) == 4 + 3
    assert not list(run.backend.get_keys_and_namespaces("window-contents"))
    run.watermark(100)
    assert sorted(run.rows()) == [("a", [1]), ("a", [4]), ("a", [4]), ("a", [8]), ("b", [2]), ("b", [2]), ("b", [2])]
    assert kept(run) == 0
    operator: Any = run.operator
    assert operator._changed._windows == {}, "windows without values are forgotten"


def test_many_values_are_stored_before_the_next_snapshot(
    harness: BackendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aligned_batches, "_MOST_CHANGED", 5)
    run = WindowRun(harness, HEAP, windows(SLIDING).aggregate(Sum()))
    run.records(("a", 1, 0))
    assert kept(run) == 3
    run.records(("b", 1, 0))
    assert kept(run) == 0
    assert len(list(run.backend.get_keys_and_namespaces("window-contents"))) == 6


def test_large_values_are_stored_before_the_next_snapshot(
    harness: BackendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Longer(Joined):
        def add(self, value: int, accumulator: str) -> str:
            return accumulator + value * "x"

    monkeypatch.setattr(aligned_batches, "_MOST_BYTES", 10_000)
    run = WindowRun(harness, HEAP, windows(SLIDING).aggregate(Longer()))
    run.records(("a", 2_000, 0))
    assert kept(run) == 3
    run.records(("a", 2_000, 0))
    assert kept(run) == 0
    run.watermark(100)
    assert list(map(len, run.rows())) == [4_000] * 3
    run.records(("a", 1_000, 200))
    assert kept(run) == 3, "what was stored before does not count again"


def test_windows_that_fire_at_the_same_time_fire_by_key(harness: BackendHarness) -> None:
    # The ends of both windows are beyond the range of timestamps.
    run = WindowRun(harness, HEAP, windows(SLIDING).aggregate(Sum(), Values()))
    run.records(("b", 1, MAX_TIMESTAMP - 2), ("a", 2, MAX_TIMESTAMP - 2), ("b", 4, MAX_TIMESTAMP - 8))
    run.watermark(MAX_TIMESTAMP)
    before, last = [row for row in run.rows() if row[1] == [4]], run.rows()[-4:]
    assert before
    assert [key for key, _ in last] == ["a", "a", "b", "b"]


def test_keys_that_are_equal_in_python_only_are_not_cached(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, windows(SLIDING).aggregate(Sum(), Values()), key_serializer=DoubleSerializer())
    run.records((0.0, 1, 0))
    run.records((-0.0, 2, 0), (float("nan"), 3, 0))
    run.records((float("nan"), 4, 0))
    run.watermark(4)
    assert Counter(map(repr, run.rows())) == {"(0.0, [1])": 2, "(-0.0, [2])": 2, "(nan, [7])": 2}


def test_a_value_is_kept_as_state_returns_it(harness: BackendHarness) -> None:
    class Last(AggregateFunction[Any, float, Any]):
        def create_accumulator(self) -> float:
            return 0

        def add(self, value: Any, accumulator: float) -> Any:
            return value

        def get_result(self, accumulator: float) -> Any:
            return type(accumulator).__name__

    run = WindowRun(harness, HEAP, windows(SLIDING).aggregate(Last()))
    run.records(("a", 7, 8))
    run.watermark(12)
    assert set(run.rows()) == {"float"}


def test_an_accumulator_of_another_type_is_rejected(harness: BackendHarness) -> None:
    class Odd(Sum):
        def add(self, value: int, accumulator: int) -> Any:
            return "a text"

    run = WindowRun(harness, HEAP, windows(SLIDING).aggregate(Odd()))
    with pytest.raises(UserFunctionError, match=r"key 'a', record 5: .*state 'window-contents'.*value"):
        run.records(("a", 5, 0))
