"""What became of the state that a run began from: the verdicts of its start, and what its subtasks did about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from snapshots.compatibility import FieldVerdict, Finding
from statebackend.checkpoint.coordinator.acknowledgement import ReportValue
from statebackend.savepoint.html_pages import table_fragment
from statebackend.savepoint.sizes import counted
from statebackend.state.state_compatibility import SchemaReport, StateVerdict
from statebackend.streaming.runtime.job_start import VERDICT_COLUMNS, verdict_rows
from statebackend.streaming.runtime.metrics import measure_of

__all__ = ["RestoreReport", "RestoredStateReport", "SubtaskReport", "restore_report_of"]

SubtaskReport = tuple[str, Mapping[str, ReportValue]]
"""The uid of an operator, and what one of its subtasks says of its restores
(`statebackend.streaming.runtime.metrics`)."""


@frozen
class RestoredStateReport:
    """What became of one restored state: the verdict, and what its migration did over all subtasks.

    ``duration_s`` is that of the slowest subtask. ``is_operator_state`` tells operator state from keyed state.
    """

    operator_uid: str
    verdict: StateVerdict
    entries_migrated: int
    duration_s: float
    is_operator_state: bool = False

    @property
    def state_name(self) -> str:
        """The name of the state."""
        return self.verdict.state_name

    def findings(self, *rules: str) -> tuple[Finding, ...]:
        """The findings of these rules, such as ``field-renamed``."""
        return tuple(finding for finding in self.verdict.findings if finding.rule in rules)

    @property
    def lost(self) -> tuple[Finding, ...]:
        """What the upgrade drops."""
        return tuple(finding for finding in self.verdict.findings if finding.verdict is FieldVerdict.LOSSY)

    def __str__(self) -> str:
        migrated = f"{counted(self.entries_migrated, 'entry', 'entries')} migrated in {self.duration_s:.1f} s"
        return f"operator {self.operator_uid!r}, {self.verdict}\n  {migrated}"


class RestoreReport(tuple[RestoredStateReport, ...]):
    """The reports of all restored states; as text, one after the other."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no state was restored"

    def _repr_html_(self) -> str:
        rows = (
            (*row, f"{one.entries_migrated:,}" if one.entries_migrated else None)
            for one in self
            for row in verdict_rows(one.operator_uid, (one.verdict,))
        )
        title = f"{counted(len(self), 'state')} restored" if self else "no state was restored"
        return table_fragment(title, (*VERDICT_COLUMNS, "entries migrated"), rows)


def restore_report_of(schema_reports: Mapping[str, SchemaReport], subtasks: Iterable[SubtaskReport]) -> RestoreReport:
    """What became of each restored state, by the verdicts on it and what the subtasks have said so far."""
    measured: dict[str, list[Mapping[str, ReportValue]]] = {}
    for uid, report in subtasks:
        measured.setdefault(uid, []).append(report)
    reports: list[RestoredStateReport] = []
    for uid, schema_report in schema_reports.items():
        ours = measured.get(uid, [])
        reports += [_restored_state(uid, verdict, ours, False) for verdict in schema_report.verdicts]
        reports += [_restored_state(uid, verdict, ours, True) for verdict in schema_report.operator_state_verdicts]
    return RestoreReport(reports)


def _restored_state(
    uid: str, verdict: StateVerdict, measured: Sequence[Mapping[str, ReportValue]], is_operator_state: bool
) -> RestoredStateReport:
    measure = measure_of(measured, verdict.state_name, is_operator_state=is_operator_state)
    return RestoredStateReport(uid, verdict, measure.entries_migrated, measure.duration_s, is_operator_state)
