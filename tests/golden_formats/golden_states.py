"""Keyed state of the golden files: the content after two epochs in each state backend, and a canonical savepoint of it.

The second epoch overwrites, appends and removes. `folding` has aggregated values and namespaces, `queue` has timers,
`ttl` has state that lives for ten seconds, written at 1,000 and 2,000 ms.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from attrs import asdict, evolve

from statebackend import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends.evolving_records import MUTABLE_SUM, SUM, LegV1, leg_v1
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, ManualClock
from statebackend.testing.backends.priority_queue_contract import TIMERS, timer
from tests.golden_formats.golden_formats import GOLDEN
from typeserializers import StringSerializer

KINDS: Final = ("plain", "folding", "queue", "ttl")
STATES: Final = tuple(f"{backend}-{kind}-1" for backend in ("heap", "rocksdb", "canonical") for kind in KINDS)

LEG: Final = ValueStateDescriptor("leg", leg_v1())
PANES: Final = ListStateDescriptor("panes", int)
TTL: Final = StateTtlConfig(10_000)
TTL_DESCRIPTORS: Final[tuple[Any, ...]] = (
    ValueStateDescriptor("value", int, ttl=TTL),
    ListStateDescriptor("list", int, ttl=TTL),
    MapStateDescriptor("map", str, int, ttl=TTL),
    evolve(SUM, ttl=TTL),
    evolve(MUTABLE_SUM, ttl=TTL),
)


def golden_handle(name: str) -> KeyedStateHandle:
    """The handle of golden state with its files in the directory `store`."""
    fields = json.loads((GOLDEN / name / "handle.json").read_text())
    files = tuple(FileHandle(**file) for file in fields.pop("files"))
    return KeyedStateHandle(**{**fields, "meta": bytes.fromhex(fields["meta"])}, files=files)


def write_state(name: str, directory: Path) -> None:
    """Write the state with this name to a directory that must not exist."""
    backend_name, kind, _ = name.split("-")
    directory.mkdir()
    with tempfile.TemporaryDirectory() as temporary:
        harness = BackendHarness(temporary)
        harness.clock = clock = ManualClock()
        backend = harness.open(state_backend("heap" if backend_name == "canonical" else backend_name))
        for epoch in (1, 2):
            clock.now_ms = 1000 * epoch
            _WRITERS[kind](harness, backend, epoch)
            handle = harness.snapshot(backend).handle
        if backend_name == "canonical":
            handle = harness.export(backend)
        for file in handle.files:
            target = directory / "store" / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(harness.store_path(file.path), target)
        harness.close()
    fields = {**asdict(handle), "meta": handle.meta.hex()}
    (directory / "handle.json").write_text(json.dumps(fields, indent=1) + "\n")


def _write_plain(harness: BackendHarness, backend: KeyedStateBackend, epoch: int) -> None:
    value, elements, entries, leg = (backend.get_state(one) for one in (VALUE, LIST, MAP, LEG))
    for key in range(6):
        harness.at(backend, key)
        value.update(key + epoch - 1)
        elements.add(epoch - 1)
        entries.put_all({"key": key, f"offset-{epoch - 1}": epoch - 1})
        leg.update(LegV1("JFK", key) if epoch == 1 else LegV1("EWR", key + 1))
    if epoch == 2:
        for state in (value, elements, entries):
            state.clear()
        harness.at(backend, 4)
        entries.put("null", None)


def _write_folding(harness: BackendHarness, backend: KeyedStateBackend, epoch: int) -> None:
    total = backend.get_state(SUM)
    for key in range(3):
        harness.at(backend, key)
        total.add(key + epoch - 1)
    for key in range(4):
        harness.at(backend, key)
        for namespace in ("", "pane"):
            mutable = backend.get_partitioned_state(namespace, StringSerializer(), MUTABLE_SUM)
            mutable.add(key + len(namespace) + epoch - 1)
            backend.get_partitioned_state(namespace, StringSerializer(), PANES).add(epoch - 1)
    if epoch == 2:
        backend.get_partitioned_state("pane", StringSerializer(), MUTABLE_SUM).clear()


def _write_queue(harness: BackendHarness, backend: KeyedStateBackend, epoch: int) -> None:
    queue = backend.get_priority_queue(TIMERS)
    if epoch == 1:
        for number in range(-1, 6):
            queue.add(timer(1000 * number, number, "pane" * (number % 2)), number % 10)
    else:
        queue.remove(timer(3000, 3, "pane"), 3)
        queue.add(timer(500, 7), 7)


def _write_ttl(harness: BackendHarness, backend: KeyedStateBackend, epoch: int) -> None:
    value, elements, entries, total, mutable = (backend.get_state(one) for one in TTL_DESCRIPTORS)
    for key in range(4) if epoch == 1 else range(2, 4):
        harness.at(backend, key)
        value.update(10 * key + epoch)
        elements.add_all([key, epoch])
        entries.put_all({"number": epoch, f"null {epoch}": None})
        total.add(epoch)
        mutable.add(epoch)


_WRITERS: Final[dict[str, Any]] = {
    "plain": _write_plain,
    "folding": _write_folding,
    "queue": _write_queue,
    "ttl": _write_ttl,
}
