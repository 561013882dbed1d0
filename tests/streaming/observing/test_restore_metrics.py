"""Restore metrics of subtasks are combined on the driver, separately for keyed and operator state."""

from __future__ import annotations

from snapshots.compatibility import CompatibilityKind
from statebackend.state.backend_parameters import StateRestoreReport
from statebackend.state.state_compatibility import StateCompatibility
from statebackend.streaming.metrics import RestoreMetrics, restore_metrics, restore_report


def restored(name: str, entries: int, duration_s: float) -> StateRestoreReport:
    return StateRestoreReport(name, StateCompatibility(name, CompatibilityKind.AS_IS, (), {}), entries, duration_s)


def test_entries_are_summed_and_the_duration_is_the_maximum() -> None:
    reports = [
        restore_report([restored("a", 3, 0.5), restored("b", 0, 0.0)], [restored("a", 7, 2.0)]),
        restore_report([restored("a", 4, 0.25)], []),
    ]
    assert restore_metrics(reports, "a", is_operator_state=False) == RestoreMetrics(7, 0.5)
    assert restore_metrics(reports, "a", is_operator_state=True) == RestoreMetrics(7, 2.0)
    assert restore_metrics(reports, "b", is_operator_state=False) == RestoreMetrics(0, 0.0)


def test_a_keyed_state_with_a_similar_name_is_distinct_from_operator_state() -> None:
    reports = [restore_report([restored("operator_state/a", 3, 0.5)], [restored("a", 1, 0.125)])]
    assert restore_metrics(reports, "operator_state/a", is_operator_state=False) == RestoreMetrics(3, 0.5)
    assert restore_metrics(reports, "a", is_operator_state=True) == RestoreMetrics(1, 0.125)
    assert restore_metrics(reports, "unknown", is_operator_state=True) == RestoreMetrics()
