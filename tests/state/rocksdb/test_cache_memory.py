"""The share of a backend in the cache memory of its process."""

from __future__ import annotations

import gc
import multiprocessing
from typing import Any

import pytest

from statebackend.state.rocksdb.cached_state import close_cache_memory, open_cache_memory

pytestmark = pytest.mark.usefixtures("own_cache_shares")


def _limits_in_a_child(connection: Any) -> None:
    memory = open_cache_memory(1000)
    alone = memory.limit_bytes
    other = open_cache_memory(1000)
    connection.send((alone, memory.limit_bytes))
    close_cache_memory(other)
    close_cache_memory(memory)


def test_a_forked_process_shares_with_its_own_backends_only() -> None:
    ours = [open_cache_memory(1000) for _ in range(3)]
    limits = [memory.limit_bytes for memory in ours]
    forking = multiprocessing.get_context("fork")
    here, there = forking.Pipe()
    child = forking.Process(target=_limits_in_a_child, args=(there,))
    child.start()
    there.close()
    assert here.recv() == (1000, 500)
    child.join()
    assert [memory.limit_bytes for memory in ours] == limits
    for memory in ours:
        close_cache_memory(memory)


def test_a_share_is_at_least_a_byte_and_grows_when_others_close() -> None:
    ours = [open_cache_memory(2) for _ in range(3)]
    assert {memory.limit_bytes for memory in ours} == {1}
    close_cache_memory(ours[0])
    close_cache_memory(ours[0])
    close_cache_memory(ours[1])
    assert ours[2].limit_bytes == 2
    close_cache_memory(ours[2])


def test_a_collected_backend_has_no_share() -> None:
    kept = open_cache_memory(1000)
    lost = open_cache_memory(1000)
    assert kept.limit_bytes == 500
    del lost
    gc.collect()
    close_cache_memory(open_cache_memory(1000))
    assert kept.limit_bytes == 1000
    close_cache_memory(kept)
