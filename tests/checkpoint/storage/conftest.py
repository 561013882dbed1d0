"""Fixtures for the tests of checkpoint stores."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def root() -> str:
    """A new ZooKeeper path without nodes."""
    return f"/{uuid.uuid4().hex}/jobs"
