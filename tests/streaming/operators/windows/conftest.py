"""State for window operators: each test has its own store."""

from __future__ import annotations

from pathlib import Path

import pytest

from statebackend.testing.backends.harness import BackendHarness


@pytest.fixture
def harness(tmp_path: Path) -> BackendHarness:
    return BackendHarness(str(tmp_path))
