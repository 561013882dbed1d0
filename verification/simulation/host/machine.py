"""What all runs of a job share: disk, remaining faults, clock, random generators, and the trace of the steps."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable

from attrs import define

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from verification.simulation.host.chance import SimulatedClock
from verification.simulation.host.disk import Process, SimulatedDisk, SimulatedStorage
from verification.simulation.host.faults import Fault, FaultKind, FaultPlace, Faults
from verification.simulation.host.object_store import SimulatedObjectStore
from verification.simulation.host.trace import Trace
from verification.simulation.host.zookeeper import SimulatedZooKeeper

__all__ = ["Machine", "lock_directory"]

_SCHEME = "simulated://disk"


@define
class Machine:
    """The machine. ``moves_chance`` only decides who moves next. ZooKeeper runs beside the machine."""

    disk: SimulatedDisk
    zookeeper: SimulatedZooKeeper
    faults: Faults
    clock: SimulatedClock
    moves_chance: random.Random
    trace: Trace

    @classmethod
    def of_seed(cls, seed: int, faults: Iterable[Fault], keeps_lines: bool) -> Machine:
        """Return a new machine."""
        trace = Trace(keeps_lines)
        pending = Faults(faults)
        disk = SimulatedDisk(random.Random(f"disk {seed}"), pending, trace)
        return cls(disk, SimulatedZooKeeper(disk), pending, SimulatedClock(), random.Random(f"moves {seed}"), trace)

    def file_system(self, root: str, process: Process, *, are_objects: bool = False) -> CheckpointFileSystem:
        """Return the files below a root, on a disk or an object store, for a process."""
        kind = SimulatedObjectStore if are_objects else SimulatedStorage
        return CheckpointFileSystem(f"{_SCHEME}/{root}", kind(self.disk, root, lock_directory(), process))

    def clock_faults(self, place: FaultPlace = FaultPlace.MOVE, what: str = "move") -> FaultKind | None:
        """Count a step of a place; let the clock jump if that is due. Return other faults."""
        fault = self.faults.at(place, what)
        if fault is None:
            return None
        self.trace.add(f"FAULT, {fault.kind.description}")
        self.disk.points.add((fault.kind.name, what))
        if fault.kind is FaultKind.CLOCK_JUMPS_AHEAD:
            self.clock.jump_ms(3_600_000)
        elif fault.kind is FaultKind.CLOCK_JUMPS_BACK:
            self.clock.jump_ms(-3_600_000)
        else:
            return fault.kind
        return None


_LOCKS: list[tempfile.TemporaryDirectory[str]] = []


def lock_directory() -> str:
    """A real directory for the locks of simulated drivers, removed with this process."""
    if not _LOCKS:
        _LOCKS.append(tempfile.TemporaryDirectory(prefix="simulation-locks-"))
    return _LOCKS[0].name
