"""A run that ends while nobody looks takes back what went out for it."""

from __future__ import annotations

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from streamjobs.spark.driver.run_watch import RunWatch

DONE_WITHIN_S = 60


def test_a_query_that_ends_by_itself_is_closed_once() -> None:
    answers = iter([True, True, False])
    closed: list[str] = []
    watch = RunWatch(lambda: next(answers), lambda: closed.append("closed"), poll_s=0.001)
    watch.thread.join(DONE_WITHIN_S)
    assert not watch.thread.is_alive()
    assert closed == ["closed"]
    assert next(answers, None) is None


def test_a_run_that_was_closed_by_others_is_watched_no_more() -> None:
    closed: list[str] = []
    watch = RunWatch(lambda: False, lambda: closed.append("closed"), poll_s=DONE_WITHIN_S)
    watch.end()
    watch.end()
    watch.thread.join(DONE_WITHIN_S)
    assert not watch.thread.is_alive()
    assert closed == []


def test_a_session_that_has_been_stopped_ends_the_watch() -> None:
    def is_active() -> bool:
        raise Py4JError("the gateway is gone")

    watch = RunWatch(is_active, lambda: None, poll_s=0.001)
    watch.thread.join(DONE_WITHIN_S)
    assert not watch.thread.is_alive()
