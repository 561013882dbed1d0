"""Plants a defect: a patch within a context."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

__all__ = ["Patch", "method"]

Patch = Callable[[], contextlib.AbstractContextManager[Any]]


def method(owner: type, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Patch:
    """A method of a class replaced by a function of the original."""
    return lambda: mock.patch.object(owner, name, wrap(getattr(owner, name)))
