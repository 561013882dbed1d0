"""The commands `check` and `lock`, which load the program of a job, and the text form of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeAlias

import typer
from attrs import evolve, frozen

from snapshots.compatibility import CompatibilityIssue, CompatibilityKind, FieldCompatibility
from statebackend.cli.job_loading import load_job
from statebackend.cli.printing import Printer
from statebackend.cli.streams import DIFFERENT, LOSES, REJECTED
from statebackend.cli.terminal import (
    AsJson,
    CheckpointId,
    Moved,
    ZooKeeper,
    moved_directories,
    print_answer,
    services_of,
)
from statebackend.savepoint.errors import StateLockError
from statebackend.savepoint.foreign.flink_files import FlinkFiles
from statebackend.savepoint.foreign.flink_import import without_sources
from statebackend.savepoint.lockfile import (
    is_lock_file,
    locks_of_history,
    read_lock,
    would_change,
    write_locks,
)
from statebackend.savepoint.restored_state import StoredSchemas
from statebackend.savepoint.state_location import find_state
from statebackend.state.priority_queue import TIMER_STATES, displayed_state
from statebackend.state.state_backend import state_backend
from statebackend.state.state_compatibility import SchemaReport, StateCompatibility
from statebackend.streaming.compatibility_check import Comparison, CompatibilityChecker, DescribedJob, Outcome

__all__ = [
    "AT_AN_IMPORT",
    "STATUSES",
    "Job",
    "LinePrinter",
    "comparison_answer",
    "print_comparison",
    "print_comparisons",
    "worst_outcome",
]


Answer = dict[str, Any]


class LinePrinter(Protocol):
    """Prints lines: a `Printer`, or the pytest plugin."""

    def line(self, text: str, style: str = "") -> None:
        """Print one line, in a colour if the output has colours."""


_OUTCOMES: Final[Mapping[str, str]] = {
    Outcome.RESTORES.name.lower(): "green",
    Outcome.LOSES.name.lower(): "yellow",
    Outcome.REJECTED_UNLESS_ALLOWED.name.lower(): "red",
    Outcome.REJECTED.name.lower(): "bold red",
}
_ISSUE_STYLES: Final[Mapping[FieldCompatibility, str]] = {
    FieldCompatibility.REJECT: "red",
    FieldCompatibility.LOSSY: "yellow",
}


def comparison_answer(comparison: Comparison) -> Answer:
    """Return a comparison as plain data."""
    return {
        "stored": comparison.stored,
        "outcome": comparison.outcome.name.lower(),
        "rejection": comparison.rejection,
        "operators": {uid: _report(one) for uid, one in comparison.reports.items()},
        "dropped_operators": list(comparison.dropped_operators),
    }


def worst_outcome(comparisons: Sequence[Comparison]) -> Outcome:
    """Return the worst outcome of several comparisons."""
    return max((one.outcome for one in comparisons), key=list(Outcome).index, default=Outcome.RESTORES)


@frozen
class LossAdvice:
    """What is printed for stored state that the job does not have: the outcome, and the end of the advice."""

    outcome: str
    rename: str
    for_state: str
    for_operator: str


_AT_A_START: Final = LossAdvice(
    Outcome.REJECTED_UNLESS_ALLOWED.value,
    "in a rewritten savepoint (Plan().{}, docs/changing-state.md)",
    "start with allow_non_restored_state=True, which keeps it as it is, unread",
    "start with allow_non_restored_state=True, which drops its state",
)
AT_AN_IMPORT: Final = LossAdvice(
    "is not imported, unless --allow-loss leaves the listed state out",
    "with a plan (--plan FILE, Plan().{}, docs/changing-state.md)",
    "pass --allow-loss, which leaves it out",
    "pass --allow-loss, which leaves its state out",
)


def print_comparisons(printer: LinePrinter, answers: Sequence[Answer], advice: LossAdvice = _AT_A_START) -> None:
    """Print a single comparison completely. Of several, print each outcome, and then the first of the worst ones."""
    if len(answers) == 1:
        print_comparison(printer, answers[0], advice)
        return
    for answer in answers:
        _print_outcome(printer, answer, advice)
    worst = max((Outcome[answer["outcome"].upper()] for answer in answers), key=list(Outcome).index)
    text = [answer for answer in answers if answer["outcome"] == worst.name.lower()]
    for answer in () if worst is Outcome.RESTORES else text[:1]:
        printer.line("")
        printer.line("the first of them:")
        print_comparison(printer, answer, advice)


def print_comparison(printer: LinePrinter, answer: Answer, advice: LossAdvice = _AT_A_START) -> None:
    """Print a comparison completely."""
    unregistered = (
        f"not registered by the job. Register it under its old name, or rename it "
        f"{advice.rename.format('rename_state')}; or {advice.for_state}"
    )
    timers = f"timers that the job does not have. Keep on_timer, and the kind of windows; or {advice.for_state}"
    dropped = (
        f"the job has no operator of this uid. Give an operator its old uid back, or the state the new one "
        f"{advice.rename.format('rename_operator')}; or {advice.for_operator}"
    )
    _print_outcome(printer, answer, advice)
    if answer["rejection"] is not None:
        printer.line(f"  {answer['rejection']}", "red")
    for uid, operator in answer["operators"].items():
        printer.line(f"operator {uid!r}: {operator['compatibility']}", "" if operator["is_compatible"] else "red")
        if operator["key"]["kind"] != CompatibilityKind.AS_IS.name:
            _print_state(printer, "state", "(key)", operator["key"])
        for name, state in operator["states"].items():
            _print_state(printer, "state", displayed_state(name), state)
        for name, state in operator["operator_states"].items():
            _print_state(printer, "operator state", name, state)
        for name in operator["unregistered"]:
            printer.line(
                f"  state {displayed_state(name)!r}: {timers if name.startswith(TIMER_STATES) else unregistered}",
                "yellow",
            )
        for name in operator["unregistered_operator_states"]:
            printer.line(f"  operator state {name!r}: {unregistered}", "yellow")
    for uid in answer["dropped_operators"]:
        printer.line(f"operator {uid!r}: {dropped}", "yellow")


def _print_outcome(printer: LinePrinter, answer: Answer, advice: LossAdvice) -> None:
    outcome = Outcome[answer["outcome"].upper()]
    text = advice.outcome if outcome is Outcome.REJECTED_UNLESS_ALLOWED else outcome.value
    printer.line(f"{answer['stored']}: {text}", _OUTCOMES[answer["outcome"]])


def _print_state(printer: LinePrinter, what: str, name: str, state: Answer) -> None:
    printer.line(f"  {what} {name!r}: {CompatibilityKind[state['kind']].label}")
    for one in state["issues"]:
        issue = CompatibilityIssue.from_dict(one)
        printer.line(f"    {issue}", _ISSUE_STYLES.get(issue.compatibility, ""))


def _report(report: SchemaReport) -> Answer:
    return {
        "compatibility": "compatible" if report.is_compatible else "incompatible",
        "is_compatible": report.is_compatible,
        "key": _state(report.key_compatibility),
        "states": {one.state_name: _state(one) for one in report.compatibilities},
        "operator_states": {one.state_name: _state(one) for one in report.operator_state_compatibilities},
        "unregistered": list(report.unregistered),
        "unregistered_operator_states": list(report.unregistered_operator_state),
    }


def _state(compatibility: StateCompatibility) -> Answer:
    return {"kind": compatibility.kind.name, "issues": [one.to_dict() for one in compatibility.issues]}


Job: TypeAlias = Annotated[
    str,
    typer.Option(
        "--job", metavar="MODULE:FACTORY", help="The function that builds the job, such as flights.job:build."
    ),
]

STATUSES: Final = {
    Outcome.RESTORES: 0,
    Outcome.LOSES: LOSES,
    Outcome.REJECTED_UNLESS_ALLOWED: REJECTED,
    Outcome.REJECTED: REJECTED,
}
"""The exit status of each outcome that is not accepted."""


def check(
    job: Job,
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="A lockfile, a savepoint, a checkpoint or a job directory.")
    ] = None,
    lock: Annotated[str | None, typer.Option("--lock", metavar="FILE", help="A lockfile, in addition to PATH.")] = None,
    history: Annotated[
        str | None,
        typer.Option("--history", metavar="DIR", help="A directory of lockfiles, checked from the newest on."),
    ] = None,
    checkpoint: CheckpointId = None,
    zookeeper: ZooKeeper = None,
    moved: Moved = None,
    backend: Annotated[str | None, typer.Option("--backend", help="The backend to restore to, if it changes.")] = None,
    parallelism: Annotated[
        int | None, typer.Option("--parallelism", min=1, help="The parallelism to restore to, if it changes.")
    ] = None,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Exit with 0 also if fields, states or operators are dropped.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether a job restores stored state, as its start would. Changes nothing."""
    if path is None and lock is None and history is None:
        raise typer.BadParameter("pass what to compare the job with: PATH, --lock FILE or --history DIR")
    if (path is None or is_lock_file(path)) and any(
        one is not None for one in (checkpoint, zookeeper, backend, parallelism)
    ):
        raise typer.BadParameter(
            "--checkpoint, --zookeeper, --backend and --parallelism are for a PATH of stored state, not for lockfiles"
        )
    described = load_job(job)
    comparisons: list[Comparison] = []
    advice = _AT_A_START
    if path is not None:
        compared = described
        if is_lock_file(path):
            stored: StoredSchemas = read_lock(path)
        else:
            stored = restored = find_state(path, checkpoint, services_of(zookeeper), moved_directories(moved))
            if isinstance(restored.file_system, FlinkFiles):
                # The import leaves sources out, and assigns the keys to the key groups of the job.
                stored, _ = without_sources(restored, described.operators)
                compared = evolve(described, max_parallelism=stored.max_parallelism)
                advice = AT_AN_IMPORT
        other = None if backend is None else state_backend(backend)
        comparison = CompatibilityChecker(compared, stored).compare(backend=other, parallelism=parallelism)
        if comparison.stored == str(Path(path).absolute()):
            # A path is printed as it was given.
            comparison = evolve(comparison, stored=path)
        comparisons.append(comparison)
    locks = [] if lock is None else [read_lock(lock)]
    if history is not None:
        locks += [one for _, one in locks_of_history(history)]
    comparisons += [CompatibilityChecker(described, one).compare() for one in locks]
    print_answer(as_json, [comparison_answer(one) for one in comparisons], partial(print_comparisons, advice=advice))
    outcome = worst_outcome(comparisons)
    if not outcome.is_accepted(allow_loss):
        raise typer.Exit(STATUSES[outcome])


