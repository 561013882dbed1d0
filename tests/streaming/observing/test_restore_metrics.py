"""What subtasks tell of their restored states comes together on the driver, keyed and operator state apart."""

from __future__ import annotations

from snapshots.compatibility import CompatibilityKind
from statebackend.state.backend_parameters import StateRestoreReport
from statebackend.state.state_compatibility import StateCompatibility
from statebackend.streaming.metrics import RestoreMetrics, restore_metrics, restore_report


def restored(name: str, entries: int, duration_s: float) -> StateRestoreReport:
    return StateRestoreReport(name, StateCompatibility(name, CompatibilityKind.AS_IS, (), {}), entries, duration_s)


def test_entries_are_added_and_the_slowest_subtask_says_how_long_it_took() -> None:
    reports = [
        restore_report([restored("a", 3, 0.5), restored("b", 0, 0.0)], [restored("a", 7, 2.0)]),
        restore_report([restored("a", 4, 0.25)], []),
    ]
    assert restore_metrics(reports, "a", is_operator_state=False) == RestoreMetrics(7, 0.5)
    assert restore_metrics(reports, "a", is_operator_state=True) == RestoreMetrics(7, 2.0)
    assert restore_metrics(reports, "b", is_operator_state=False) == RestoreMetrics(0, 0.0)


def test_a_state_whose_name_looks_like_that_of_operator_state_is_told_apart() -> None:
    reports = [restore_report([restored("operator_state/a", 3, 0.5)], [restored("a", 1, 0.125)])]
    assert restore_metrics(reports, "operator_state/a", is_operator_state=False) == RestoreMetrics(3, 0.5)
    assert restore_metrics(reports, "a", is_operator_state=True) == RestoreMetrics(1, 0.125)
    assert restore_metrics(reports, "unknown", is_operator_state=True) == RestoreMetrics()
