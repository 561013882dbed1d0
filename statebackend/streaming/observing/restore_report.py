"""The restored state of a run: the compatibility results of its start, and what its subtasks migrated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility
from statebackend.checkpoint.coordinator.acknowledgement import ReportValue
from statebackend.savepoint.html_pages import table_fragment
from statebackend.savepoint.sizes import counted
from statebackend.state.state_compatibility import SchemaReport, StateCompatibility
from statebackend.streaming.compatibility_check import COMPATIBILITY_COLUMNS, compatibility_rows
from statebackend.streaming.metrics import restore_metrics

__all__ = ["RestoreReport", "RestoredStateReport", "SubtaskReport", "restore_report_of"]

SubtaskReport = tuple[str, Mapping[str, ReportValue]]
"""The uid of an operator, and the restores that one of its subtasks reported
(`statebackend.streaming.metrics`)."""


@frozen
class RestoredStateReport:
    """One restored state: the compatibility result, and the migration over all subtasks.

    ``duration_s`` is that of the slowest subtask. ``is_operator_state`` is False for keyed state.
    """

    operator_uid: str
    compatibility: StateCompatibility
    entries_migrated: int
    duration_s: float
    is_operator_state: bool = False

    @property
    def state_name(self) -> str:
        """The name of the state."""
        return self.compatibility.state_name

    def issues(self, *rules: str) -> tuple[CompatibilityIssue, ...]:
        """The issues of these rules, such as ``field-renamed``."""
        return tuple(issue for issue in self.compatibility.issues if issue.rule in rules)

    @property
    def lost(self) -> tuple[CompatibilityIssue, ...]:
        """The data that the upgrade drops."""
        return tuple(issue for issue in self.compatibility.issues if issue.compatibility is FieldCompatibility.LOSSY)

    def __str__(self) -> str:
        migrated = f"{counted(self.entries_migrated, 'entry', 'entries')} migrated in {self.duration_s:.1f} s"
        return f"operator {self.operator_uid!r}, {self.compatibility}\n  {migrated}"


class RestoreReport(tuple[RestoredStateReport, ...]):
    """The reports of all restored states; as text, one after the other."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no state was restored"

    def _repr_html_(self) -> str:
        rows = (
            (*row, f"{one.entries_migrated:,}" if one.entries_migrated else None)
            for one in self
            for row in compatibility_rows(one.operator_uid, (one.compatibility,))
        )
        title = f"{counted(len(self), 'state')} restored" if self else "no state was restored"
        return table_fragment(title, (*COMPATIBILITY_COLUMNS, "entries migrated"), rows)


def restore_report_of(schema_reports: Mapping[str, SchemaReport], subtasks: Iterable[SubtaskReport]) -> RestoreReport:
    """Return the report of each restored state, from the compatibility results and the reports of subtasks so far."""
    measured: dict[str, list[Mapping[str, ReportValue]]] = {}
    for uid, report in subtasks:
        measured.setdefault(uid, []).append(report)
    reports: list[RestoredStateReport] = []
    for uid, schema_report in schema_reports.items():
        ours = measured.get(uid, [])
        reports += [_restored_state(uid, compatibility, ours, False) for compatibility in schema_report.compatibilities]
        reports += [
            _restored_state(uid, compatibility, ours, True)
            for compatibility in schema_report.operator_state_compatibilities
        ]
    return RestoreReport(reports)


def _restored_state(
    uid: str, compatibility: StateCompatibility, measured: Sequence[Mapping[str, ReportValue]], is_operator_state: bool
) -> RestoredStateReport:
    measure = restore_metrics(measured, compatibility.state_name, is_operator_state=is_operator_state)
    return RestoredStateReport(uid, compatibility, measure.entries_migrated, measure.duration_s, is_operator_state)
