"""All that lives of a job share: the disk, the faults that are left, the clock, chance, and the trace of the steps."""

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
    """See the module; ``moves_chance`` decides who moves next, and nothing else. ZooKeeper is beside the machine."""

    disk: SimulatedDisk
    zookeeper: SimulatedZooKeeper
    faults: Faults
    clock: SimulatedClock
    moves_chance: random.Random
    trace: Trace

    @classmethod
    def of_seed(cls, seed: int, faults: Iterable[Fault], keeps_lines: bool) -> Machine:
        """A machine on which nothing has happened."""
        trace = Trace(keeps_lines)
        pending = Faults(faults)
        disk = SimulatedDisk(random.Random(f"disk {seed}"), pending, trace)
        return cls(disk, SimulatedZooKeeper(disk), pending, SimulatedClock(), random.Random(f"moves {seed}"), trace)

    def file_system(self, root: str, process: Process, *, are_objects: bool = False) -> CheckpointFileSystem:
        """The files below a root, for a process: of a disk, or of an object store."""
        kind = SimulatedObjectStore if are_objects else SimulatedStorage
        return CheckpointFileSystem(f"{_SCHEME}/{root}", kind(self.disk, root, lock_directory(), process))

    def clock_faults(self, place: FaultPlace = FaultPlace.MOVE, what: str = "move") -> FaultKind | None:
        """Counts a step of a place; the clock jumps if it is time. Returns what else strikes at it."""
        fault = self.faults.at(place, what)
        if fault is None:
            return None
        self.trace.add(f"FAULT, {fault.kind.told}")
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
    """A real directory for the locks of simulated drivers, which goes with this process."""
    if not _LOCKS:
        _LOCKS.append(tempfile.TemporaryDirectory(prefix="simulation-locks-"))
    return _LOCKS[0].name
