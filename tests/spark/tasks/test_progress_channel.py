"""The progress of tasks reaches the driver's listener through an accumulator that stores nothing."""

from __future__ import annotations

import gc
import pickle
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.accumulators import Accumulator, _accumulatorRegistry

from statebackend import Operation, Progress
from statebackend.spark.tasks.channels import ProgressChannel


def reported(entries: int, *, is_done: bool) -> Progress:
    return Progress(
        operation=Operation.MIGRATION,
        operator_uid="a",
        state_name="s",
        subtask_index=1,
        entries=entries,
        is_done=is_done,
    )


def test_only_new_progress_is_sent_and_the_driver_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Progress] = []
    made: list[Any] = []

    def accumulator(value: Any, param: Any) -> Any:
        made.append(Accumulator(-77, value, param))
        return made[0]

    context: Any = SimpleNamespace(accumulator=accumulator)
    channel = ProgressChannel(context, heard.append)
    travelled = pickle.dumps(channel.sender)
    assert len(travelled) < 1000
    # A worker has no accumulators before it receives one.
    monkeypatch.delitem(_accumulatorRegistry, -77)
    sender = pickle.loads(travelled)
    sender.send(reported(5, is_done=False))
    sender.send(reported(9, is_done=True))
    [on_worker] = [sender._accumulator]
    assert on_worker._value == [reported(9, is_done=True)]
    for _ in range(1000):
        made[0] += pickle.loads(pickle.dumps(on_worker._value))
    assert heard == [reported(9, is_done=True)] * 1000
    assert made[0]._value == []


def test_a_collected_run_is_kept_by_no_accumulator(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Run:
        def __init__(self) -> None:
            self.heard: list[Progress] = []

        def hear(self, progress: Progress) -> None:
            self.heard.append(progress)

    def accumulator(value: Any, param: Any) -> Any:
        made.append(Accumulator(-78, value, param))
        return made[0]

    run = Run()
    context: Any = SimpleNamespace(accumulator=accumulator)
    channel = ProgressChannel(context, run.hear)
    monkeypatch.delitem(_accumulatorRegistry, -78)
    made[0] += [reported(9, is_done=True)]
    assert run.heard == [reported(9, is_done=True)]
    gone = weakref.ref(run)
    del channel, run
    gc.collect()
    assert gone() is None
    # An update of a task may arrive late.
    made[0] += [reported(9, is_done=True)]
    assert made[0]._value == []
