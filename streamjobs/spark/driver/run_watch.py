"""Ends a run whose query has ended while nobody looked, such as by a source that failed between two epochs.

Spark tells its listeners when a query ends, but a listener in Python would be called, at length, for every epoch as
well. To ask every few seconds costs nothing, and nothing hangs on the moment: what stays for so long are a file on the
driver and its copies on the executors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

POLL_S: Final = 10.0


class RunWatch:
    """Calls ``close`` once when the query is no longer active, unless it is told before that nobody needs it."""

    def __init__(self, is_active: Callable[[], bool], close: Callable[[], None], poll_s: float = POLL_S) -> None:
        self._is_active = is_active
        self._close = close
        self._poll_s = poll_s
        self._is_over = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="watching a query", daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Looks no more; may be called again, from any thread."""
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.wait(self._poll_s):
            try:
                if self._is_active():
                    continue
                self._close()
            except (Py4JError, OSError):
                # The session has been stopped, which takes everything along.
                pass
            return
