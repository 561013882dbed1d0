"""The command `statebackend`: looking into checkpoints and savepoints, and writing them anew, from a terminal.

    main              all commands, and how each ends (`exit_statuses`)
    looking_commands  the commands that change nothing, as does size_command; export_command writes a file of its own
    rewrite_command   the command that writes another savepoint
    command_arguments what commands have in common; `opening` opens what they are asked about, and shows how far it is
    spooled_answers   answers that are too many for memory, until they are printed
    answers           what a command found, as plain data: the one source of what is printed, for people and as JSON
    differences       what differs between two of them, as such data
    telling           what of an answer is told to people, in which order
    printing          how that looks: tables on a terminal, plain lines elsewhere; `standard_streams` is where to

No command here needs the program of a job; those that do are in `streamjobs.command_line`.

Every command takes ``--json``, which prints its answer as one JSON document and nothing else. How a command ends:

| status | means |
|---|---|
| 0 | it was done; of `diff`, that there is no difference |
| 1 | of `diff`, that there are differences |
| 3 | what was asked for is not there, or cannot be read or done; the reason ends the error output |
| 64 | the command was used wrongly |
| 130 | it was interrupted, or asked to end (SIGTERM) |
"""

from __future__ import annotations

import importlib
import signal
import sys

from savepoints.command_line.standard_streams import prepare_standard_streams, status_once_written

__all__ = ["run"]


def run(main_module: str = "savepoints.command_line.main") -> None:
    """The command that a module has as ``main``; says how to install what it needs, where that is missing."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # Schedulers and containers end a process by it; what the command has begun is cleared away as on Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main = importlib.import_module(main_module).main
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(f"error: the command line needs {error.name}: pip install 'statebackend[cli]'")
    prepare_standard_streams()
    sys.exit(status_once_written(main()))
