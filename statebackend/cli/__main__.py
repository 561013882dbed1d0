"""The command as ``python -m statebackend.cli``, where no script was installed."""

from statebackend.cli import run

run()
