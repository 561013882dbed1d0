"""Names of the queues of timers, as in Flink: `_timer_state/event_<service>` and `_timer_state/processing_<service>`.

The prefix is theirs alone, so that whoever looks at stored state knows timers by it. No function's state has it.
"""

from __future__ import annotations

import re
from typing import Final, Literal

__all__ = ["TIMER_STATES", "TimeDomain", "domain_and_service", "timer_state_name"]

TimeDomain = Literal["event", "processing"]

TIMER_STATES: Final = "_timer_state/"
"""What all of these names begin with, and no others may."""

_QUEUE_NAME: Final = re.compile(rf"{TIMER_STATES}(event|processing)_(.*)", re.DOTALL)


def timer_state_name(domain: TimeDomain, service: str) -> str:
    """The name of the queue of a service's timers of event time, or of processing time."""
    return f"{TIMER_STATES}{domain}_{service}"


def domain_and_service(state_name: str) -> tuple[str, str] | None:
    """``event`` or ``processing``, and the service, by the name of a queue of timers; None for any other name."""
    matched = _QUEUE_NAME.fullmatch(state_name)
    return None if matched is None else (matched[1], matched[2])
