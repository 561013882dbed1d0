"""The table of at-least-once barriers: what becomes of each checkpoint that a task has heard of.

No channel ever stands still, so several checkpoints are under way at once, each with a row of its own. The snapshot is
taken at the last barrier; older checkpoints that are still under way then are dropped without a word, for the newer one
takes their place. One that was cancelled is remembered until every channel was heard, so that no late barrier begins it
again.

It is documented in `docs/barriers.md`, which is generated from it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from checkpointing.table_as_text import table_as_text

__all__ = ["AT_LEAST_ONCE_TRANSITIONS", "Heard", "TrackedPhase", "TrackingStep", "at_least_once_as_text"]


class TrackedPhase(enum.Enum):
    """Where one checkpoint stands."""

    UNKNOWN = "newer than all that were heard of"
    COUNTING = "some of its barriers came out"
    CANCELLED = "it was given up, and not all channels were heard"
    OVER = "nothing of it is remembered"


class Heard(enum.Enum):
    """What an event is to one checkpoint."""

    BARRIER = "a barrier of it came out, and others are missing"
    LAST_BARRIER = "the last barrier of it came out"
    CANCELLATION = "a channel says that it is given up, and others were not heard"
    LAST_CANCELLATION = "a channel says that it is given up, and all others were heard"
    CHANNEL_ENDED = "a channel ended, and others were not heard"
    LAST_CHANNEL_ENDED = "a channel ended, and all others were heard"


class TrackingStep(enum.Enum):
    """What is done; "it" is the checkpoint."""

    TRACK = "remember it"
    COUNT = "note the channel"
    ABORT_OLDER = "give up the older ones, each once, and forget them"
    ABORT = "give it up, and send that on"
    FORGET = "forget it and the older ones"
    TRIGGER = "take the snapshot, and send the barrier on"


_P, _E, _S = TrackedPhase, Heard, TrackingStep

AT_LEAST_ONCE_TRANSITIONS: Final[Mapping[tuple[TrackedPhase, Heard], tuple[TrackedPhase, tuple[TrackingStep, ...]]]] = (
    MappingProxyType(
        {
            (_P.UNKNOWN, _E.BARRIER): (_P.COUNTING, (_S.TRACK, _S.COUNT)),
            (_P.UNKNOWN, _E.LAST_BARRIER): (_P.OVER, (_S.TRACK, _S.TRIGGER, _S.FORGET)),
            (_P.UNKNOWN, _E.CANCELLATION): (_P.CANCELLED, (_S.TRACK, _S.ABORT_OLDER, _S.ABORT, _S.COUNT)),
            (_P.UNKNOWN, _E.LAST_CANCELLATION): (_P.OVER, (_S.TRACK, _S.ABORT_OLDER, _S.ABORT, _S.FORGET)),
            (_P.COUNTING, _E.BARRIER): (_P.COUNTING, (_S.COUNT,)),
            (_P.COUNTING, _E.LAST_BARRIER): (_P.OVER, (_S.TRIGGER, _S.FORGET)),
            (_P.COUNTING, _E.CANCELLATION): (_P.CANCELLED, (_S.ABORT_OLDER, _S.ABORT, _S.COUNT)),
            (_P.COUNTING, _E.LAST_CANCELLATION): (_P.OVER, (_S.ABORT_OLDER, _S.ABORT, _S.FORGET)),
            (_P.COUNTING, _E.CHANNEL_ENDED): (_P.COUNTING, (_S.COUNT,)),
            (_P.COUNTING, _E.LAST_CHANNEL_ENDED): (_P.OVER, (_S.TRIGGER, _S.FORGET)),
            (_P.CANCELLED, _E.BARRIER): (_P.CANCELLED, (_S.COUNT,)),
            (_P.CANCELLED, _E.LAST_BARRIER): (_P.OVER, (_S.FORGET,)),
            (_P.CANCELLED, _E.CANCELLATION): (_P.CANCELLED, (_S.COUNT,)),
            (_P.CANCELLED, _E.LAST_CANCELLATION): (_P.OVER, (_S.FORGET,)),
            (_P.CANCELLED, _E.CHANNEL_ENDED): (_P.CANCELLED, (_S.COUNT,)),
            (_P.CANCELLED, _E.LAST_CHANNEL_ENDED): (_P.OVER, (_S.FORGET,)),
            **{(_P.OVER, heard): (_P.OVER, ()) for heard in Heard},
        }
    )
)
"""(phase, event) -> (next phase, steps); everything else is illegal."""


def at_least_once_as_text() -> str:
    """The table as Markdown, for the documentation."""
    return table_as_text(AT_LEAST_ONCE_TRANSITIONS, (TrackedPhase, Heard, TrackingStep))


if __name__ == "__main__":
    print(at_least_once_as_text(), end="")  # noqa: T201
