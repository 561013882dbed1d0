"""Which checkpoints are kept while snapshots may be built upon them: by what is told, over a store of none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

from statebackend.checkpoint import TaskId
from statebackend.local.run_snapshots import KeptCheckpoints

A, B = TaskId("count", 0), TaskId("count", 1)


class Pins:
    """A store of which only that is known which checkpoints are pinned."""

    def __init__(self) -> None:
        self.pinned: list[int] = []

    def latest(self) -> None:
        return None

    @contextlib.contextmanager
    def pin(self, checkpoint_id: int) -> Iterator[None]:
        self.pinned.append(checkpoint_id)
        yield
        self.pinned.remove(checkpoint_id)


def kept(store: Pins) -> KeptCheckpoints:
    return KeptCheckpoints(cast(Any, store), (A, B))


def test_a_checkpoint_is_kept_until_every_task_knows_of_a_later_one() -> None:
    store = Pins()
    made = kept(store)
    for checkpoint_id in (1, 2):
        made.begun(checkpoint_id)
        made.completed(checkpoint_id)
        made.told(A, checkpoint_id)
        made.release(())
    assert store.pinned == [1, 2], "one task knows of none"
    made.told(B, 1)
    made.release(())
    assert store.pinned == [1, 2], "it builds upon the one that it knows of"
    made.told(B, 2)
    made.release(())
    assert store.pinned == [2]


def test_one_that_a_task_knew_of_when_another_was_begun_is_kept_as_long_as_that_is_under_way() -> None:
    store = Pins()
    made = kept(store)
    made.completed(1)
    made.told(A, 1)
    made.told(B, 1)
    made.begun(2)
    made.completed(3)
    made.told(A, 3)
    made.told(B, 3)
    made.release({2})
    assert store.pinned == [1, 3]
    made.release(())
    assert store.pinned == [3]
    made.close()
    assert store.pinned == []
