"""The operator of a `KeyedProcessFunction`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checkpointing.errors import CheckpointError
from snapshots.errors import StateFormatError
from statebackend.api.errors import StateBackendError
from streamjobs.api.functions import KeyedProcessFunction, ProcessContext
from streamjobs.errors import StreamJobError, UserFunctionError
from streamjobs.operators.operator import Emitter, InputBatch, Operator
from streamjobs.operators.record_function import RecordFunctionAdapter
from streamjobs.operators.subtask_context import SubtaskContext
from streamjobs.user_errors import told

__all__ = ["KeyedProcessOperator"]


class KeyedProcessOperator(Operator):
    """Calls a function for every record of its one input."""

    def __init__(self, function: KeyedProcessFunction[Any, Any, Any], uid: str) -> None:
        self._function = function
        self._uid = uid

    def open(self, context: SubtaskContext, emitter: Emitter) -> None:
        self._emitter = emitter
        self._side: dict[Any, list[Any]] = {tag: [] for tag in emitter.side_outputs}
        process_context: ProcessContext[Any] = ProcessContext(
            context.epoch_id, {tag: rows.append for tag, rows in self._side.items()}
        )
        self._call("open", lambda: self._function.open(context))
        self._adapter = RecordFunctionAdapter(
            self._function.process_element, "process_element", self._uid, process_context, context.keyed
        )

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        self._emitter.emit(None, self._adapter.run(batch))
        for tag, rows in self._side.items():
            if rows:
                self._emitter.emit(tag, tuple(rows))
                rows.clear()

    def close(self) -> None:
        self._call("close", self._function.close)

    def _call(self, method: str, call: Callable[[], None]) -> None:
        try:
            call()
        except (StreamJobError, StateBackendError, StateFormatError, CheckpointError):
            raise
        except Exception as error:
            raise UserFunctionError(f"operator {self._uid!r}: {method} raised {told(error)}") from error
