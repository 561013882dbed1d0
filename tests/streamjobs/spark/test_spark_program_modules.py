"""Serializers of the user's own, in workers that have never imported what the program has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PROGRAMS = Path(__file__).parent / "programs"
REPOSITORY = Path(__file__).resolve().parents[3]
PYTHON_DAEMON = REPOSITORY / "tests" / "spark_daemon"


def test_fresh_workers_restore_state_of_serializers_that_only_the_program_knows(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, PYTHON_DAEMON, PROGRAMS / "modules"))),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    program = [sys.executable, str(PROGRAMS / "keep_points.py"), str(tmp_path), str(PROGRAMS / "hidden_modules")]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for backend in ("rocksdb", "heap"):
        # The second epoch restores in other processes than the first, and so does the second run.
        assert found[backend] == [["a", 1], ["a", 2]]
        assert found[f"{backend} restarted"] == [["a", 3]]
        assert (tmp_path / f"savepoint-{backend}" / "_metadata").exists()
    assert "the module 'hidden_shapes' is not on this worker" in found["missing"]
    assert "addPyFile" in found["missing"]
    assert found["hidden"] == [["a", 1], ["a", 2], ["a", 3]]
    assert found["left in spark's directories"] == []
    assert found["left of plans"] == []
