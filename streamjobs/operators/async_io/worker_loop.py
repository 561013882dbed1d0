"""The event loop of a process, in which all its coroutines of the users' run: in a thread of its own, from the first
one to the end of the process.

One loop for the life of the process and not one for each task, because clients that setup() has made belong to the loop
that they were made in. A thread of its own and not turns of the loop while the operator is called, because connections
want answers (heartbeats, closed sockets) while the operator waits for records; because the operator may itself be
called from a loop that is running, as in a notebook; and because a coroutine that blocks must not keep the operator
from seeing that the time is over. The price is a hand-over between two threads for each request.

A forked process begins without the loop of its parent. A loop whose thread does not answer any more, since a coroutine
blocks it, is given up with `abandon`: the next one who asks gets another.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["WorkerLoop", "abandon", "worker_loop"]


class WorkerLoop:
    """A loop that runs in a daemon thread as long as the process does."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        """The loop; only its thread-safe methods are to be called from other threads."""
        self._thread = threading.Thread(target=self._run, name="statebackend-async-io", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Has the loop call a function soon; to be called from other threads."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """What the awaitable gives or raises; waits for it, in another thread than the loop's."""

        async def awaited() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result()


class _Process:
    """What there is once in a process."""

    lock: threading.Lock
    loop: WorkerLoop | None

    def begin(self) -> None:
        """As a process begins, also one that was forked: another thread of its parent may have held the lock."""
        self.lock = threading.Lock()
        self.loop = None


_process = _Process()
_process.begin()
os.register_at_fork(after_in_child=_process.begin)


def worker_loop() -> WorkerLoop:
    """The loop of this process."""
    with _process.lock:
        if _process.loop is None:
            _process.loop = WorkerLoop()
        return _process.loop


def abandon(loop: WorkerLoop) -> None:
    """Leaves a loop that does not answer to itself: it is not given to anybody any more."""
    with _process.lock:
        if _process.loop is loop:
            _process.loop = None
