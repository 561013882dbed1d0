"""The harness of operators with an operator of windows in it."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from checkpointing.handles.state_handles import KeyedStateHandle
from statebackend.keyed.state_backend import StateBackend
from streamjobs.api.output_tag import OutputTag
from streamjobs.api.windows.window_definition import WindowDefinition
from streamjobs.operators.windows.window_operator import WindowOperator
from streamjobs.rows.declared_schema import DeclaredSchema
from streamjobs.time.timestamps import MIN_TIMESTAMP
from testkit.backends.harness import BackendHarness
from testkit.operators import OperatorTestHarness
from typeserializers.kernel.type_serializer import TypeSerializer

UID = "windows"


class WindowRun(OperatorTestHarness):
    """A window operator that was opened over a backend of its own."""

    def __init__(
        self,
        harness: BackendHarness,
        state_backend: StateBackend,
        definition: WindowDefinition,
        *restore: KeyedStateHandle,
        side_outputs: Collection[OutputTag[Any]] = (),
        schema: DeclaredSchema | None = None,
        key_serializer: TypeSerializer[Any] | None = None,
        watermark: int = MIN_TIMESTAMP,
    ) -> None:
        super().__init__(
            harness,
            state_backend,
            WindowOperator(copy.deepcopy(definition), UID),
            *restore,
            side_outputs=side_outputs,
            schemas=(schema,) * max(1, len(definition.element_serializers)),
            key_serializer=key_serializer,
            watermark=watermark,
        )
