"""Memory per entry on the heap, compared with a dict of the same keys and values.

`tracemalloc` counts the bytes, so keys, values and all tables are included on both sides. Dicts grow in steps, so the
result is a sum over several sizes. The values are too large for Python's cache of small integers.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.backends.setting import Setting, key_group_of
from benchmarks.backends.subtask import Subtask
from benchmarks.result import Result
from statebackend import ValueStateDescriptor
from statebackend.state.keyed_state_backend import KeyedStateBackend

AIM = 0.5
"""At most twice the bytes of the dict."""

_SIZES = (100_000, 130_000, 160_000, 190_000)

_FIRST_KEY = 1 << 20

_BARE = "bare dict"


def heap_bytes(setting: Setting) -> Iterator[Result]:
    """Yield the bytes per entry after a snapshot, while every entry changes, and after a restore."""
    totals: dict[str, int] = {}
    entries = 0
    for size in _SIZES:
        keys = setting.count(size)
        entries += keys
        for name, count in _measured(setting, keys):
            totals[name] = totals.get(name, 0) + count
    bare = totals.pop(_BARE) / entries
    for name, total in totals.items():
        yield Result(f"heap bytes per entry, {name}", total / entries, bare, _BARE, "bytes", AIM)


def _measured(setting: Setting, keys: int) -> Iterator[tuple[str, int]]:
    kept: list[Any] = []
    with _tracing() as allocated:
        kept.append({_FIRST_KEY + key: _FIRST_KEY - key for key in range(keys)})
        bare = allocated()
    yield _BARE, bare
    kept.clear()
    with Subtask(setting.new_directory("bytes")) as subtask:
        backend = subtask.open("heap")
        state: Any = backend.get_state(ValueStateDescriptor("count", int))
        with _tracing() as allocated:
            _update_all(backend, state, keys, _FIRST_KEY)
            handle = subtask.snapshot(backend)
            after_snapshot = allocated()
            _update_all(backend, state, keys, _FIRST_KEY + 1)
            changed = allocated()
        yield "after a snapshot", after_snapshot
        yield "after a change of every entry", changed
        subtask.close()
        with _tracing() as allocated:
            kept.append(_restored(subtask, handle))
            restored = allocated()
        yield "after a restore", restored


def _restored(subtask: Subtask, handle: Any) -> KeyedStateBackend:
    backend = subtask.open("heap", handle)
    backend.get_state(ValueStateDescriptor("count", int))
    return backend


def _update_all(backend: KeyedStateBackend, state: Any, keys: int, minuend: int) -> None:
    for key in range(keys):
        backend.set_current_key(_FIRST_KEY + key, key_group_of(key))
        state.update(minuend - key)


@contextmanager
def _tracing() -> Iterator[Callable[[], int]]:
    """Yield a function that returns how many bytes were allocated since the start of the block and are still in use."""

    def allocated() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    gc.collect()
    tracemalloc.start()
    try:
        yield allocated
    finally:
        tracemalloc.stop()
