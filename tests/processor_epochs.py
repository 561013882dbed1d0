"""A stateful processor run epoch by epoch on a real backend, as in a runtime."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.streaming.operators.stateful_processor import StatefulProcessorOperator
from statebackend.streaming.rows.row_reader import row_class
from statebackend.streaming.runtime.restore_plan import SubtaskRestore, continued_subtask
from statebackend.streaming.stateful_processor import StatefulProcessorFunction, TimeMode
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.testing.backends.harness import BackendHarness
from statebackend.testing.operators import OperatorTestHarness
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.scalars.strings import StringSerializer

UID = "processor"


class EpochDrive:
    """Runs a processor epoch by epoch: due timers, records, the barrier, and again."""

    def __init__(
        self,
        directory: Path,
        backend: Any,
        processor: Any,
        mode: TimeMode,
        columns: Sequence[str] = ("k", "register", "delete"),
        output: str = "k string, text string",
        key_width: int = 1,
    ) -> None:
        self.harness = BackendHarness(str(directory))
        self.backend = backend
        self.function = StatefulProcessorFunction(processor, mode, output, key_width)
        self.key_width = key_width
        text = StringSerializer()
        self.key_serializer: Any = text if key_width == 1 else TupleSerializer([text] * key_width)
        self.record_class = row_class(tuple(columns))
        self.state: SubtaskState | None = None
        self.is_in_event_time = mode is TimeMode.EVENT_TIME

    def epoch(self, time: int, *records: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """An epoch at a time, or at Spark's watermark; records are (key, timestamp, the other columns ...), by key."""
        restore = SubtaskRestore() if self.state is None else continued_subtask(self.state, self.harness.file_system)
        run = OperatorTestHarness(
            self.harness,
            self.backend,
            StatefulProcessorOperator(copy.deepcopy(self.function), UID),
            *(one.handle for one in restore.keyed),
            key_serializer=self.key_serializer,
            operator_state=restore.operator,
        )
        if self.is_in_event_time:
            run.watermark(time if time == MIN_TIMESTAMP else time - 1)
        else:
            run.processing_time(time)
        for key, timestamp, *values in records:
            parts = (key,) if self.key_width == 1 else key
            run.records((key, tuple.__new__(self.record_class, (*parts, *values)), timestamp))
        self.state = run.subtask_state()
        before_ms = run.timers.next_event_time_timer()
        self.next_timer = run.timers.next_processing_time_timer() if before_ms is None else before_ms + 1
        return [tuple(row) for row in run.rows()]
