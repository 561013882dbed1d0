"""The suite `savepoints` runs and compares each operation with its peer."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.savepoints import suite
from benchmarks.savepoints.looking import OPERATIONS, STATES
from benchmarks.savepoints.writing import WRITING_OPERATIONS


@pytest.mark.extended
def test_every_operation_is_measured_on_every_state() -> None:
    operations = OPERATIONS | WRITING_OPERATIONS
    parser = argparse.ArgumentParser()
    suite.add_arguments(parser)
    results = list(suite.run(parser.parse_args(["--entries", "300", "--rounds", "1"])))
    assert {result.name for result in results} == {f"{name}, {state}" for name in operations for state in STATES}
    assert all(result.ours is not None and result.peer is not None for result in results)
    with_aim = {result.name.partition(", ")[0] for result in results if result.aim == suite.REQUIRED_RATIO}
    assert with_aim == {name for name, operation in operations.items() if operation.has_aim}


def test_the_import_of_a_flink_savepoint_is_measured() -> None:
    parser = argparse.ArgumentParser()
    suite.add_arguments(parser)
    [result] = suite.run(parser.parse_args(["--only", "flink_import", "--entries", "300", "--rounds", "1"]))
    assert result.ours is not None
    assert result.ours > 0
