"""The command line starts fast: help imports no command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from statebackend.cli.main import COMMANDS, load_command


def test_help_imports_no_command_and_no_heavy_package() -> None:
    program = (
        "import sys\n"
        "from statebackend.cli.main import main\n"
        "main(['--help'])\n"
        "print(sorted({'attrs', 'pyarrow', 'rich', 'statebackend.savepoint', 'pyspark'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists(name: str) -> None:
    assert load_command(name).__doc__
