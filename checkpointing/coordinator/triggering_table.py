"""The table of one checkpoint from the request that is begun to the notice that it is complete.

Each phase waits for one report of whoever carries actions out. A checkpoint may fail in every phase, and what had been
made for it until then is undone: its timer, its location, acknowledged state; tasks are told if they could know of it.

It is documented in `docs/coordinator.md`, which is generated from it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from checkpointing.table_as_text import table_as_text

__all__ = ["TRIGGERING_TRANSITIONS", "TriggeringEvent", "TriggeringPhase", "TriggeringStep", "triggering_as_text"]


class TriggeringPhase(enum.Enum):
    """What a checkpoint waits for."""

    NUMBERING = "its id"
    LOCATING = "the place where it will be stored"
    COORDINATING = "the state of the coordinators of operators"
    HOOKING = "what is outside of the job and takes part"
    AWAITING = "the acknowledgements of tasks"
    STORING = "storage"
    OVER = "nothing"


class TriggeringEvent(enum.Enum):
    """What was reported."""

    NUMBERED = "it has its id"
    LOCATED = "it has its place"
    COORDINATED = "the coordinators of operators have given their state"
    HOOKED = "what is outside has taken part"
    ALL_ACKNOWLEDGED = "all tasks have acknowledged, and no other checkpoint is being stored"
    STORED = "it is stored"
    FAILED = "it has failed, or is not wanted any more"


class TriggeringStep(enum.Enum):
    """What is done."""

    LOCATE = "ask for its place"
    OPEN = "wait for acknowledgements from now on"
    START_TIMER = "ask to be told when it takes too long"
    STOP_TIMER = "ask for that no more"
    COORDINATE = "ask the coordinators of operators for their state"
    HOOK = "let what is outside take part"
    TELL_TASKS = "tell the tasks that begin"
    STORE = "store what was acknowledged"
    SUBSUME = "end older checkpoints that are not complete, savepoints apart"
    NOTIFY_COMPLETE = "tell the tasks that it is complete, a savepoint's only if the job stops with it"
    NOTIFY_ABORTED = "tell the tasks that it is given up, and which checkpoint completed last"
    DISCARD = "discard acknowledged state"
    TAKE_BACK = "discard the state of what could not be stored"
    REMOVE_LOCATION = "remove its place"
    ANSWER = "answer who asked for it"


_P, _E, _S = TriggeringPhase, TriggeringEvent, TriggeringStep

TRIGGERING_TRANSITIONS: Final[
    Mapping[tuple[TriggeringPhase, TriggeringEvent], tuple[TriggeringPhase, tuple[TriggeringStep, ...]]]
] = MappingProxyType(
    {
        (_P.NUMBERING, _E.NUMBERED): (_P.LOCATING, (_S.LOCATE,)),
        (_P.LOCATING, _E.LOCATED): (_P.COORDINATING, (_S.OPEN, _S.START_TIMER, _S.COORDINATE)),
        (_P.COORDINATING, _E.COORDINATED): (_P.HOOKING, (_S.HOOK,)),
        (_P.HOOKING, _E.HOOKED): (_P.AWAITING, (_S.TELL_TASKS,)),
        (_P.AWAITING, _E.ALL_ACKNOWLEDGED): (_P.STORING, (_S.STOP_TIMER, _S.STORE)),
        (_P.STORING, _E.STORED): (_P.OVER, (_S.SUBSUME, _S.NOTIFY_COMPLETE, _S.ANSWER)),
        (_P.NUMBERING, _E.FAILED): (_P.OVER, (_S.ANSWER,)),
        (_P.LOCATING, _E.FAILED): (_P.OVER, (_S.ANSWER,)),
        **{
            (phase, _E.FAILED): (
                _P.OVER,
                (_S.STOP_TIMER, _S.DISCARD, _S.REMOVE_LOCATION, _S.NOTIFY_ABORTED, _S.ANSWER),
            )
            for phase in (_P.COORDINATING, _P.HOOKING, _P.AWAITING)
        },
        (_P.STORING, _E.FAILED): (_P.OVER, (_S.TAKE_BACK, _S.REMOVE_LOCATION, _S.NOTIFY_ABORTED, _S.ANSWER)),
    }
)
"""(phase, event) -> (next phase, steps); everything else is illegal. Reports of what is over are ignored."""


def triggering_as_text() -> str:
    """The table as Markdown, for the documentation."""
    return table_as_text(TRIGGERING_TRANSITIONS, (TriggeringPhase, TriggeringEvent, TriggeringStep))


if __name__ == "__main__":
    print(triggering_as_text(), end="")  # noqa: T201
