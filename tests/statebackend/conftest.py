"""Temporary directories in memory where there is room: these tests kill processes, never the machine.

Every snapshot syncs its files, and a test makes dozens; on a busy disk they would wait for it most of their time.
"""

import os
import pathlib
import shutil
import tempfile

import pytest

MEMORY_DIRECTORY = "/dev/shm"
NEEDED_BYTES = 1 << 30


@pytest.fixture(scope="session")
def directory_in_memory():
    """A directory for the whole session; on the disk if there is no room in memory."""
    has_room = os.path.isdir(MEMORY_DIRECTORY) and shutil.disk_usage(MEMORY_DIRECTORY).free >= NEEDED_BYTES
    path = tempfile.mkdtemp(prefix="statebackend-tests-", dir=MEMORY_DIRECTORY if has_room else None)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def tmp_path(directory_in_memory):
    """As pytest's own, but removed after each test."""
    path = tempfile.mkdtemp(dir=directory_in_memory)
    yield pathlib.Path(path)
    shutil.rmtree(path, ignore_errors=True)
