"""The `statebackend` command.

`main` has the commands that read and rewrite state; `all_commands` adds those that need the program of a job.
Every command takes ``--json``. Exit status: 0 done (`diff`: no difference), 1 `diff`: differences, 3 not found or not
readable, 64 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import importlib
import signal
import sys

from statebackend.cli.terminal import prepare_standard_streams, status_once_written

__all__ = ["run"]


def run(main_module: str = "statebackend.cli.all_commands") -> None:
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
