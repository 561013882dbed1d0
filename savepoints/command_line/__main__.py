"""The command as ``python -m savepoints.command_line``, where no script was installed."""

from savepoints.command_line import run

run()
