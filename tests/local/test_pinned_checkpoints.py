"""Checkpoints stay pinned as long as snapshots may refer to them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

from statebackend.checkpoint import TaskId
from statebackend.checkpoint.store.completed_checkpoint_store import PinnedCheckpoints

A, B = TaskId("count", 0), TaskId("count", 1)


class Pins:
    """A store that records the pinned checkpoints."""

    def __init__(self) -> None:
        self.pinned: list[int] = []

    def latest(self) -> None:
        return None

    @contextlib.contextmanager
    def pin(self, checkpoint_id: int) -> Iterator[None]:
        self.pinned.append(checkpoint_id)
        yield
        self.pinned.remove(checkpoint_id)


def pinned(store: Pins) -> PinnedCheckpoints:
    return PinnedCheckpoints(cast(Any, store), (A, B))


def test_a_checkpoint_is_pinned_until_every_task_knows_a_later_one() -> None:
    store = Pins()
    made = pinned(store)
    for checkpoint_id in (1, 2):
        made.triggered(checkpoint_id)
        made.completed(checkpoint_id)
        made.notified(A, checkpoint_id)
        made.release(())
    assert store.pinned == [1, 2], "one task knows of none"
    made.notified(B, 1)
    made.release(())
    assert store.pinned == [1, 2], "it builds upon the one that it knows of"
    made.notified(B, 2)
    made.release(())
    assert store.pinned == [2]


def test_a_checkpoint_stays_pinned_while_a_pending_one_may_refer_to_it() -> None:
    store = Pins()
    made = pinned(store)
    made.completed(1)
    made.notified(A, 1)
    made.notified(B, 1)
    made.triggered(2)
    made.completed(3)
    made.notified(A, 3)
    made.notified(B, 3)
    made.release({2})
    assert store.pinned == [1, 3]
    made.release(())
    assert store.pinned == [3]
    made.close()
    assert store.pinned == []
