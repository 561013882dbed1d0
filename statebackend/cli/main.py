"""The table of commands and their dispatch with `typer`.

A command is a function in one of the modules of this package: `typer` makes a command from its name, parameters, types
and docstring. A new command needs a line in `COMMANDS`. Only the command that runs is imported; the others are listed
by their line in the table.
"""

from __future__ import annotations

import importlib
import keyword
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import typer

from statebackend.cli.streams import INTERRUPTED, MISUSED, NOT_READABLE

_UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""The error of `typer` for wrong usage. It is in `click` or in a copy of `click`, depending on the release."""

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "inspect": ("inspect_commands", "Describe a checkpoint or savepoint."),
    "show": ("inspect_commands", "Print the entries of a state."),
    "schema": ("inspect_commands", "Print the types of all states."),
    "diff": ("inspect_commands", "Compare two checkpoints or savepoints."),
    "export": ("export_command", "Write a state to Parquet, Arrow, CSV or JSON."),
    "du": ("size_commands", "Show sizes by operator, state and file."),
    "rewrite": ("rewrite_commands", "Write a changed copy of a savepoint."),
    "report": ("size_commands", "Write an HTML report of checkpoints and sizes."),
    "check": ("job_commands", "Check whether a job restores stored state."),
    "lock": ("job_commands", "Write the schema lockfile of a job."),
    "gc": ("maintenance_commands", "Delete files that no checkpoint needs."),
    "roll-back": ("maintenance_commands", "Roll a job back to an older checkpoint."),
    "ui": ("ui_command", "Serve a read-only page of jobs, savepoints and their state."),
    "migrate": ("rewrite_commands", "Write a savepoint in the types of a program."),
    "import": ("foreign_commands", "Convert state of Flink or Spark to a savepoint."),
    "export-flink": ("foreign_commands", "Write a Flink savepoint from stored state."),
}
"""For each command its module and its line in ``--help``."""


_OUT_OF_MEMORY: Final = (
    "the command needs more memory than this process may use. A value is read whole, with the other values of its "
    "batch: raise the limit of memory, or use `inspect --no-counts` and `du`, which read no values"
)


def load_command(name: str) -> Callable[..., None]:
    """Import the function of a command."""
    module = importlib.import_module(f"statebackend.cli.{COMMANDS[name][0]}")
    function_name = f"{name}_" if keyword.iskeyword(name) else name.replace("-", "_")
    function: Callable[..., None] = getattr(module, function_name)
    return function


def main(arguments: Sequence[str] | None = None, *, app: typer.Typer | None = None) -> int:
    """Run a command and return its exit status. Only the answer of the command goes to stdout.

    Args:
        arguments: The arguments after the program's name; by default those of this process.
        app: The application to run instead of `COMMANDS`.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status = (app or _application(given))(args=given, standalone_mode=False)
    except _UsageError as error:
        print(f"error: {_usage_message(error)}; see {_command_of(error)} --help", file=sys.stderr)
        return MISUSED
    except (typer.Abort, KeyboardInterrupt) as error:
        # `typer` takes any EOFError for the end of its input, also one about truncated state.
        if isinstance(error.__cause__, EOFError):
            return _failed(error.__cause__)
        status = INTERRUPTED
    except MemoryError:
        print(f"error: {_OUT_OF_MEMORY}", file=sys.stderr)
        return NOT_READABLE
    except Exception as error:
        return _failed(error)
    if status == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return status if isinstance(status, int) else 0


def _failed(error: Exception) -> int:
    """Print an error that a user can expect, and return the status. Raises any other error."""
    from statebackend.cli.printing import indented_lines
    from statebackend.streaming.errors import expected_message

    message = expected_message(error)
    if message is None:
        raise error
    print(f"error: {indented_lines(message)}", file=sys.stderr)
    return NOT_READABLE


def _application(given: Sequence[str]) -> typer.Typer:
    app = typer.Typer(
        help="Read, compare, rewrite and check the checkpoints and savepoints of stateful jobs.",
        no_args_is_help=True,
        add_completion=False,
        # Help without colours needs no rich, whose import takes longer than all else here.
        rich_markup_mode=None,
    )
    wanted = next((one for one in given if not one.startswith("-")), None)
    for name, (_, summary) in COMMANDS.items():
        app.command(name, short_help=summary)(load_command(name) if name == wanted else _not_loaded)
    return app


def _not_loaded() -> None:
    """Represent a command in ``--help`` without importing it."""


def _usage_message(error: Exception) -> str:
    from statebackend.cli.printing import indented_lines

    # The text of click has line ends and tabs in lists of choices.
    message = str(getattr(error, "format_message", error.__str__)())
    return indented_lines(" ".join(message.split()).rstrip("."))


def _command_of(error: Exception) -> str:
    """Return the command of a usage error, as the user types it."""
    context: Any = getattr(error, "ctx", None)
    names: list[str] = []
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return " ".join(["statebackend", *names])
