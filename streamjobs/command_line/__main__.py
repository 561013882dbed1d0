"""The command as ``python -m streamjobs.command_line``, where no script was installed."""

from streamjobs.command_line import run

run()
