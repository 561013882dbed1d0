"""Runs the command line as ``python -m statebackend.cli``."""

from statebackend.cli import run

run()
