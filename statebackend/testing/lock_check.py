"""Checks a job against its schema lockfile. A failure describes the differences and how to accept them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import frozen

from statebackend.cli.job_commands import comparison_answer, print_comparison
from statebackend.cli.job_loading import JobLoadingError, described_job, load_job
from statebackend.savepoint.errors import StateLockError
from statebackend.savepoint.lockfile import is_lock_file, locks_of_history, read_lock, would_change, write_locks
from statebackend.streaming.compatibility_check import Comparison, CompatibilityChecker, DescribedJob
from statebackend.streaming.errors import JobDefinitionError

__all__ = ["LockCheck"]


@frozen
class LockCheck:
    """A job, the path of its schema lockfile, and the directory of earlier lockfiles, if any."""

    given: Any
    path: Path
    history: Path | None = None
    allow_loss: bool = False

    def failure(self, accept: str) -> str | None:
        """Return the message of a failure, or None. ``accept`` is the command that accepts the change."""
        try:
            job = self._job()
            if not is_lock_file(self.path):
                return f"no lockfile at {self.path}; write it: {accept}"
            locks = [read_lock(self.path)]
            if self.history is not None:
                locks += [lock for _, lock in locks_of_history(self.history)]
            comparisons = [CompatibilityChecker(job, lock).compare() for lock in locks]
            failed = next((one for one in comparisons if not one.outcome.is_accepted(self.allow_loss)), None)
            if failed is not None:
                return f"{_format(failed)}\nif the change is intended, accept it: {accept}"
            if would_change(self.path, job.lock()):
                return (
                    f"{_format(comparisons[0])}\nthe job can restore this state, but {self.path} is outdated: it must "
                    f"describe the deployed state, because later changes are compared with it. Update it: {accept}"
                )
        except (StateLockError, JobLoadingError, JobDefinitionError) as error:
            return str(error)
        return None

    def update(self) -> str | None:
        """Write the lockfile and add it to the history. Returns the message of a failure, or None."""
        try:
            write_locks(self.path, self.history, self._job().lock())
        except (StateLockError, JobLoadingError, JobDefinitionError) as error:
            return str(error)
        return None

    def _job(self) -> DescribedJob:
        if isinstance(self.given, str):
            return load_job(self.given)
        return described_job(self.given, getattr(self.given, "__qualname__", type(self.given).__name__))


class _Text:
    """Collects the lines of the report, without colours."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str, style: str = "") -> None:
        self.lines.append(text)


def _format(comparison: Comparison) -> str:
    text = _Text()
    print_comparison(text, comparison_answer(comparison))
    return "\n".join(text.lines)
