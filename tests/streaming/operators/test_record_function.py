"""Cyclic garbage of a record function."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from statebackend import KeyedProcessFunction, ProcessContext
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.operators.record_function import YOUNG_OBJECTS

RECORDS = 5 * YOUNG_OBJECTS


class Knot:
    """References itself."""

    def __init__(self) -> None:
        self.itself = self


def test_cyclic_garbage_of_a_function_is_freed_while_the_job_runs() -> None:
    knots = weakref.WeakSet[Knot]()
    most = 0

    class Knotting(KeyedProcessFunction[str, Any, Any]):
        def process_element(self, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
            nonlocal most
            knots.add(Knot())
            most = max(most, len(knots))
            return ()

    environment = LocalStreamEnvironment(checkpoint_interval=3_600_000)
    stream = environment.from_elements([("a", number) for number in range(RECORDS)]).key_by(lambda record: record[0])
    stream.process(Knotting(), uid="knots", schema="k string").sink_to([])
    environment.execute("knots")
    assert 0 < most < RECORDS
