"""The command `statebackend`, by `typer`; see the room for how each command ends.

A group of commands is a file of its own with a table of functions, each of which `typer` makes a command of, by the
names, types and docstrings of the function. A group that is not in `COMMANDS` does not exist.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

import typer

from snapshots.errors import StateFormatError, printable
from statebackend.checkpoint.errors import CheckpointError
from statebackend.cli.export_command import EXPORT_COMMANDS
from statebackend.cli.inspect_commands import LOOKING_COMMANDS
from statebackend.cli.printing import shown_lines
from statebackend.cli.report_command import REPORT_COMMANDS
from statebackend.cli.rewrite_command import REWRITE_COMMANDS
from statebackend.cli.size_command import SIZE_COMMANDS
from statebackend.cli.terminal import INTERRUPTED, MISUSED, NOT_READABLE
from statebackend.state.errors import StateBackendError
from statebackend.state.key_groups import KeyHashError

__all__ = ["COMMANDS", "FAILURES", "app", "app_of", "main"]

UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""What `typer` raises for wrong use: of its own copy of `click`, or of `click` itself, as its release has it."""

COMMANDS: Final[Sequence[Callable[..., None]]] = (
    *LOOKING_COMMANDS,
    *EXPORT_COMMANDS,
    *SIZE_COMMANDS,
    *REWRITE_COMMANDS,
    *REPORT_COMMANDS,
)

Failures = tuple[type[Exception], ...]

FAILURES: Final[Failures] = (CheckpointError, StateBackendError, StateFormatError, KeyHashError, OSError)
"""What is told in a line, because its message says what to do."""


def app_of(commands: Sequence[Callable[..., None]]) -> typer.Typer:
    """The command with these subcommands."""
    made = typer.Typer(
        help="Look into the checkpoints and savepoints of jobs with state, and write them again.",
        no_args_is_help=True,
        add_completion=False,
    )
    for command in commands:
        made.command()(command)
    return made


app = app_of(COMMANDS)


def main(arguments: Sequence[str] | None = None, *, of: typer.Typer = app, failures: Failures = FAILURES) -> int:
    """Runs the command; returns how it ended. Nothing but the commands' own output goes to the standard output."""
    try:
        status = of(args=None if arguments is None else list(arguments), standalone_mode=False)
    except UsageError as error:
        print(f"error: {shown_lines(_said(error))}; see {_command_of(error)} --help", file=sys.stderr)
        return MISUSED
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except failures as error:
        print(f"error: {shown_lines(_told(error))}", file=sys.stderr)
        return NOT_READABLE
    if status == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return status if isinstance(status, int) else 0


def _said(error: Exception) -> str:
    # Its text is made of the names of parameters and the reason, with line ends and tabs where there is a choice.
    said = str(getattr(error, "format_message", error.__str__)())
    return " ".join(said.split()).rstrip(".")


def _command_of(error: Exception) -> str:
    """The command that was used wrongly, as it is called; that of another name is none of ours."""
    context = getattr(error, "ctx", None)
    names: list[str] = []
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return " ".join(["statebackend", *names])


def _told(error: Exception) -> str:
    # Of what the system says the number means nothing to most people, and the path comes first to mind.
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{printable(str(error.filename))}: {error.strerror}"
    return str(error)
