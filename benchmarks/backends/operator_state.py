"""Cost of operator state per epoch: it is read when it is registered, and written only if it changed.

The state is a broadcast map of records. The peer is a pickled dict in a file of the same store. It is read at the start
of the epoch, and written at the end if it changed: no schema, no copies, no isolation.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator

import attrs

from benchmarks.backends.measuring import OURS, medians
from benchmarks.backends.setting import Setting
from benchmarks.result import Result
from statebackend import BroadcastStateDescriptor, OperatorStateBackend, OperatorStateBackendParameters
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle, OpaqueStateHandle
from statebackend.state.operator_state_handles import encode_operator_state
from statebackend.state.operator_state_redistribution import continued_operator_state
from statebackend.state.states import MapState

ENTRIES = 10_000

AIM = 0.5

PICKLE = "pickled dict"


@attrs.frozen
class Rule:
    """An entry of moderate size."""

    name: str
    threshold: float
    is_active: bool = True


RULES: BroadcastStateDescriptor[str, Rule] = BroadcastStateDescriptor("rules", str, Rule)


def operator_state(setting: Setting) -> Iterator[Result]:
    """Yield the cost of an epoch that does not change the state, and of one that changes an entry."""
    entries = {f"rule {number}": Rule(f"rule {number}", number / 2) for number in range(setting.count(ENTRIES))}
    for changes, what in ((False, "leaves"), (True, "changes")):
        file_system = CheckpointFileSystem.from_uri(setting.new_directory("operator-state"))
        ours, pickled = _Subtask(file_system, entries), _Pickled(file_system, entries)
        measured = medians(
            setting,
            {
                OURS: lambda: _milliseconds(setting, lambda: ours.epoch(changes)),  # noqa: B023
                PICKLE: lambda: _milliseconds(setting, lambda: pickled.epoch(changes)),  # noqa: B023
            },
        )
        name = f"operator state of {len(entries):,} records, an epoch that {what} it"
        yield Result(name, measured[OURS], measured[PICKLE], PICKLE, "ms", AIM)


def _milliseconds(setting: Setting, work: Callable[[], None]) -> float:
    start = setting.clock()
    work()
    return (setting.clock() - start) * 1e3


class _Subtask:
    """Runs epochs as a runtime does: each epoch has a new backend, restored from the handle of the previous epoch."""

    def __init__(self, file_system: CheckpointFileSystem, entries: dict[str, Rule]) -> None:
        self._file_system = file_system
        self._part: OpaqueStateHandle | None = None
        self._number = 0
        self._run(lambda rules: rules.put_all(entries))

    def epoch(self, changes: bool) -> None:
        """Open the backend, read an entry, change it if `changes`, and take the snapshot."""

        def use(rules: MapState[str, Rule]) -> None:
            if rules.get("rule 7") is None:
                raise AssertionError("an entry is missing")
            if changes:
                rules.put("rule 7", Rule("rule 7", float(self._number)))

        self._run(use)

    def _run(self, use: Callable[[MapState[str, Rule]], None]) -> None:
        self._number += 1
        [restored] = continued_operator_state([self._part], self._file_system)
        parameters = OperatorStateBackendParameters(
            operator_uid="rules", file_system=self._file_system, file_prefix="rules", restore=restored
        )
        with OperatorStateBackend(parameters) as backend:
            use(backend.get_state(RULES))
            snapshot = backend.snapshot(self._number, uuid.uuid4().hex)
        self._part = encode_operator_state(snapshot.handle)


class _Pickled:
    """Runs the same epochs on a pickled dict."""

    def __init__(self, file_system: CheckpointFileSystem, entries: dict[str, Rule]) -> None:
        self._file_system = file_system
        self._number = 0
        self._file = self._written(entries)

    def epoch(self, changes: bool) -> None:
        """Read the dict, and write it if `changes`."""
        entries = pickle.loads(self._file_system.read_file(self._file))
        if entries.get("rule 7") is None:
            raise AssertionError("an entry is missing")
        if changes:
            entries["rule 7"] = Rule("rule 7", float(self._number))
            self._file = self._written(entries)

    def _written(self, entries: dict[str, Rule]) -> FileHandle:
        self._number += 1
        data = pickle.dumps(entries, protocol=pickle.HIGHEST_PROTOCOL)
        return self._file_system.write_file(f"pickled-{self._number}", data)
