"""The table of exactly-once barriers: every state, every event that it admits, what follows and what is to be done.

At most one checkpoint is pending. As long as it is aligned, the channels that have delivered its barrier stand still,
and the snapshot is taken at the last barrier. Once it is unaligned, the snapshot is taken at the first barrier, or at
once, and what other channels deliver before theirs is captured. A newer checkpoint ends the one before.

It is documented in `docs/barriers.md`, which is generated from it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from checkpointing.table_as_text import table_as_text

__all__ = ["EXACTLY_ONCE_TRANSITIONS", "AlignmentPhase", "AlignmentStep", "SeenAs", "exactly_once_as_text"]


class AlignmentPhase(enum.Enum):
    """Where the pending checkpoint stands."""

    IDLE = "no checkpoint is pending"
    ANNOUNCED = "barriers lie in channels, none has come out"
    OVERTAKING = "as announced, and the barriers overtake records"
    ALIGNING = "barriers have come out, their channels stand still"
    CAPTURING = "the snapshot is taken, and what lies before the missing barriers is captured"


class SeenAs(enum.Enum):
    """What an event is to the pending checkpoint."""

    ANNOUNCEMENT = "a barrier of it lies in a channel"
    ALIGNED_BARRIER = "a barrier of it came out, and others are missing"
    LAST_ALIGNED_BARRIER = "the last barrier of it came out"
    UNALIGNED_BARRIER = "a barrier of it came out that overtakes, or whose time to align is over; others are missing"
    LAST_UNALIGNED_BARRIER = "the last barrier of it came out, and it overtakes"
    CANCELLATION = "it is given up by a task before"
    CHANNEL_ENDED = "a channel ended, and barriers of others are missing"
    LAST_CHANNEL_ENDED = "the channel ended whose barrier alone was missing"
    BARRIER_LOST = "a channel ended whose barrier was missing, which gives the checkpoint up"
    TIMED_OUT = "its time to align is over"
    SUPERSEDED = "a newer checkpoint has begun"
    STALE_BARRIER = "a barrier of a checkpoint that is over came out"
    STALE = "something else of a checkpoint that is over"


class AlignmentStep(enum.Enum):
    """What is done; "it" is the channel of the event."""

    BEGIN = "make the checkpoint the pending one"
    NOTE = "note that a barrier lies in it"
    START_TIMER = "ask for the time at which it begins to overtake, if it has one"
    STOP_TIMER = "ask for that time no more"
    COUNT = "note the barrier of it"
    BLOCK = "let it stand still"
    RESUME = "let it deliver again"
    RESUME_ALL = "let all that stand still deliver again"
    TRIGGER = "take the snapshot, and send the barrier on"
    TRIGGER_UNALIGNED = "take the snapshot, and send the barrier on as one that overtakes"
    CAPTURE = "capture what channels without a barrier deliver"
    STOP_CAPTURE = "capture no more of it"
    STOP_CAPTURES = "capture no more"
    COMPLETE = "say that nothing on its way is missing"
    OVERTAKE = "let the barrier that lies in it overtake"
    OVERTAKE_ALL = "let all barriers that lie in channels overtake"
    ABORT = "give the checkpoint up, and send that on"


_P, _E, _S = AlignmentPhase, SeenAs, AlignmentStep

_GIVE_UP: Final[Mapping[AlignmentPhase, tuple[AlignmentStep, ...]]] = {
    _P.ANNOUNCED: (_S.STOP_TIMER, _S.ABORT),
    _P.OVERTAKING: (_S.ABORT,),
    _P.ALIGNING: (_S.STOP_TIMER, _S.ABORT, _S.RESUME_ALL),
    _P.CAPTURING: (_S.ABORT, _S.STOP_CAPTURES),
}

EXACTLY_ONCE_TRANSITIONS: Final[
    Mapping[tuple[AlignmentPhase, SeenAs], tuple[AlignmentPhase, tuple[AlignmentStep, ...]]]
] = MappingProxyType(
    {
        (_P.IDLE, _E.ANNOUNCEMENT): (_P.ANNOUNCED, (_S.BEGIN, _S.NOTE, _S.START_TIMER)),
        (_P.IDLE, _E.ALIGNED_BARRIER): (_P.ALIGNING, (_S.BEGIN, _S.COUNT, _S.BLOCK, _S.START_TIMER)),
        (_P.IDLE, _E.LAST_ALIGNED_BARRIER): (_P.IDLE, (_S.BEGIN, _S.BLOCK, _S.TRIGGER, _S.RESUME_ALL)),
        (_P.IDLE, _E.UNALIGNED_BARRIER): (
            _P.CAPTURING,
            (_S.BEGIN, _S.COUNT, _S.TRIGGER_UNALIGNED, _S.CAPTURE, _S.RESUME),
        ),
        (_P.IDLE, _E.LAST_UNALIGNED_BARRIER): (
            _P.IDLE,
            (_S.BEGIN, _S.TRIGGER_UNALIGNED, _S.COMPLETE, _S.RESUME),
        ),
        # It becomes the newest one, so that no late barrier of it begins it again.
        (_P.IDLE, _E.CANCELLATION): (_P.IDLE, (_S.BEGIN, _S.ABORT)),
        (_P.IDLE, _E.CHANNEL_ENDED): (_P.IDLE, ()),
        (_P.ANNOUNCED, _E.ANNOUNCEMENT): (_P.ANNOUNCED, (_S.NOTE,)),
        (_P.ANNOUNCED, _E.ALIGNED_BARRIER): (_P.ALIGNING, (_S.COUNT, _S.BLOCK)),
        (_P.ANNOUNCED, _E.LAST_ALIGNED_BARRIER): (
            _P.IDLE,
            (_S.STOP_TIMER, _S.COUNT, _S.BLOCK, _S.TRIGGER, _S.RESUME_ALL),
        ),
        (_P.ANNOUNCED, _E.UNALIGNED_BARRIER): (
            _P.CAPTURING,
            (_S.STOP_TIMER, _S.COUNT, _S.TRIGGER_UNALIGNED, _S.CAPTURE, _S.RESUME, _S.OVERTAKE_ALL),
        ),
        (_P.ANNOUNCED, _E.LAST_UNALIGNED_BARRIER): (
            _P.IDLE,
            (_S.STOP_TIMER, _S.COUNT, _S.TRIGGER_UNALIGNED, _S.COMPLETE, _S.RESUME),
        ),
        (_P.ANNOUNCED, _E.TIMED_OUT): (_P.OVERTAKING, (_S.STOP_TIMER, _S.OVERTAKE_ALL)),
        (_P.ANNOUNCED, _E.CHANNEL_ENDED): (_P.ANNOUNCED, ()),
        (_P.OVERTAKING, _E.ANNOUNCEMENT): (_P.OVERTAKING, (_S.NOTE, _S.OVERTAKE)),
        (_P.OVERTAKING, _E.UNALIGNED_BARRIER): (
            _P.CAPTURING,
            (_S.COUNT, _S.TRIGGER_UNALIGNED, _S.CAPTURE, _S.RESUME),
        ),
        (_P.OVERTAKING, _E.LAST_UNALIGNED_BARRIER): (
            _P.IDLE,
            (_S.COUNT, _S.TRIGGER_UNALIGNED, _S.COMPLETE, _S.RESUME),
        ),
        (_P.OVERTAKING, _E.CHANNEL_ENDED): (_P.OVERTAKING, ()),
        (_P.ALIGNING, _E.ANNOUNCEMENT): (_P.ALIGNING, (_S.NOTE,)),
        (_P.ALIGNING, _E.ALIGNED_BARRIER): (_P.ALIGNING, (_S.COUNT, _S.BLOCK)),
        (_P.ALIGNING, _E.LAST_ALIGNED_BARRIER): (
            _P.IDLE,
            (_S.STOP_TIMER, _S.COUNT, _S.BLOCK, _S.TRIGGER, _S.RESUME_ALL),
        ),
        (_P.ALIGNING, _E.UNALIGNED_BARRIER): (
            _P.CAPTURING,
            (
                _S.STOP_TIMER,
                _S.COUNT,
                _S.TRIGGER_UNALIGNED,
                _S.CAPTURE,
                _S.RESUME,
                _S.RESUME_ALL,
                _S.OVERTAKE_ALL,
            ),
        ),
        (_P.ALIGNING, _E.LAST_UNALIGNED_BARRIER): (
            _P.IDLE,
            (_S.STOP_TIMER, _S.COUNT, _S.TRIGGER_UNALIGNED, _S.COMPLETE, _S.RESUME, _S.RESUME_ALL),
        ),
        (_P.ALIGNING, _E.TIMED_OUT): (
            _P.CAPTURING,
            (_S.STOP_TIMER, _S.TRIGGER_UNALIGNED, _S.CAPTURE, _S.RESUME_ALL, _S.OVERTAKE_ALL),
        ),
        (_P.ALIGNING, _E.CHANNEL_ENDED): (_P.ALIGNING, ()),
        (_P.ALIGNING, _E.LAST_CHANNEL_ENDED): (_P.IDLE, (_S.STOP_TIMER, _S.TRIGGER, _S.RESUME_ALL)),
        (_P.CAPTURING, _E.ANNOUNCEMENT): (_P.CAPTURING, (_S.NOTE, _S.OVERTAKE)),
        (_P.CAPTURING, _E.UNALIGNED_BARRIER): (_P.CAPTURING, (_S.COUNT, _S.STOP_CAPTURE, _S.RESUME)),
        (_P.CAPTURING, _E.LAST_UNALIGNED_BARRIER): (
            _P.IDLE,
            (_S.COUNT, _S.STOP_CAPTURE, _S.COMPLETE, _S.RESUME),
        ),
        (_P.CAPTURING, _E.CHANNEL_ENDED): (_P.CAPTURING, (_S.STOP_CAPTURE,)),
        (_P.CAPTURING, _E.LAST_CHANNEL_ENDED): (_P.IDLE, (_S.STOP_CAPTURE, _S.COMPLETE)),
        **{(phase, _E.CANCELLATION): (_P.IDLE, steps) for phase, steps in _GIVE_UP.items()},
        **{(phase, _E.BARRIER_LOST): (_P.IDLE, steps) for phase, steps in _GIVE_UP.items()},
        **{(phase, _E.SUPERSEDED): (_P.IDLE, steps) for phase, steps in _GIVE_UP.items()},
        **{(phase, _E.STALE_BARRIER): (phase, (_S.RESUME,)) for phase in _P},
        **{(phase, _E.STALE): (phase, ()) for phase in _P},
    }
)
"""(phase, event) -> (next phase, steps); everything else is illegal."""


def exactly_once_as_text() -> str:
    """The table as Markdown, for the documentation."""
    return table_as_text(EXACTLY_ONCE_TRANSITIONS, (AlignmentPhase, SeenAs, AlignmentStep))


if __name__ == "__main__":
    print(exactly_once_as_text(), end="")  # noqa: T201
