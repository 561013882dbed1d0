"""A run that ends while nobody looks takes back what went out for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException

from statebackend.spark.job import RunWatch

DONE_WITHIN_S = 600


def ends_after(await_end: Callable[[], object]) -> int:
    """How often the run is ended when waiting for its query goes so."""
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
def test_a_session_that_has_been_stopped_has_taken_the_run_along(error: BaseException) -> None:
    assert ends_after(fails(error)) == 0
