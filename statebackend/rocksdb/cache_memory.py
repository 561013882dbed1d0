"""How many bytes the write-back caches of a process may hold.

Every backend of a process gets an equal share of what it is configured to, so that a process with many of them holds no
more than one with a single one. The shares are made anew when a backend is opened or closed; who holds more than its
share by then writes out at its next access.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final

DEFAULT_CACHE_BYTES: Final = 128 << 20
MIN_CACHE_BYTES: Final = 1

ENTRY_BYTES: Final = 256
"""What an entry of a cache takes up beside its bytes: the containers, and the objects of key and raw key."""


class CacheMemory:
    """What the caches of one backend hold, and its share."""

    __slots__ = ("__weakref__", "budget_bytes", "held_bytes", "limit_bytes")

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.limit_bytes = budget_bytes
        self.held_bytes = 0


class _Shares:
    """The backends of one process that are open."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.open: weakref.WeakSet[CacheMemory] = weakref.WeakSet()

    def divide(self) -> None:
        sharing = list(self.open)
        for memory in sharing:
            memory.limit_bytes = max(memory.budget_bytes // len(sharing), 1)


_shares = _Shares()


def open_cache_memory(budget_bytes: int) -> CacheMemory:
    """The share of a backend whose process may hold so many bytes; to be closed with `close_cache_memory`."""
    global _shares
    if _shares.process != os.getpid():
        # The backends of the parent are not this process's, and its lock may never be released here.
        _shares = _Shares()
    memory = CacheMemory(budget_bytes)
    with _shares.lock:
        _shares.open.add(memory)
        _shares.divide()
    return memory


def close_cache_memory(memory: CacheMemory) -> None:
    """Gives a share back to the others; may be called twice."""
    if _shares.process == os.getpid():
        with _shares.lock:
            _shares.open.discard(memory)
            _shares.divide()
