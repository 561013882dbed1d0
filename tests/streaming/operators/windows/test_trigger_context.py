"""Trigger context calls affect the timers of the current window only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statebackend.streaming.operators.window_contexts import WindowTriggerContext
from statebackend.streaming.windows.triggers import EventTimeTrigger


class NotedTimers:
    """A timer service that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def noted(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            return 7

        return noted


@pytest.mark.parametrize(
    "name",
    [
        "register_event_time_timer",
        "register_processing_time_timer",
        "delete_event_time_timer",
        "delete_processing_time_timer",
    ],
)
def test_a_timer_belongs_to_the_current_window(name: str) -> None:
    timers: Any = NotedTimers()
    context = WindowTriggerContext(EventTimeTrigger(), timers, lambda descriptor: None)
    for window in ("first", "second"):
        context.window = window
        getattr(context, name)(5)
    assert timers.calls == [(name, "first", 5), (name, "second", 5)]


@pytest.mark.parametrize("name", ["current_watermark", "current_processing_time"])
def test_time_is_that_of_the_timer_service(name: str) -> None:
    timers: Any = NotedTimers()
    assert getattr(WindowTriggerContext(EventTimeTrigger(), timers, lambda descriptor: None), name)() == 7
    assert timers.calls == [(name,)]
