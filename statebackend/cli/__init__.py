"""The command line `statebackend`.

`main` holds the table of commands. Only the module of the command that runs is imported, so that `--help` starts fast.
Every command accepts ``--json``. Exit statuses are in `streams`.
"""

from __future__ import annotations

import atexit
import importlib
import signal
import sys

from statebackend.cli.streams import flushed_status, prepare_standard_streams

__all__ = ["run"]


def run(main_module: str = "statebackend.cli.main") -> None:
    """Run the function ``main`` of a module as a console script and exit with the status that it returns."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # Schedulers and containers send SIGTERM. Clean up as on Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main = importlib.import_module(main_module).main
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(f"error: the command line needs {error.name}: pip install 'statebackend[cli]'")
    prepare_standard_streams()
    status = flushed_status(main())
    # The command is complete. A signal during the exit of the interpreter must not report it as interrupted.
    atexit.register(_ignore_signals)
    sys.exit(status)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
