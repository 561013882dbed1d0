"""What became of restored states in one subtask, as an acknowledgement carries it from the task to the driver.

    report := { ["operator_state/"] "entries_migrated/" name: i64,  ["operator_state/"] "duration_s/" name: f64 }

Only acknowledgements have it, so that it is read by the program that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from attrs import frozen

from checkpointing.coordinator.acknowledgement import ReportValue
from statebackend.keyed.backend_parameters import StateRestoreReport

_ENTRIES_MIGRATED: Final = "entries_migrated"
_DURATION_S: Final = "duration_s"
_OPERATOR_STATE: Final = "operator_state/"


@frozen
class RestoreMeasure:
    """What the migration of one state took: in one subtask, or the sum of entries and the slowest of several."""

    entries_migrated: int = 0
    duration_s: float = 0.0


def restore_report(
    keyed: Iterable[StateRestoreReport], operator_state: Iterable[StateRestoreReport]
) -> dict[str, ReportValue]:
    """The measures of one subtask, for the report of its acknowledgement."""
    report: dict[str, ReportValue] = {}
    for restored_states, prefix in ((keyed, ""), (operator_state, _OPERATOR_STATE)):
        for restored in restored_states:
            report[f"{prefix}{_ENTRIES_MIGRATED}/{restored.state_name}"] = restored.entries_migrated
            report[f"{prefix}{_DURATION_S}/{restored.state_name}"] = restored.duration_s
    return report


def measure_of(
    reports: Iterable[Mapping[str, ReportValue]], state_name: str, *, is_operator_state: bool
) -> RestoreMeasure:
    """What the migration of a state took, by the reports of all subtasks; nothing where nobody registered it."""
    prefix = _OPERATOR_STATE if is_operator_state else ""
    entries, duration_s = 0, 0.0
    for report in reports:
        migrated = report.get(f"{prefix}{_ENTRIES_MIGRATED}/{state_name}")
        took_s = report.get(f"{prefix}{_DURATION_S}/{state_name}")
        entries += migrated if isinstance(migrated, int) else 0
        duration_s = max(duration_s, took_s if isinstance(took_s, (int, float)) else 0.0)
    return RestoreMeasure(entries, duration_s)
