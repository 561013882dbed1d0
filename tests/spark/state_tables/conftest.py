"""Every kind of state, in job directories and in a savepoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected_job import run_job


@pytest.fixture(scope="package", params=["rocksdb", "savepoint", pytest.param("heap", marks=pytest.mark.extended)])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job directory of one backend, or a savepoint."""
    directory = tmp_path_factory.mktemp("state")
    if request.param != "savepoint":
        run_job(request.param, directory / "job")
        return directory / "job"
    run_job("heap").savepoint(directory / "savepoint")
    return directory / "savepoint"


@pytest.fixture(scope="package")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state") / "savepoint"
    run_job("heap").savepoint(path)
    return path
