"""Finds a state backend by name: the built-in ones, and those that other distributions declare.

A distribution declares a backend as an entry point of the group ``statebackend.backends``, whose object is called
without arguments and gives a `StateBackend`:

    [project.entry-points."statebackend.backends"]
    paged = "paged_state:PagedStateBackend"

``docs/writing-a-backend.md`` says what such a backend implements. The built-in names cannot be taken by others.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Final

from statebackend.api.errors import StateBackendError
from statebackend.keyed.state_backend import StateBackend

ENTRY_POINT_GROUP: Final = "statebackend.backends"

# They are found without the metadata of this distribution, which a checkout does not have.
_BUILT_IN: Final = {
    "heap": "statebackend.heap.heap_state_backend:HeapStateBackend",
    "rocksdb": "statebackend.rocksdb.rocksdb_state_backend:RocksDBStateBackend",
}


class UnknownStateBackendError(StateBackendError, LookupError):
    """No backend has that name, or what has it is not a backend."""


def state_backend(name_or_instance: str | StateBackend) -> StateBackend:
    """The backend of that name, in its default configuration; an instance is returned as it is.

    Raises `UnknownStateBackendError`, listing the known names, if there is none or it cannot be loaded.
    """
    if isinstance(name_or_instance, StateBackend):
        return name_or_instance
    if isinstance(name_or_instance, type):
        raise UnknownStateBackendError(f"{name_or_instance.__name__} is a class; make an instance, or give a name")
    # The metadata of all distributions is read for other names only: that takes longer than to open a small state.
    entry_point = _built_in().get(name_or_instance) or _known_backends().get(name_or_instance)
    if entry_point is None:
        known = ", ".join(known_state_backends())
        raise UnknownStateBackendError(
            f"there is no state backend {name_or_instance!r}; known are {known}. A distribution declares others as "
            f"entry points of the group {ENTRY_POINT_GROUP!r}"
        )
    try:
        backend = entry_point.load()()
    except Exception as error:
        raise UnknownStateBackendError(
            f"the state backend {name_or_instance!r} ({entry_point.value}) cannot be loaded: {error}"
        ) from error
    if not isinstance(backend, StateBackend):
        raise UnknownStateBackendError(
            f"the entry point {name_or_instance!r} ({entry_point.value}) gives {type(backend).__name__}, "
            f"which is not a StateBackend"
        )
    return backend


def known_state_backends() -> tuple[str, ...]:
    """The names of all backends that `state_backend` finds, sorted."""
    return tuple(sorted(_known_backends()))


def _known_backends() -> dict[str, EntryPoint]:
    declared = {entry_point.name: entry_point for entry_point in entry_points(group=ENTRY_POINT_GROUP)}
    return {**declared, **_built_in()}


def _built_in() -> dict[str, EntryPoint]:
    return {name: EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in _BUILT_IN.items()}
