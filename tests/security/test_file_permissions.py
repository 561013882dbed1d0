"""Only the user can read checkpoints, savepoints and exports, unless configured otherwise."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from inspected_job import run_job

from statebackend.cli.main import main
from statebackend.savepoint.rewrite import Plan, SavepointWriter

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(*roots: Path) -> dict[str, set[int]]:
    """The permissions of these paths and of all directories and files below them."""
    paths = [path for root in roots for path in (root, *root.rglob("*"))]
    assert any(path.is_file() for path in paths)
    return {
        "directories": {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()},
        "files": {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()},
    }


def write_all(backend: str, directory: Path) -> list[Path]:
    """A job directory, a savepoint, a rewritten savepoint, and exports."""
    job, savepoint, rewritten = directory / "job", directory / "savepoint", directory / "rewritten"
    run_job(backend, job).savepoint(savepoint)
    SavepointWriter.copy_of(savepoint, rewritten).write(Plan().rename_operator("per shop", "by shop"))
    exports = [directory / f"totals.{name}" for name in ("csv", "json", "parquet", "arrow")]
    for export in exports:
        assert main(["export", str(savepoint), "per shop", "totals", str(export), "--to", export.suffix[1:]]) == 0
    return [job, savepoint, rewritten, *exports]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_files_of_state_are_private(backend: str, tmp_path: Path) -> None:
    assert modes(*write_all(backend, tmp_path)) == {"directories": {0o700}, "files": {0o600}}


def test_an_existing_directory_keeps_its_permissions(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir(mode=0o755)
    run_job("heap", job)
    assert stat.S_IMODE(job.stat().st_mode) == 0o755
    assert modes(*job.iterdir()) == {"directories": {0o700}, "files": {0o600}}


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_other_permissions_can_be_configured(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEBACKEND_FILE_MODE", "660")
    os.umask(0o077)
    assert modes(*write_all(backend, tmp_path)) == {"directories": {0o770}, "files": {0o660}}


@pytest.mark.parametrize("mode", ["rw", "777", "440", "60", "1600"])
def test_permissions_that_a_file_of_state_cannot_have_are_an_error(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATEBACKEND_FILE_MODE", mode)
    with pytest.raises(Exception, match=r"STATEBACKEND_FILE_MODE is '.*'; set it to octal file permissions"):
        run_job("heap", tmp_path / "job")


def test_an_export_keeps_the_permissions_of_the_file_that_it_replaces(tmp_path: Path) -> None:
    run_job("heap", tmp_path / "job")
    export = tmp_path / "totals.csv"
    export.touch(mode=0o644)
    arguments = ["export", str(tmp_path / "job"), "per shop", "totals", str(export), "--to", "csv", "--overwrite"]
    assert main(arguments) == 0
    assert stat.S_IMODE(export.stat().st_mode) == 0o644
