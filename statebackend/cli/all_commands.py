"""All commands of `statebackend`, in one application."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from statebackend.cli import main as lower
from statebackend.cli.job_commands import JOB_COMMANDS
from statebackend.cli.maintenance_commands import MAINTENANCE_COMMANDS
from statebackend.cli.migrate_command import MIGRATE_COMMANDS
from statebackend.streaming.errors import StreamJobError

__all__ = ["COMMANDS", "main"]

COMMANDS: Final[Sequence[Callable[..., None]]] = (
    *lower.COMMANDS,
    *JOB_COMMANDS,
    *MAINTENANCE_COMMANDS,
    *MIGRATE_COMMANDS,
)

_APP: Final = lower.app_of(COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns how it ended. Nothing but the commands' own output goes to the standard output."""
    return lower.main(arguments, of=_APP, failures=(*lower.FAILURES, StreamJobError))
