"""The command `statebackend`: looking into checkpoints and savepoints from a terminal or a script.

    main           what can be asked, and how each command ends
    answers        what a command found, as plain data: the one source of what is printed, for people and as JSON
    printing       that data for people: tables on a terminal, plain lines elsewhere

Every command takes ``--json``, which prints its answer as one JSON document and nothing else. How a command ends:

| status | means |
|---|---|
| 0 | it was done; of `diff`, that there is no difference |
| 1 | of `diff`, that there are differences |
| 3 | what was asked for is not there, or cannot be read; the reason is the last line of the error output |
| 64 | the command was used wrongly |
| 130 | it was interrupted |
"""

from __future__ import annotations

import sys

__all__ = ["run"]


def run() -> None:
    """The command; says how to install what it needs, where that is missing."""
    try:
        from savepoints.command_line.main import main
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(f"error: the command line needs {error.name}: pip install 'statebackend[cli]'")
    sys.exit(main())
