"""The call path from `context.get_state` to the backend is short, and goes to lower layers only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from statebackend import KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.operators.subtask_context import SubtaskContext

REPOSITORY = Path(__file__).resolve().parents[3]
ROOMS = ("statebackend.streaming", "statebackend.streaming.operators", "statebackend")
"""From the top layer to the bottom layer of the path."""

passed: list[str] = []


class Watching(KeyedProcessFunction[Any, Any, Any]):
    """Records the modules that a state registration in a subtask passes."""

    def open(self, context: RuntimeContext) -> None:
        if not isinstance(context, SubtaskContext):
            context.get_state(ValueStateDescriptor("state", int))
            return
        descriptor = ValueStateDescriptor("state", int)
        sys.setprofile(self._note)
        try:
            context.get_state(descriptor)
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(REPOSITORY)):
            return
        module = frame.f_globals["__name__"]
        # Calls in which a context reads the plan or metadata are not part of the path.
        if frame.f_code.co_name in ("get_state", "_register", "register") and module not in passed:
            passed.append(module)

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        yield value["key"]


def test_the_path_to_the_backend_has_at_most_four_files_in_lower_layers() -> None:
    passed.clear()
    environment = LocalStreamEnvironment()
    stream = environment.from_elements([{"key": "a"}], schema="key string").key_by("key")
    stream.process(Watching(), uid="watching", schema="key string").sink_to([])
    environment.execute()
    assert passed[:2] == ["statebackend.streaming.functions", "statebackend.streaming.operators.subtask_context"]
    assert passed[2].startswith("statebackend.state.")
    assert len(passed) <= 4
    heights = [next(place for place, room in enumerate(ROOMS) if name.startswith(room)) for name in passed]
    assert heights == sorted(heights)