def lock(
    job: Job,
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="The lockfile to write.")] = "state.lock",
    history: Annotated[
        str | None, typer.Option("--history", metavar="DIR", help="A directory that keeps all lockfiles of the job.")
    ] = None,
    only_check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if the file is not the lockfile of the job.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the schema lockfile of a job, and print what changed. `check` compares later programs with it."""
    described = load_job(job)
    made = described.lock()
    answer: dict[str, Any] = {"path": output, "operators": list(made.operator_uids)}
    answer["former"] = _former(described, output)
    if only_check:
        answer["changed"] = would_change(output, made)
    else:
        answer["changed"], added = write_locks(output, history, made)
        answer["added_to_history"] = None if added is None else str(added)
    print_answer(as_json, answer, _print_would_change if only_check else _print_lock)
    if only_check and answer["changed"]:
        raise typer.Exit(DIFFERENT)


def _former(job: DescribedJob, path: str) -> dict[str, Any] | None:
    """Compare the job with the existing lockfile; None if there is no readable one."""
    if not is_lock_file(path):
        return None
    try:
        return comparison_answer(CompatibilityChecker(job, read_lock(path)).compare())
    except StateLockError:
        return None


def _print_lock(printer: Printer, answer: dict[str, Any]) -> None:
    printer.line(f"{answer['path']}: {'written' if answer['changed'] else 'unchanged'}")
    if answer["added_to_history"] is not None:
        printer.line(f"{answer['added_to_history']}: added")
    _print_former(printer, answer)


def _print_would_change(printer: Printer, answer: dict[str, Any]) -> None:
    if answer["changed"]:
        printer.line(f"{answer['path']}: outdated; run statebackend lock without --check to write it", "red")
    else:
        printer.line(f"{answer['path']}: up to date", "green")
    _print_former(printer, answer)


def _print_former(printer: Printer, answer: dict[str, Any]) -> None:
    if answer["changed"] and answer["former"] is not None:
        printer.line("compatibility of the job with the previous lockfile:")
        print_comparison(printer, answer["former"])
