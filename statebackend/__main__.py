"""Runs the command line as ``python -m statebackend``."""

from statebackend.cli import run

run()
