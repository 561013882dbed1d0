"""The local runtime: jobs in this process, without a JVM, for tests and small jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statebackend.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from statebackend.local.environment import LocalStreamEnvironment
    from statebackend.local.job import LocalJob

__all__ = [
    "LocalJob",
    "LocalStreamEnvironment",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "statebackend.local.environment": ("LocalStreamEnvironment",),
        "statebackend.local.job": ("LocalJob",),
    },
)
