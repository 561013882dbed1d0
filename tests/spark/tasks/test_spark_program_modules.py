"""Workers find custom serializers without having imported the modules of the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statebackend.spark.tasks.program_pickles import naming_missing_modules
from statebackend.streaming.errors import MissingModuleError

pytestmark = pytest.mark.spark

PROGRAMS = Path(__file__).parents[1] / "programs"
REPOSITORY = Path(__file__).resolve().parents[3]
PYTHON_DAEMON = REPOSITORY / "tests" / "spark_daemon"


def run(program: str, *arguments: object) -> Any:
    """Run a program with modules in its directory. Return its JSON output."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, PYTHON_DAEMON, PROGRAMS / "modules"))),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.extended
def test_new_workers_restore_state_of_serializers_and_classes_of_the_program(tmp_path: Path) -> None:
    found = run("keep_points.py", tmp_path, PROGRAMS / "hidden_modules")
    for backend in ("rocksdb", "heap"):
        # The second epoch and the second run each restore in new processes.
        assert found[backend] == [["a", 1], ["a", 2]]
        assert found[f"{backend} restarted"] == [["a", 3]]
        assert (tmp_path / f"savepoint-{backend}" / "_metadata").exists()
    assert "the module 'hidden_shapes' is not on this worker" in found["missing"]
    assert "addPyFile" in found["missing"]
    assert found["hidden"] == [["a", 1], ["a", 2], ["a", 3]]
    assert found["visits"] == {
        "windows": [["a", "[(0, []), (1, [Place(city='Bern')])]"]],
        "kept": [["a", 0], ["a", 1]],
    }
    assert found["left in spark's directories"] == []
    assert found["left of plans"] == []


@pytest.mark.extended
def test_workers_killed_between_epochs_and_during_one_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    found = run("lose_workers.py", tmp_path)
    for backend in ("rocksdb", "heap"):
        assert found[backend]["rows"] == [[word, times] for word in "abcdefgh" for times in range(1, 5)]
        assert found[backend]["killed within"]
        assert found[backend]["killed between"] > 0
        assert found[backend]["workers"] > found[backend]["killed between"], "others took over"


def test_an_error_with_cyclic_causes_is_raised_unchanged() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(ValueError, match="first"), naming_missing_modules("operator"):
        raise first


def test_a_missing_module_is_reported_once_with_advice() -> None:
    message = r"operator 'a': the module 'my.models' is not on this worker .*addPyFile"
    unpickled = ValueError("it cannot be unpickled")
    unpickled.__cause__ = ModuleNotFoundError("No module named 'my.models'", name="my.models")
    with pytest.raises(MissingModuleError, match=message) as failure, naming_missing_modules("operator 'a'"):
        raise unpickled
    with pytest.raises(MissingModuleError) as again, naming_missing_modules("operator 'b'"):
        raise failure.value
    assert again.value is failure.value
