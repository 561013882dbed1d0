"""A disk in memory that keeps what was synced, and a `Storage` on it for each process.

A file is written in the steps of `statebackend.checkpoint.fs.local_storage`: a temporary name, its bytes, their sync,
the rename over the target, the sync of the directory. Between two steps the process may die, the machine may lose its
power, or the operation may fail. (LevelDB's fault injection environment, with torn writes.)

Invariants of the disk:

* A process that dies leaves everything it has done, and a part of the temporary file that it was writing.
* A machine that loses its power leaves what was synced. Each change without sync is lost, kept or, for bytes, torn, by
  a random choice.
* A dead process changes nothing, not even in its error handlers.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable

import pyarrow
from attrs import define, field

from statebackend.checkpoint.fs.conditional_objects import ConditionalObjects
from statebackend.checkpoint.fs.local_storage import TEMPORARY_PREFIX
from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.checkpoint.store.driver_lease import LEASE_FILE_NAME
from verification.simulation.host.faults import Fault, FaultKind, FaultPlace, Faults, ProcessDied
from verification.simulation.host.trace import Trace

__all__ = ["SimulatedDisk", "SimulatedStorage"]


@define
class SimulatedDisk:
    """A disk. ``files`` is what processes see, ``synced`` what survives a power failure for certain."""

    chance: random.Random
    faults: Faults
    trace: Trace
    files: dict[str, bytes] = field(factory=dict)
    synced: dict[str, bytes] = field(factory=dict)
    solid: set[str] = field(factory=set)
    """Files whose bytes are synced, even if their names are not."""
    on_other_driver: Callable[[FaultKind, Process], None] | None = None
    """Runs another driver beside the given process, when a fault starts one."""
    on_written: Callable[[str, bytes], None] = lambda path, content: None
    """Called with every object that is written under a condition."""
    changed: dict[str, int] = field(factory=dict)
    """On an object store: the step of the last put or delete of each object."""
    lists_late: bool = True
    points: set[tuple[str, str]] = field(factory=set)
    """The faults that happened, with their step and the kind of file."""

    def lose_power(self) -> None:
        """Lose, keep or tear what was not synced."""
        changed = sorted(path for path in self.files.keys() | self.synced.keys() if not self._is_synced(path))
        for path in changed:
            now, before = self.files.get(path), self.synced.get(path)
            left = [now, before]
            if now is not None and path not in self.solid:
                # The name reaches the disk before the bytes, which are then missing or zeros.
                cut = self.chance.randrange(len(now) + 1)
                left += [now[:cut], now[:cut] + bytes(len(now) - cut)]
            kept = self.chance.choice(left)
            self.trace.add(f"disk: {path} {_format_change(now, before, kept)}")
            if kept is None:
                self.files.pop(path, None)
            else:
                self.files[path] = kept
        self.synced = dict(self.files)
        self.solid = set(self.files)

    def strike(self, process: Process, what: str, among: FaultPlace | None = None) -> Fault | None:
        """Count a step of a process, and apply the fault that is due; return a fault that is due after the step.

        ``among`` is a narrower kind of steps that it counts as as well. Raises `ProcessDied`, or `OSError` for a
        failing step.
        """
        process.check()
        fault = self.faults.at(FaultPlace.STORAGE, what)
        if among is not None:
            fault = self.faults.at(among, what) or fault
        if fault is None:
            return None
        self.points.add((fault.kind.name, what))
        self.trace.add(f"{process.name}: FAULT, {fault.kind.description}, at: {what}")
        if fault.kind in (FaultKind.SECOND_DRIVER, FaultKind.RIVAL_DRIVER):
            if self.on_other_driver is not None:
                self.on_other_driver(fault.kind, process)
            process.check()
            return None
        if fault.kind is FaultKind.STORAGE_ERROR:
            raise OSError(errno.EIO, "the storage fails", what)
        if fault.kind in (FaultKind.STORAGE_ERROR_AFTER, FaultKind.NO_QUORUM):
            return fault
        process.die(lost_power=fault.kind is FaultKind.POWER_LOSS)
        raise ProcessDied(what)

    def _is_synced(self, path: str) -> bool:
        return self.files.get(path) == self.synced.get(path)


@define
class SimulatedStorage:
    """A `Storage` below a root of the disk, for one process; ``lock_directory`` is a real directory for its lock."""

    disk: SimulatedDisk
    root: str
    lock_directory: str
    process: Process

    def local_path(self, path: str) -> str | None:
        return os.path.join(self.lock_directory, path.replace("/", "-")) if path else self.lock_directory

    @property
    def has_conditional_writes(self) -> bool:
        return False

    def conditional(self) -> ConditionalObjects | None:
        """A disk has no conditional writes."""
        return None

    def make_root(self) -> None:
        self.process.check()

    def put(self, path: str, data: bytes, durable: bool) -> None:
        full = self._full(path)
        temporary = self._temporary(full)
        disk = self.disk
        try:
            self._step("create", path)
            disk.files[temporary] = data[: disk.chance.randrange(len(data) + 1)]
            self._step("write", path)
            disk.files[temporary] = data
            if durable:
                self._step("sync", path)
                disk.solid.add(temporary)
            late_fault = self._step("rename", path)
            if disk.files.pop(temporary, None) is None:
                # Another driver has removed it as a remnant of an unfinished checkpoint.
                raise FileNotFoundError(errno.ENOENT, "no such file", temporary)
            disk.files[full] = data
            disk.solid.discard(full)
            if durable:
                disk.solid.discard(temporary)
                disk.solid.add(full)
            self._fail_after(late_fault, path)
            if durable:
                late_fault = self._step("sync directory", path)
                disk.synced[full] = data
                self._fail_after(late_fault, path)
        except OSError:
            disk.files.pop(temporary, None)
            raise

    def create(self, path: str, data: bytes) -> bool:
        if self.size_bytes(path) is not None:
            return False
        self.put(path, data, durable=True)
        return True

    def put_file(self, source_path: str, path: str, may_link: bool) -> tuple[int, str]:
        with open(source_path, "rb") as source:
            data = source.read()
        self.put(path, data, durable=True)
        return len(data), checksum_of_bytes(data)

    def get_file(self, path: str, target_path: str, may_link: bool, accept: Callable[[int, str], None]) -> None:
        data = self.read(path)
        accept(len(data), checksum_of_bytes(data))
        os.makedirs(os.path.dirname(target_path), exist_ok=True)
        with open(target_path, "wb") as target:
            target.write(data)

    def read(self, path: str) -> bytes:
        self._step("read", path)
        try:
            return self.disk.files[self._full(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

    def open_input(self, path: str) -> pyarrow.NativeFile:
        return pyarrow.BufferReader(self.read(path))

    def size_bytes(self, path: str) -> int | None:
        self._step("look up", path)
        data = self.disk.files.get(self._full(path))
        return None if data is None else len(data)

    def sizes_bytes(self, paths: Iterable[str]) -> list[int | None]:
        return [self.size_bytes(path) for path in paths]

    def list_files(self, prefix: str) -> list[str]:
        self._step("list", prefix)
        return [path[len(self.root) + 1 :] for path in self._below(prefix)]

    def list_directories(self, prefix: str) -> list[str]:
        self._step("list", prefix)
        start = len(self._full(prefix)) + 1
        names = (path[start:].partition("/") for path in self._below(prefix))
        return sorted({name for name, slash, _ in names if slash})

    def copy(self, path: str, target: str) -> None:
        self.put(target, self.read(path), durable=True)

    def delete(self, path: str, durable: bool) -> None:
        full = self._full(path)
        late_fault = self._step("delete", path)
        if self.disk.files.pop(full, None) is not None and durable:
            self._step("sync directory", path)
            self.disk.synced.pop(full, None)
        self._fail_after(late_fault, path)

    def delete_directory(self, path: str) -> None:
        for full in self._below(path):
            self._step("delete", full[len(self.root) + 1 :])
            self.disk.files.pop(full, None)

    def move_directory(self, path: str, target: str) -> None:
        moved = self._below(path)
        if not moved:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        late_fault = self._step("rename", path)
        for full in moved:
            new = self._full(target) + full[len(self._full(path)) :]
            self.disk.files[new] = self.disk.files.pop(full)
            if full in self.disk.solid:
                self.disk.solid.add(new)
        self._step("sync directory", path)
        for full in moved:
            new = self._full(target) + full[len(self._full(path)) :]
            if full in self.disk.synced:
                self.disk.synced[new] = self.disk.synced.pop(full)
        self._fail_after(late_fault, path)

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def _below(self, prefix: str) -> list[str]:
        start = self._full(prefix) + "/"
        return sorted(path for path in self.disk.files if path.startswith(start))

    def _temporary(self, full: str) -> str:
        directory, _, _ = full.rpartition("/")
        return f"{directory}/{TEMPORARY_PREFIX}{self.disk.chance.getrandbits(64):016x}"

    def _step(self, deed: str, path: str) -> Fault | None:
        """Start one step; return the fault that is due after it."""
        self.process.check()
        if deed not in ("look up", "read", "list", "answer"):
            self.disk.trace.add(f"{self.process.name}: {deed} {path}")
        return self.disk.strike(self.process, f"{deed} {_kind_of(path)}", _narrower_place(path))

    def _fail_after(self, fault: Fault | None, path: str) -> None:
        if fault is not None:
            raise OSError(errno.EIO, "the disk fails after the step", path)


@define
class Process:
    """A process, until it dies. A power failure ends all processes."""

    name: str
    is_dead: bool = False
    lost_power: bool = False

    def check(self) -> None:
        """Raise `ProcessDied` if it is dead."""
        if self.is_dead:
            raise ProcessDied(self.name)

    def die(self, *, lost_power: bool = False) -> None:
        """End it."""
        self.is_dead = True
        self.lost_power = self.lost_power or lost_power


def _kind_of(path: str) -> str:
    """Return the kind of a file: its path without numbers and ids."""
    first, _, rest = path.partition("/")
    name = rest.rpartition("/")[2]
    return f"{first}/.../{name}" if name.startswith("_") else first


def _narrower_place(path: str) -> FaultPlace | None:
    if path.startswith(("checkpoints/", "completed-checkpoints")):
        return FaultPlace.COMPLETION
    return FaultPlace.LEASE if path == LEASE_FILE_NAME else None


def _format_change(now: bytes | None, before: bytes | None, kept: bytes | None) -> str:
    if kept == before:
        return "loses its last change"
    return "is on the disk by chance" if kept == now else "is torn"
