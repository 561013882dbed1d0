"""What `check` gives: the verdicts on the state of each operator, for a program, as text and for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from savepoints.pages.fragments import table_fragment
from statebackend.keyed.state_verdicts import SchemaReport, StateVerdict

__all__ = ["VERDICT_COLUMNS", "SchemaReports", "verdict_rows"]


class SchemaReports(dict[str, SchemaReport]):
    """The reports by operator uid; a dict, which is empty where nothing is restored."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.values())) or "no state is restored"

    def _repr_html_(self) -> str:
        is_compatible = all(report.is_compatible for report in self.values())
        title = "no state is restored" if not self else "compatible" if is_compatible else "incompatible"
        return table_fragment(title, VERDICT_COLUMNS, self._rows())

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for uid, report in self.items():
            yield from verdict_rows(uid, (report.key_verdict, *report.verdicts, *report.operator_state_verdicts))
            for name in (*report.unregistered, *report.unregistered_operator_state):
                yield uid, name, "not registered, kept as it is", None, None, None


VERDICT_COLUMNS: Final = ("operator", "state", "verdict", "at", "why", "what to do")


def verdict_rows(uid: str, verdicts: Iterable[StateVerdict]) -> Iterator[tuple[object, ...]]:
    """A row for each finding, or for a verdict without any."""
    for verdict in verdicts:
        name, kind = verdict.state_name, verdict.kind.label
        if not verdict.findings:
            yield uid, name, kind, None, None, None
        for finding in verdict.findings:
            yield uid, name, kind, finding.path, finding.reason, finding.fix
