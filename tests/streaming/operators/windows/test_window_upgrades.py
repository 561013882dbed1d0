"""Window state restored by a program with changed types."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from statebackend.state.states import AggregateFunction
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.rows.row_reader import row_class
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP
from statebackend.streaming.windows.assigners import EventTimeSessionWindows
from statebackend.streaming.windows.triggers import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    PurgingTrigger,
)
from statebackend.testing.backends.harness import BackendHarness
from tests.streaming.operators.windows.window_harness import BACKENDS, HEAP, HOURLY, Sum, Values, WindowRun, windows
from typeserializers.records.record_serializer import AttrsSerializer


@attrs.frozen
class Totals1:
    """A window's accumulator in the previous version."""

    total: int = 0


@attrs.frozen
class Totals:
    """The same in the next version."""

    total: int = 0
    largest: int = -1


def _adding(totals: type) -> Any:
    class Adding(AggregateFunction[int, Any, Any]):
        def create_accumulator(self) -> Any:
            return totals()

        def add(self, value: int, accumulator: Any) -> Any:
            changes = {"total": accumulator.total + value}
            if hasattr(accumulator, "largest"):
                changes["largest"] = max(accumulator.largest, value)
            return attrs.evolve(accumulator, **changes)

        def get_result(self, accumulator: Any) -> Any:
            return attrs.astuple(accumulator)

        def merge(self, left: Any, right: Any) -> Any:
            return attrs.evolve(left, total=left.total + right.total)

    return Adding()


class TestUpgrades:
    @BACKENDS
    @pytest.mark.parametrize("assigner", [HOURLY, EventTimeSessionWindows.with_gap(10)], ids=["tumbling", "sessions"])
    def test_an_accumulator_gets_a_new_field_while_timers_are_pending(
        self, harness: BackendHarness, state_backend: Any, assigner: Any
    ) -> None:
        old = windows(assigner).aggregate(_adding(Totals1), accumulator_type=AttrsSerializer(Totals1, name="Totals"))
        run = WindowRun(harness, state_backend, old)
        run.records(("a", 1, 1), ("a", 2, 2), ("b", 5, 3))
        handle = run.snapshot()
        new = windows(assigner).aggregate(_adding(Totals), accumulator_type=AttrsSerializer(Totals))
        run = WindowRun(harness, state_backend, new, handle)
        run.records(("a", 7, 4))
        run.watermark(MAX_TIMESTAMP)
        assert sorted(run.rows()) == [(5, -1), (10, 7)]
        assert run.entries() == {}

    @pytest.mark.parametrize(("before", "after"), [(0, 5), (20, 5), (5, 0), (5, 20)])
    def test_another_lateness_cleans_up_earlier_windows(self, harness: BackendHarness, before: int, after: int) -> None:
        run = WindowRun(harness, HEAP, windows().allowed_lateness(before).aggregate(Sum()))
        run.records(("a", 1, 1))
        handle = run.snapshot()
        run = WindowRun(harness, HEAP, windows().allowed_lateness(after).aggregate(Sum()), handle)
        run.watermark(9)
        assert run.rows() == [1]
        run.watermark(100)
        assert run.rows() == [1]
        assert run.entries() == {}

    @pytest.mark.parametrize("time", [2, 8, -3], ids=["in it", "behind it", "before it"])
    def test_a_late_record_of_a_session_removed_by_less_lateness_leaves_nothing(
        self, harness: BackendHarness, time: int
    ) -> None:
        sessions = windows(EventTimeSessionWindows.with_gap(10))
        run = WindowRun(harness, HEAP, sessions.allowed_lateness(50).aggregate(Sum()))
        run.records(("a", 1, 1))
        run.watermark(30)
        handle = run.snapshot()
        run = WindowRun(harness, HEAP, sessions.allowed_lateness(0).aggregate(Sum()), handle, watermark=30)
        run.records(("a", 2, time))
        run.watermark(MAX_TIMESTAMP)
        assert (run.rows(), run.entries()) == ([], {})

    @pytest.mark.parametrize("late", [(), (("a", 2, 3),)], ids=["by its timer", "by a late record"])
    @pytest.mark.parametrize(
        "trigger",
        [EventTimeTrigger(), ContinuousEventTimeTrigger.of(3), CountTrigger.of(2)],
        ids=lambda one: type(one).__name__,
    )
    @pytest.mark.parametrize("assigner", [HOURLY, EventTimeSessionWindows.with_gap(10)], ids=["tumbling", "sessions"])
    def test_a_purged_window_removed_by_less_lateness_leaves_nothing(
        self, harness: BackendHarness, assigner: Any, trigger: Any, late: tuple[Any, ...]
    ) -> None:
        purged = windows(assigner).trigger(PurgingTrigger.of(trigger))
        run = WindowRun(harness, HEAP, purged.allowed_lateness(50).aggregate(Sum()))
        run.records(("a", 1, 1), ("a", 1, 2), ("a", 1, 2))
        run.watermark(30)
        handle = run.snapshot()
        run = WindowRun(harness, HEAP, purged.allowed_lateness(0).aggregate(Sum()), handle, watermark=30)
        run.records(*late)
        run.watermark(MAX_TIMESTAMP)
        assert run.entries() == {}

    def test_columns_are_added_and_removed_between_runs(self, harness: BackendHarness) -> None:
        old, new = (parsed_schema(ddl, "x") for ddl in ("k string, v int", "k string, w string, v bigint"))
        definition = windows().process(Values())
        run = WindowRun(harness, HEAP, definition, schema=old)
        run.records(("a", row_class(old.names)(("a", 1)), 1))
        run = WindowRun(harness, HEAP, definition, run.snapshot(), schema=new)
        run.records(("a", row_class(new.names)(("a", "w", 1 << 40)), 2))
        run.watermark(9)
        [(_, elements)] = run.rows()
        assert [row.asDict() for row in elements] == [
            {"k": "a", "w": None, "v": 1},
            {"k": "a", "w": "w", "v": 1 << 40},
        ]
