"""Runs the command `statebackend` as a user would, and prints its output."""

from __future__ import annotations

import os
import subprocess
import sys

from examples.demonstration.comparison import DifferenceError
from examples.demonstration.stage import Stage

LONGEST_LINE = 150
"""Longer lines are cut: some types are long."""


def run_command(stage: Stage, *arguments: str, status: int = 0) -> None:
    """Run the command and print its output. Raises `DifferenceError` for another exit status than ``status``."""
    shown = (os.path.basename(one) if os.path.isabs(one) else one for one in arguments)
    stage.narrator.lines([f"$ statebackend {' '.join(shown)}"])
    command = [sys.executable, "-m", "statebackend", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != status:
        raise DifferenceError(f"the command ended with {ended.returncode}, not {status}: {ended.stderr.strip()}")
    lines = ended.stdout.splitlines()
    stage.narrator.lines(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..." for line in lines)
