"""Ends a run behind its query, whoever ended that: a source that failed between two epochs, or one that has no more.

Spark tells its listeners when a query ends, but a listener in Python would be called, at length, for every epoch as
well. So a thread waits in the JVM for the query to end.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

__all__ = ["RunWatch"]


class RunWatch:
    """Calls ``at_end`` once, when ``await_end`` returns or says why the query has failed."""

    def __init__(self, await_end: Callable[[], object], at_end: Callable[[], None]) -> None:
        self._await_end = await_end
        self._at_end = at_end
        self.thread = threading.Thread(target=self._watch, name="watching a query", daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        # A session that has been stopped has taken everything along.
        with contextlib.suppress(Py4JError, OSError):
            # Why it failed is told to whoever has the job.
            with contextlib.suppress(PySparkException):
                self._await_end()
            self._at_end()
