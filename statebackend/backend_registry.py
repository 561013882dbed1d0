"""Finding a state backend by name: the built-in ones, and those that other distributions bring as entry points.

A third party declares its backend in the entry point group ``statebackend.backends``; the entry point's name is the
backend's, and its value a callable without arguments that returns a `StateBackend`.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Final

from statebackend.errors import StateBackendError
from statebackend.keyed_state_backend import StateBackend

ENTRY_POINT_GROUP: Final = "statebackend.backends"


class UnknownStateBackendError(StateBackendError, ValueError):
    """No backend of that name is installed."""


def _rocksdb() -> StateBackend:
    from statebackend.rocksdb.keyed_backend import RocksDBStateBackend

    return RocksDBStateBackend()


_BUILT_IN: Final = {"rocksdb": _rocksdb}


def state_backend(backend: str | StateBackend) -> StateBackend:
    """The backend of that name, or the given one itself; raises `UnknownStateBackendError` naming the known ones."""
    if isinstance(backend, StateBackend):
        return backend
    if backend in _BUILT_IN:
        return _BUILT_IN[backend]()
    installed = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if backend in installed:
        found: StateBackend = installed[backend].load()()
        return found
    known = sorted({*_BUILT_IN, *installed})
    raise UnknownStateBackendError(f"no state backend is called {backend!r}; known are {', '.join(known)}")
