"""Fixtures of several state packages."""

from __future__ import annotations

import pytest

from statebackend.state.rocksdb import cached_state as cache_memory


@pytest.fixture
def own_cache_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends of the test share cache memory; others depend on the garbage collector."""
    monkeypatch.setattr(cache_memory, "_shares", cache_memory._Shares())
