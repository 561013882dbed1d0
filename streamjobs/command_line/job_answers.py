"""What `check` and `lock` found, as plain data, and told to people: refusals first to the eye, with what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from snapshots.compatibility import CompatibilityKind, FieldVerdict, Finding
from statebackend.keyed.state_verdicts import SchemaReport, StateVerdict
from streamjobs.command_line.comparisons import Comparison, Outcome

__all__ = ["LinePrinter", "comparison_answer", "tell_comparison", "tell_comparisons", "worst_outcome"]

Answer = dict[str, Any]


class LinePrinter(Protocol):
    """What prints line by line: `savepoints.command_line.printing`, or a test that fails."""

    def line(self, text: str, style: str = "") -> None:
        """One line, in a colour where there are colours."""


_OUTCOMES: Final[Mapping[str, str]] = {
    Outcome.RESTORES.name.lower(): "green",
    Outcome.LOSES.name.lower(): "yellow",
    Outcome.REFUSED_UNLESS_ALLOWED.name.lower(): "red",
    Outcome.REFUSED.name.lower(): "bold red",
}
_VERDICTS: Final[Mapping[str, str]] = {FieldVerdict.REFUSE.name: "red", FieldVerdict.LOSSY.name: "yellow"}


def comparison_answer(comparison: Comparison) -> Answer:
    """What was found of a job and something stored."""
    takeover = comparison.takeover
    return {
        "stored": comparison.stored,
        "outcome": comparison.outcome.name.lower(),
        "refusal": comparison.refusal,
        "operators": {} if takeover is None else {uid: _report(one) for uid, one in takeover.reports.items()},
        "dropped_operators": [] if takeover is None else list(takeover.dropped_operators),
    }


def worst_outcome(comparisons: Sequence[Comparison]) -> Outcome:
    """Of several comparisons that which ends worst."""
    return max((one.outcome for one in comparisons), key=list(Outcome).index, default=Outcome.RESTORES)


def tell_comparisons(printer: LinePrinter, answers: Sequence[Answer]) -> None:
    """Of several how each ends, and the first of those that end worst; of one everything."""
    if len(answers) == 1:
        tell_comparison(printer, answers[0])
        return
    for answer in answers:
        _tell_outcome(printer, answer)
    worst = max((Outcome[answer["outcome"].upper()] for answer in answers), key=list(Outcome).index)
    told = [answer for answer in answers if answer["outcome"] == worst.name.lower()]
    for answer in () if worst is Outcome.RESTORES else told[:1]:
        printer.line("")
        printer.line("the first of them:")
        tell_comparison(printer, answer)


def tell_comparison(printer: LinePrinter, answer: Answer) -> None:
    """Everything that was found, in the words of `env.check`."""
    _tell_outcome(printer, answer)
    if answer["refusal"] is not None:
        printer.line(f"  {answer['refusal']}", "red")
    for uid, operator in answer["operators"].items():
        printer.line(f"operator {uid!r}: {operator['verdict']}", "" if operator["is_compatible"] else "red")
        if operator["key"]["kind"] != CompatibilityKind.AS_IS.name:
            _tell_state(printer, "state", "(key)", operator["key"])
        for name, state in operator["states"].items():
            _tell_state(printer, "state", name, state)
        for name, state in operator["operator_states"].items():
            _tell_state(printer, "operator state", name, state)
        for name in operator["unregistered"]:
            printer.line(f"  state {name!r}: {_UNREGISTERED}", "yellow")
        for name in operator["unregistered_operator_states"]:
            printer.line(f"  operator state {name!r}: {_UNREGISTERED}", "yellow")
    for uid in answer["dropped_operators"]:
        printer.line(f"operator {uid!r}: {_DROPPED}", "yellow")


_UNREGISTERED: Final = (
    "nobody registers it. Register it under its old name, or give it its new one in a savepoint that is written anew "
    "(Plan().rename_state, docs/changing-state.md); or start with allow_non_restored_state=True, which keeps it as it "
    "is, unread"
)
_DROPPED: Final = (
    "the job has no operator of this uid. Give an operator its old uid back, or the state the new one "
    "(Plan().rename_operator, docs/changing-state.md); or start with allow_non_restored_state=True, which drops its "
    "state"
)


def _tell_outcome(printer: LinePrinter, answer: Answer) -> None:
    outcome = answer["outcome"]
    printer.line(f"{answer['stored']}: {Outcome[outcome.upper()].value}", _OUTCOMES[outcome])


def _tell_state(printer: LinePrinter, what: str, name: str, state: Answer) -> None:
    printer.line(f"  {what} {name!r}: {CompatibilityKind[state['kind']].label}")
    for one in state["findings"]:
        printer.line(f"    {Finding.from_dict(one)}", _VERDICTS.get(one["verdict"], ""))


def _report(report: SchemaReport) -> Answer:
    return {
        "verdict": "compatible" if report.is_compatible else "incompatible",
        "is_compatible": report.is_compatible,
        "key": _state(report.key_verdict),
        "states": {one.state_name: _state(one) for one in report.verdicts},
        "operator_states": {one.state_name: _state(one) for one in report.operator_state_verdicts},
        "unregistered": list(report.unregistered),
        "unregistered_operator_states": list(report.unregistered_operator_state),
    }


def _state(verdict: StateVerdict) -> Answer:
    return {"kind": verdict.kind.name, "findings": [one.to_dict() for one in verdict.findings]}
