"""Fixtures that the tests of several state packages share."""

from __future__ import annotations

import pytest

from statebackend.state.rocksdb import cached_state as cache_memory


@pytest.fixture
def own_cache_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches are shared among the backends of the test: which others are still there hangs on the collector."""
    monkeypatch.setattr(cache_memory, "_shares", cache_memory._Shares())
