"""What stands in for the entries of a state handle once its backend is closed."""

from __future__ import annotations

from typing import Any

from statebackend.api.errors import StateBackendClosedError


class ClosedEntries:
    """Refuses every access to a closed state, by the name of the state."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: Any) -> Any:
        raise StateBackendClosedError(
            f"state {self._name!r} is closed: state handles live for one epoch and are made anew in open()"
        )

    get = __getitem__ = __setitem__ = __contains__ = __len__ = __iter__ = _refuse
