"""The environments in which a job runs, and the strikes on them: one class for each `World`.

Servers and disks are created for one job, and removed after it. After a strike, everything works again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from attrs import define, field

from tests.object_store import Bucket, Fault, FaultyProxy, ObjectStoreServer
from tests.zookeeper_server import ZooKeeperServer
from verification.chaos.strikes import Strike, Target, World
from verification.chaos.struck_driver import SESSION_TIMEOUT_S

__all__ = ["JobWorld", "WorldMissingError", "opened_world"]

GONE_S: Final = 4.0
"""Seconds for which an object store is unavailable, or a disk is full."""

SESSIONS: Final = (0.4, 1.5)
"""Durations for which ZooKeeper does not answer, in session timeouts: less or more than one."""

SMALL_DISK_MB: Final = 96
DAY_S: Final = 86_400


class WorldMissingError(Exception):
    """This machine or user lacks something that the world needs; the message names it."""


class JobWorld(Protocol):
    """The environment of a job."""

    def path(self, name: str) -> str:
        """Return a path or an object store URI, for the job directory, the rows or a savepoint."""

    @property
    def arguments(self) -> Sequence[str]:
        """Additional arguments of the driver."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Additional environment variables of the driver."""

    def strike(self, strike: Strike) -> None:
        """Run a strike of this world, and undo it; strikes on processes of the job do not come here."""

    def diagnostics(self) -> Mapping[str, str]:
        """Return diagnostics of the world's servers and disks by name, for a job that makes no progress."""


@define
class _Disk:
    """A disk, and a clock for all processes of the job that strikes can move; needs a C compiler."""

    root: Path
    library: str = ""
    arguments: Sequence[str] = ()

    def path(self, name: str) -> str:
        return str(self.root / name)

    @property
    def environment(self) -> Mapping[str, str]:
        return {"LD_PRELOAD": self.library, "CHAOS_CLOCK": str(self.root / "clock")} if self.library else {}

    def strike(self, strike: Strike) -> None:
        seconds = strike.choice % (2 * DAY_S) - DAY_S
        with (self.root / "clock").open("r+b") as clock:
            clock.write(seconds.to_bytes(8, "little", signed=True))

    def diagnostics(self) -> Mapping[str, str]:
        return {}


@define
class _Cluster:
    """Two executors of one core each, and one ZooKeeper server."""

    root: Path
    server: ZooKeeperServer
    environment: Mapping[str, str] = field(factory=dict)

    def path(self, name: str) -> str:
        return str(self.root / name)

    @property
    def arguments(self) -> Sequence[str]:
        return "--master", "local-cluster[2,1,1024]", "--zookeeper", self.server.hosts

    def strike(self, strike: Strike) -> None:
        if strike.target is Target.ZOOKEEPER_KILL:
            self.server.stop()
            time.sleep(_silence_s(strike))
            self.server.start()
            return
        self.server.signal(signal.SIGSTOP)
        time.sleep(_silence_s(strike))
        self.server.signal(signal.SIGCONT)

    def diagnostics(self) -> Mapping[str, str]:
        return {"ZooKeeper": self.server.log}


@define
class _Store:
    """An object store behind a proxy that can close connections and answer 503."""

    root: Path
    bucket: Bucket
    proxy: FaultyProxy
    environment: Mapping[str, str] = field(factory=dict)

    def path(self, name: str) -> str:
        return self.bucket.uri(name, port=self.proxy.port)

    @property
    def arguments(self) -> Sequence[str]:
        return "--spark-log-dir", str(self.root / "spark-log")

    def strike(self, strike: Strike) -> None:
        fault = {Target.STORE_GONE: Fault.DROP, Target.STORE_BUSY: Fault.ERROR_503}[strike.target]
        for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
            self.proxy.fail(fault, method, "")
        time.sleep(GONE_S)
        self.proxy.heal()

    def diagnostics(self) -> Mapping[str, str]:
        return {"object store": f"has {len(self.bucket.keys)} objects"}


@define
class _SmallDisk:
    """A disk of some megabytes that strikes fill."""

    root: Path
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(factory=dict)

    def path(self, name: str) -> str:
        return str(self.root / "disk" / name)

    def strike(self, strike: Strike) -> None:
        filler = self.root / "disk" / "filler"
        stop = threading.Event()

        def fill() -> None:
            # The loop also fills space that the job frees.
            with filler.open("ab", buffering=0) as file:
                while not stop.wait(0.01):
                    with contextlib.suppress(OSError):
                        while not stop.is_set():
                            file.write(bytes(1 << 16))

        filling = threading.Thread(target=fill)
        filling.start()
        try:
            time.sleep(GONE_S)
        finally:
            # The thread must end, or a run that receives SIGTERM would never end.
            stop.set()
            filling.join()
            filler.unlink()

    def diagnostics(self) -> Mapping[str, str]:
        usage = shutil.disk_usage(self.root / "disk")
        return {"small disk": f"{usage.used:,} of {usage.total:,} bytes are used"}


def _silence_s(strike: Strike) -> float:
    return SESSION_TIMEOUT_S * SESSIONS[strike.choice % len(SESSIONS)]


@contextlib.contextmanager
def opened_world(world: World, root: Path) -> Iterator[JobWorld]:
    """Yield a world below ``root``, and close it at the end. Raises `WorldMissingError`."""
    root.mkdir(parents=True, exist_ok=True)
    with _OPENED[world](root) as opened:
        yield opened


@contextlib.contextmanager
def _disk(root: Path) -> Iterator[JobWorld]:
    (root / "clock").write_bytes(bytes(8))
    compiler = shutil.which("cc")
    if compiler is None:
        raise WorldMissingError("the disk with a movable clock needs a C compiler (cc)")
    library, source = str(root / "moved_clock.so"), str(Path(__file__).with_name("moved_clock.c"))
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    yield _Disk(root, library)


@contextlib.contextmanager
def _cluster(root: Path) -> Iterator[JobWorld]:
    server = ZooKeeperServer(root / "zookeeper")
    try:
        server.start()
        yield _Cluster(root, server)
    finally:
        server.stop()


@contextlib.contextmanager
def _store(root: Path) -> Iterator[JobWorld]:
    with contextlib.closing(ObjectStoreServer()) as server:
        server.new_bucket("chaos")
        bucket = Bucket(server, "chaos")
        # The comparison in this process reads the store with the job's credentials.
        os.environ.update(bucket.credentials)
        with contextlib.closing(FaultyProxy(server.port)) as proxy:
            yield _Store(root, bucket, proxy)


@contextlib.contextmanager
def _small_disk(root: Path) -> Iterator[JobWorld]:
    # Like a disk, a tmpfs keeps its files when processes are killed.
    place = root / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MB}m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        raise WorldMissingError(f"the small disk needs the permission to mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield _SmallDisk(root)
    except Exception:
        # Keep the files of a failed run, because the disk is removed.
        shutil.copytree(place, root / "disk-as-it-was", ignore_dangling_symlinks=True)
        raise
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


_OPENED: Final[Mapping[World, Callable[[Path], contextlib.AbstractContextManager[JobWorld]]]] = {
    World.DISK: _disk,
    World.CLUSTER: _cluster,
    World.STORE: _store,
    World.SMALL_DISK: _small_disk,
}
