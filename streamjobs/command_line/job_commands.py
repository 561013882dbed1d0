"""The commands that need the program of a job: what it would restore, and the lock file of its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias

import typer

from savepoints.command_line.command_arguments import AsJson, CheckpointId, ZooKeeper, services_of
from savepoints.command_line.exit_statuses import DIFFERENT, LOSES, REFUSED
from savepoints.command_line.printing import Printer
from savepoints.command_line.telling import tell
from savepoints.errors import StateLockError
from savepoints.state_lock.lock_files import is_lock_file, read_lock, would_change, write_locks
from streamjobs.command_line.comparisons import (
    Comparison,
    Outcome,
    compared_with,
    compared_with_history,
    compared_with_lock,
)
from streamjobs.command_line.job_answers import comparison_answer, tell_comparison, tell_comparisons, worst_outcome
from streamjobs.command_line.job_loading import load_job
from streamjobs.runtime.described_job import DescribedJob, lock_of

__all__ = ["JOB_COMMANDS", "STATUSES", "Job"]

Job: TypeAlias = Annotated[
    str, typer.Option("--job", metavar="MODULE:FACTORY", help="What builds the job, as flights.job:build.")
]

STATUSES: Final = {
    Outcome.RESTORES: 0,
    Outcome.LOSES: LOSES,
    Outcome.REFUSED_UNLESS_ALLOWED: REFUSED,
    Outcome.REFUSED: REFUSED,
}
"""How a command ends that found this, where it is not accepted."""


def check(
    job: Job,
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="A lock file, a savepoint, a checkpoint or a job directory.")
    ] = None,
    lock: Annotated[str | None, typer.Option("--lock", metavar="FILE", help="A lock file, as PATH may be.")] = None,
    history: Annotated[
        str | None, typer.Option("--history", metavar="DIR", help="Every lock that there has been, the newest first.")
    ] = None,
    checkpoint: CheckpointId = None,
    zookeeper: ZooKeeper = None,
    backend: Annotated[
        str | None, typer.Option("--backend", help="The backend to restore to, where that is another.")
    ] = None,
    parallelism: Annotated[
        int | None, typer.Option("--parallelism", min=1, help="The parallelism to restore to, where that is another.")
    ] = None,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="End with 0 also if fields, states or operators are left behind.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Whether a job restores what is stored: the verdicts of a start, which touch nothing."""
    if path is None and lock is None and history is None:
        raise typer.BadParameter("name what to compare the job with: PATH, --lock FILE or --history DIR")
    if (path is None or is_lock_file(path)) and any(
        one is not None for one in (checkpoint, zookeeper, backend, parallelism)
    ):
        raise typer.BadParameter(
            "--checkpoint, --zookeeper, --backend and --parallelism are for a PATH of stored state, not for locks"
        )
    described = load_job(job)
    comparisons: list[Comparison] = []
    if path is not None:
        comparisons.append(
            compared_with(
                described,
                path,
                checkpoint_id=checkpoint,
                backend=backend,
                parallelism=parallelism,
                services=services_of(zookeeper),
            )
        )
    if lock is not None:
        comparisons.append(compared_with_lock(described, read_lock(lock)))
    if history is not None:
        comparisons += compared_with_history(described, history)
    tell(as_json, [comparison_answer(one) for one in comparisons], tell_comparisons)
    outcome = worst_outcome(comparisons)
    if not outcome.is_accepted(allow_loss):
        raise typer.Exit(STATUSES[outcome])


def lock(
    job: Job,
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="The lock file to write.")] = "state.lock",
    history: Annotated[
        str | None, typer.Option("--history", metavar="DIR", help="Where every lock that there has been is kept.")
    ] = None,
    only_check: Annotated[
        bool, typer.Option("--check", help="Write nothing; end with 1 if the file is not that of the job.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Writes the lock file of a job's state, which `check` compares later programs with; tells what has changed."""
    described = load_job(job)
    made = lock_of(described)
    answer: dict[str, Any] = {"path": output, "operators": list(made.operator_uids)}
    answer["former"] = _former(described, output)
    if only_check:
        answer["changed"] = would_change(output, made)
    else:
        answer["changed"], added = write_locks(output, history, made)
        answer["added_to_history"] = None if added is None else str(added)
    tell(as_json, answer, _tell_would_change if only_check else _tell_lock)
    if only_check and answer["changed"]:
        raise typer.Exit(DIFFERENT)


JOB_COMMANDS: Final[tuple[Callable[..., None], ...]] = (check, lock)


def _former(job: DescribedJob, path: str) -> dict[str, Any] | None:
    """What the job makes of the lock that is there; None if there is none that can be read, which `lock` puts right."""
    if not is_lock_file(path):
        return None
    try:
        return comparison_answer(compared_with_lock(job, read_lock(path)))
    except StateLockError:
        return None


def _tell_lock(printer: Printer, answer: dict[str, Any]) -> None:
    printer.line(f"{answer['path']}: {'written' if answer['changed'] else 'as it was'}")
    if answer["added_to_history"] is not None:
        printer.line(f"{answer['added_to_history']}: added")
    _tell_former(printer, answer)


def _tell_would_change(printer: Printer, answer: dict[str, Any]) -> None:
    if answer["changed"]:
        printer.line(f"{answer['path']}: not that of the job; run statebackend lock without --check to write it", "red")
    else:
        printer.line(f"{answer['path']}: that of the job", "green")
    _tell_former(printer, answer)


def _tell_former(printer: Printer, answer: dict[str, Any]) -> None:
    if answer["changed"] and answer["former"] is not None:
        printer.line("of what was written before, this job takes over:")
        tell_comparison(printer, answer["former"])
