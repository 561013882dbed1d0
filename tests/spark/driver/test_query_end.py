"""The end of a query, without Spark: waiting, a second Ctrl-C, and a query that cannot be stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from statebackend.spark import epoch_driver as repeated_cancelling
from statebackend.spark import query as query_end
from statebackend.spark.query import Interrupts, QueryEnd, timeout_seconds
from statebackend.streaming.errors import EpochTimeoutError


class Query:
    """A query that ends when it is stopped, unless it hangs."""

    def __init__(self) -> None:
        self.isActive = True
        self.runId = "run 1"
        self.hangs: threading.Event | None = None
        self.waited_s: list[float] = []
        self.cancelled: list[str] = []
        self.at_wait: Callable[[], object] = lambda: None

    def awaitTermination(self, timeout_s: float) -> bool:  # noqa: N802
        self.waited_s.append(timeout_s)
        self.at_wait()
        return not self.isActive

    def stop(self) -> None:
        if self.hangs is not None:
            self.hangs.wait()
        self.isActive = False


class Protocol:
    """The part of the epoch driver that stopping a query uses. It has an endless epoch, or none."""

    def __init__(self, running_epoch_id: int | None) -> None:
        self.running_epoch_id = running_epoch_id
        self.last_epoch_id: int | None = None
        self.is_stopping = False
        self.abandoned: str | None = None

    @property
    def failure(self) -> BaseException | None:
        return None if self.abandoned is None else RuntimeError("interrupted")

    def request_stop(self) -> None:
        self.is_stopping = True

    def wait_until_idle(self, timeout_s: float | None, is_abandoned: Callable[[], bool]) -> bool:
        assert self.is_stopping, "another epoch could begin"
        return self.running_epoch_id is None or self.abandoned is not None


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_end, "streaming_errors_unlogged", lambda spark: contextlib.nullcontext())


def end_of(protocol: Protocol, query: Query) -> QueryEnd:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(cancelJobGroup=query.cancelled.append))
    made: Any = QueryEnd(session, protocol, query)  # type: ignore[arg-type]
    return made


@pytest.fixture
def interruptible() -> Iterator[Interrupts]:
    """Counts interrupts. The handler below it fails the test."""

    def unexpected(number: int, frame: Any) -> None:
        raise AssertionError("SIGINT was not counted")

    former = signal.signal(signal.SIGINT, unexpected)
    interrupts = Interrupts()
    try:
        with interrupts.counted():
            yield interrupts
        assert signal.getsignal(signal.SIGINT) is unexpected
    finally:
        signal.signal(signal.SIGINT, former)


def log_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log records about the end of the query, except those of other threads."""
    return [one.getMessage() for one in caplog.records if one.name == query_end.__name__]


def test_a_job_without_a_running_epoch_is_stopped_at_once() -> None:
    query, protocol = Query(), Protocol(None)
    end_of(protocol, query).stop(0)
    assert not query.isActive
    assert protocol.abandoned is None


def test_an_epoch_that_does_not_end_in_time_is_abandoned() -> None:
    query, protocol = Query(), Protocol(3)
    with pytest.raises(EpochTimeoutError, match=r"epoch 3 was aborted after 1\.5 s.*processes it again"):
        end_of(protocol, query).stop(1.5)
    assert not query.isActive
    assert protocol.abandoned is not None
    # The job group may be cancelled more than once before the query has stopped.
    assert set(query.cancelled) == {"run 1"}, "an epoch without records may run behind the query"


def test_a_spark_job_started_after_a_cancellation_is_cancelled_too() -> None:
    class PlansItsNextJob(Protocol):
        def wait_until_idle(self, timeout_s: float | None, is_abandoned: Callable[[], bool]) -> bool:
            return len(query.cancelled) > 2

    query, protocol = Query(), PlansItsNextJob(3)
    with pytest.raises(EpochTimeoutError, match=r"epoch 3 was aborted after 1\.5 s.*processes it again"):
        end_of(protocol, query).stop(1.5)
    assert len(query.cancelled) >= 3
    assert set(query.cancelled) == {"run 1"}


