"""The table of an epoch: every state, every event that it admits, what follows and what is to be done.

It is documented in `docs/epochs.md`, which is generated from it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from checkpointing.table_as_text import table_as_text

__all__ = ["EPOCH_TRANSITIONS", "EpochAction", "EpochEvent", "EpochState", "transitions_as_text"]


class EpochState(enum.Enum):
    """Where a run stands with its epoch."""

    IDLE = "no epoch is open"
    OPENED = "the epoch is open, its checkpoint is not triggered"
    TRIGGERED = "the action runs, tasks process and acknowledge"
    RETURNED = "the action has returned, acknowledgements are taken in"
    STORING = "all tasks have acknowledged, the checkpoint is being stored"
    COMMITTING = "the checkpoint is stored, the sink commits"
    COMMITTING_STATELESS = "there is no state and no checkpoint, the sink commits"
    RECOMMITTING = "the sink commits an epoch of before once more"
    FAILED = "the run has failed"
    STOPPED = "the run has refused a batch, since it is stopping"


class EpochEvent(enum.Enum):
    """What can happen, as it was judged."""

    NEXT_BATCH = "the batch behind the last one arrived"
    REPLAYED_BATCH = "the batch of the last epoch of this job directory arrived again"
    RESTORED_BATCH = "the batch that the savepoint was taken at arrived again"
    OTHER_OFFSETS = "the last batch arrived again, with other offsets"
    FOREIGN_BATCH = "a batch arrived that is neither the last nor the next"
    BATCH_WHEN_STOPPING = "a batch arrived while the job is stopping"
    TIME_PASSED = "time has something to do, and there is no batch"
    TRIGGERED = "the tasks are known"
    NO_TASKS = "no task takes part"
    ACKNOWLEDGED = "a task acknowledged"
    REPEATED = "a task acknowledged the same once more"
    REFUSED = "an acknowledgement does not belong here, or contradicts another"
    ACTION_RETURNED = "the action returned"
    ALL_ACKNOWLEDGED = "no acknowledgement comes any more, and none is missing"
    NOT_ALL_ACKNOWLEDGED = "no acknowledgement comes any more, and some are missing"
    TIMED_OUT = "the time of the epoch is over"
    STORED = "the checkpoint is stored"
    COMMITTED = "the sink has committed"
    FAILED = "something went wrong"


class EpochAction(enum.Enum):
    """What is to be done."""

    OPEN = "open the epoch and say which tasks take part"
    RUN_ACTION = "run the action"
    DISCARD = "discard acknowledged state"
    STORE = "store the checkpoint"
    COMMIT = "commit the sink"
    COMMIT_AGAIN = "commit the last epoch's sink again"
    ABORT_SINK = "let the sink forget what it staged"
    REFUSE = "raise, with the reason"


_S, _E, _A = EpochState, EpochEvent, EpochAction
_CLEAR: Final = (_A.DISCARD, _A.ABORT_SINK)

EPOCH_TRANSITIONS: Final[Mapping[tuple[EpochState, EpochEvent], tuple[EpochState, tuple[EpochAction, ...]]]] = (
    MappingProxyType(
        {
            (_S.IDLE, _E.NEXT_BATCH): (_S.OPENED, (_A.OPEN,)),
            (_S.IDLE, _E.REPLAYED_BATCH): (_S.RECOMMITTING, (_A.COMMIT_AGAIN,)),
            (_S.IDLE, _E.RESTORED_BATCH): (_S.IDLE, ()),
            (_S.IDLE, _E.OTHER_OFFSETS): (_S.FAILED, (_A.REFUSE,)),
            (_S.IDLE, _E.FOREIGN_BATCH): (_S.FAILED, (_A.REFUSE,)),
            (_S.IDLE, _E.BATCH_WHEN_STOPPING): (_S.STOPPED, (_A.REFUSE,)),
            (_S.IDLE, _E.TIME_PASSED): (_S.OPENED, (_A.OPEN,)),
            (_S.IDLE, _E.FAILED): (_S.FAILED, ()),
            (_S.OPENED, _E.TRIGGERED): (_S.TRIGGERED, (_A.RUN_ACTION,)),
            (_S.OPENED, _E.NO_TASKS): (_S.COMMITTING_STATELESS, (_A.COMMIT,)),
            (_S.OPENED, _E.FAILED): (_S.FAILED, (_A.ABORT_SINK,)),
            (_S.TRIGGERED, _E.ACKNOWLEDGED): (_S.TRIGGERED, ()),
            (_S.TRIGGERED, _E.REPEATED): (_S.TRIGGERED, (_A.DISCARD,)),
            (_S.TRIGGERED, _E.REFUSED): (_S.FAILED, (*_CLEAR, _A.REFUSE)),
            (_S.TRIGGERED, _E.ACTION_RETURNED): (_S.RETURNED, ()),
            (_S.TRIGGERED, _E.FAILED): (_S.FAILED, _CLEAR),
            (_S.RETURNED, _E.ACKNOWLEDGED): (_S.RETURNED, ()),
            (_S.RETURNED, _E.REPEATED): (_S.RETURNED, (_A.DISCARD,)),
            (_S.RETURNED, _E.REFUSED): (_S.FAILED, (*_CLEAR, _A.REFUSE)),
            (_S.RETURNED, _E.ALL_ACKNOWLEDGED): (_S.STORING, (_A.STORE,)),
            (_S.RETURNED, _E.NOT_ALL_ACKNOWLEDGED): (_S.FAILED, (*_CLEAR, _A.REFUSE)),
            (_S.RETURNED, _E.TIMED_OUT): (_S.FAILED, (*_CLEAR, _A.REFUSE)),
            (_S.RETURNED, _E.FAILED): (_S.FAILED, _CLEAR),
            (_S.STORING, _E.STORED): (_S.COMMITTING, (_A.COMMIT,)),
            # Whether the checkpoint is there after all is not known: what is staged is for the next start to clear up.
            (_S.STORING, _E.FAILED): (_S.FAILED, (_A.DISCARD,)),
            (_S.COMMITTING, _E.COMMITTED): (_S.IDLE, ()),
            # The checkpoint stands, and the next start commits again.
            (_S.COMMITTING, _E.FAILED): (_S.FAILED, ()),
            (_S.COMMITTING_STATELESS, _E.COMMITTED): (_S.IDLE, ()),
            # No checkpoint says that it is to be committed: the next start processes the batch again.
            (_S.COMMITTING_STATELESS, _E.FAILED): (_S.FAILED, (_A.ABORT_SINK,)),
            (_S.RECOMMITTING, _E.COMMITTED): (_S.IDLE, ()),
            (_S.RECOMMITTING, _E.FAILED): (_S.FAILED, ()),
            (_S.STOPPED, _E.BATCH_WHEN_STOPPING): (_S.STOPPED, (_A.REFUSE,)),
            # A drain, which may come behind a batch that came too late for it.
            (_S.STOPPED, _E.TIME_PASSED): (_S.OPENED, (_A.OPEN,)),
        }
    )
)
"""(state, event) -> (next state, actions); everything else is illegal."""


def transitions_as_text() -> str:
    """The table as Markdown, for the documentation."""
    return table_as_text(EPOCH_TRANSITIONS, (EpochState, EpochEvent, EpochAction), "actions")


if __name__ == "__main__":
    print(transitions_as_text(), end="")  # noqa: T201
