"""Tasks send acknowledgements to the driver. The tests of Spark jobs cover the transport."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.accumulators import Accumulator, _accumulatorRegistry

from statebackend.spark.tasks.channels import AcknowledgementChannel

ID = -1000


@pytest.fixture
def channel() -> Iterator[AcknowledgementChannel]:
    context: Any = SimpleNamespace(accumulator=lambda value, param: Accumulator(ID, value, param))
    yield AcknowledgementChannel(context)
    _accumulatorRegistry.pop(ID, None)


def of_a_task(channel: AcknowledgementChannel, *sent: tuple[int, bytes]) -> list[tuple[int, bytes]]:
    """The accumulator updates of a task that sends this acknowledgement."""
    pickled = pickle.dumps(channel.sender)
    on_the_driver = _accumulatorRegistry.pop(ID)
    try:
        sender = pickle.loads(pickled)
        for epoch_id, encoded in sent:
            sender.send(epoch_id, encoded)
        added: list[tuple[int, bytes]] = _accumulatorRegistry[ID]._value
        return added
    finally:
        _accumulatorRegistry[ID] = on_the_driver


def test_acknowledgements_arrive_at_their_epoch_once(channel: AcknowledgementChannel) -> None:
    for added in (of_a_task(channel, (3, b"a")), of_a_task(channel, (3, b"b"))):
        _accumulatorRegistry[ID] += added
    assert channel.take(3) == [b"a", b"b"]
    assert channel.take(3) == []


def test_late_acknowledgements_of_a_finished_epoch_are_dropped(channel: AcknowledgementChannel) -> None:
    for added in (of_a_task(channel, (3, b"late")), of_a_task(channel, (4, b"a"))):
        _accumulatorRegistry[ID] += added
    assert channel.take(4) == [b"a"]
    assert channel.take(3) == []


def test_a_task_is_not_sent_the_acknowledgements_of_others(channel: AcknowledgementChannel) -> None:
    _accumulatorRegistry[ID] += of_a_task(channel, (3, b"x" * 100_000))
    assert of_a_task(channel, (3, b"a")) == [(3, b"a")]
    assert len(pickle.dumps(channel.sender)) < 1000