def test_final_actions_run_between_epochs_and_their_failure_ends_the_query_too() -> None:
    query, protocol = Query(), Protocol(None)
    found: list[tuple[bool, bool]] = []
    end_of(protocol, query).stop(0, before_end=lambda: found.append((query.isActive, protocol.is_stopping)))
    assert found == [(True, True)]
    query = Query()

    def fail() -> None:
        raise ArithmeticError("as it must")

    with pytest.raises(ArithmeticError, match="as it must"):
        end_of(Protocol(None), query).stop(0, before_end=fail)
    assert not query.isActive


def test_a_sink_that_hangs_on_the_driver_is_reported_to_keep_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_end, "ABORT_TIMEOUT_S", 0.01)
    monkeypatch.setattr(repeated_cancelling, "_AGAIN_S", 0.01)
    query, protocol = Query(), Protocol(3)
    query.hangs = threading.Event()
    with pytest.raises(EpochTimeoutError, match=r"epoch 3 cannot be ended.*busy on the driver.*stays locked"):
        end_of(protocol, query).stop(0)
    assert query.isActive
    query.hangs.set()


def test_waiting_ends_with_the_time_or_the_query_or_an_interrupt(interruptible: Interrupts) -> None:
    query, protocol = Query(), Protocol(3)
    end = end_of(protocol, query)
    assert not end.wait(0, interruptible)
    assert query.waited_s == [0.001], "Spark takes no shorter time"
    query.isActive = False
    assert end.wait(0, interruptible)
    assert end.wait(None, interruptible)
    query.isActive = True
    query.at_wait = lambda: os.kill(os.getpid(), signal.SIGINT)
    assert not end.wait(None, interruptible)
    assert interruptible.count == 1
    assert max(query.waited_s) <= 0.2


def test_the_first_interrupt_waits_for_the_epoch_and_a_second_one_does_not(
    interruptible: Interrupts, caplog: pytest.LogCaptureFixture
) -> None:
    class Waits(Protocol):
        def wait_until_idle(self, timeout_s: float | None, is_abandoned: Callable[[], bool]) -> bool:
            assert not is_abandoned()
            os.kill(os.getpid(), signal.SIGINT)
            return not is_abandoned()

    interruptible.count = 1
    query, protocol = Query(), Waits(3)
    with caplog.at_level(logging.WARNING):
        end_of(protocol, query).stop_at_interrupt(interruptible, 300)
    first, second = log_messages(caplog)
    assert first == "stopping: epoch 3 is running and ends first, for at most 300 s; Ctrl-C again aborts it"
    assert second.startswith("stopped: epoch 3 was aborted at a second interrupt")
    assert "\n" not in second


@pytest.mark.parametrize(("last", "done"), [(None, "no epoch is complete"), (4, "epoch 4 is complete")])
def test_an_interrupt_between_epochs_reports_what_is_complete(
    caplog: pytest.LogCaptureFixture, last: int | None, done: str
) -> None:
    query, protocol = Query(), Protocol(None)
    protocol.last_epoch_id = last
    with caplog.at_level(logging.WARNING):
        end_of(protocol, query).stop_at_interrupt(Interrupts(), 300)
    assert log_messages(caplog) == [f"stopped: {done}, and the same program continues from there"]


def test_interrupts_are_left_alone_in_other_threads_and_where_they_are_ignored() -> None:
    former = signal.getsignal(signal.SIGINT)
    found: list[Any] = []

    def count() -> None:
        with Interrupts().counted():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        count()
    finally:
        signal.signal(signal.SIGINT, former)
    assert found == [former, signal.SIG_IGN]


@pytest.mark.parametrize(
    ("right", "seconds"),
    [(None, None), (0, 0), (1, 1), (0.5, 0.5), (1e9, 1e9), ("5 minutes", 300), (timedelta(milliseconds=1500), 1.5)],
)
def test_a_timeout_is_seconds_a_duration_or_none(right: Any, seconds: float | None) -> None:
    assert timeout_seconds("timeout_s", right) == seconds


@pytest.mark.parametrize("wrong", [-1, -0.001, float("nan"), float("inf"), True, "1", [1], "-1 minute", "1 month"])
def test_any_other_timeout_is_rejected(wrong: Any) -> None:
    with pytest.raises(
        ValueError, match=r"timeout_s is .*(from 0 on, or None for no limit|not a duration|not durations)"
    ):
        timeout_seconds("timeout_s", wrong)
