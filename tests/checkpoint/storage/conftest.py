"""What the tests of stores share."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def root() -> str:
    """A node of ZooKeeper's below which there is nothing yet."""
    return f"/{uuid.uuid4().hex}/jobs"
