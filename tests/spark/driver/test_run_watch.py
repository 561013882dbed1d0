"""The end of a query ends its run once, even if no caller waits for the query."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException

from statebackend.spark.job import RunWatch

DONE_WITHIN_S = 600


def ends_after(await_end: Callable[[], object]) -> int:
    """How many times the end of a run is reported if its query ends in this way."""
    ended: list[None] = []
    watch = RunWatch(await_end, lambda: ended.append(None))
    watch.thread.join(DONE_WITHIN_S)
    assert not watch.thread.is_alive()
    return len(ended)


def fails(error: BaseException) -> Callable[[], object]:
    def await_end() -> object:
        raise error

    return await_end


def test_a_query_that_ends_or_fails_ends_its_run_once() -> None:
    assert ends_after(lambda: None) == 1
    assert ends_after(fails(StreamingQueryException("it failed"))) == 1


@pytest.mark.parametrize("error", [Py4JError("the gateway is gone"), ConnectionError("the gateway is gone")])
def test_a_stopped_session_has_released_the_run(error: BaseException) -> None:
    assert ends_after(fails(error)) == 0
