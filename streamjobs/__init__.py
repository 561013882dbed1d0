"""Operators over streams: on Spark for production, in-process for tests."""

import statebackend_floors  # noqa: F401  first: it names a file that stands in the place of a package
from streamjobs.api.functions import KeyedProcessFunction, ProcessContext, RuntimeContext
from streamjobs.api.output_tag import OutputTag
from streamjobs.errors import (
    EpochError,
    EpochTimeoutError,
    JobDefinitionError,
    JobRestoreError,
    NullKeyError,
    SourceProgressMismatchError,
    StreamJobError,
    UserFunctionError,
)

__all__ = [
    "EpochError",
    "EpochTimeoutError",
    "JobDefinitionError",
    "JobRestoreError",
    "KeyedProcessFunction",
    "NullKeyError",
    "OutputTag",
    "ProcessContext",
    "RuntimeContext",
    "SourceProgressMismatchError",
    "StreamJobError",
    "UserFunctionError",
]
