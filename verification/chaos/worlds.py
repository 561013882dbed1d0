"""Where a job runs, and what can be done to that: one class for each `World`.

    path         where the job keeps something: a path, or a URI of an object store
    arguments    what the driver is told beside that
    environment  what it finds in its environment
    strike       does what a strike says to anything but the processes of the job
    last_words   what its servers have said last, by their names

Servers and disks are made for one job, and end with it. Each is given back as it was when a strike is over.
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
"""How long an object store is away, or a disk full."""

SESSIONS: Final = (0.4, 1.5)
"""How long ZooKeeper answers nobody, in session timeouts: less or more than one."""

SMALL_DISK_MB: Final = 96
DAY_S: Final = 86_400


class WorldMissingError(Exception):
    """This machine, or this user, cannot have that world; the message says what is missing."""


class JobWorld(Protocol):
    """See the module."""

    def path(self, name: str) -> str:
        """Where the job has its directory, rows or a savepoint."""

    @property
    def arguments(self) -> Sequence[str]:
        """What its driver is told."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What its driver finds in its environment."""

    def strike(self, strike: Strike) -> None:
        """Does what it says, and gives everything back; it is one of this world's."""

    def last_words(self) -> Mapping[str, str]:
        """For who looks for the reason when a job makes no progress."""


@define
class _Disk:
    """A disk, and a clock that all processes of the job see; without a C compiler it cannot be moved."""

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

    def last_words(self) -> Mapping[str, str]:
        return {}


@define
class _Cluster:
    """Two executors of one core each, and one server of ZooKeeper."""

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

    def last_words(self) -> Mapping[str, str]:
        return {"ZooKeeper": self.server.log}


@define
class _Store:
    """An object store behind a proxy that loses connections, and is busy."""

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

    def last_words(self) -> Mapping[str, str]:
        return {"object store": f"has {len(self.bucket.keys)} objects"}


@define
class _SmallDisk:
    """A disk of some megabytes, which is filled up."""

    root: Path
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(factory=dict)

    def path(self, name: str) -> str:
        return str(self.root / "disk" / name)

    def strike(self, strike: Strike) -> None:
        filler = self.root / "disk" / "filler"
        stop = threading.Event()

        def fill() -> None:
            # What the job frees meanwhile is taken as well.
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
            # A run that is told to end ends only when nobody fills the disk any more.
            stop.set()
            filling.join()
            filler.unlink()

    def last_words(self) -> Mapping[str, str]:
        usage = shutil.disk_usage(self.root / "disk")
        return {"small disk": f"{usage.used:,} of {usage.total:,} bytes are used"}


def _silence_s(strike: Strike) -> float:
    return SESSION_TIMEOUT_S * SESSIONS[strike.choice % len(SESSIONS)]


@contextlib.contextmanager
def opened_world(world: World, root: Path) -> Iterator[JobWorld]:
    """A world below ``root`` as long as the context lasts; raises `WorldMissingError`."""
    root.mkdir(parents=True, exist_ok=True)
    with _OPENED[world](root) as opened:
        yield opened


@contextlib.contextmanager
def _disk(root: Path) -> Iterator[JobWorld]:
    (root / "clock").write_bytes(bytes(8))
    compiler = shutil.which("cc")
    if compiler is None:
        raise WorldMissingError("a clock that can be moved needs a C compiler (cc)")
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
        # Who compares what is there in the end reads it as the job does.
        os.environ.update(bucket.credentials)
        with contextlib.closing(FaultyProxy(server.port)) as proxy:
            yield _Store(root, bucket, proxy)


@contextlib.contextmanager
def _small_disk(root: Path) -> Iterator[JobWorld]:
    # Memory outlives the processes that are killed, as a disk would.
    place = root / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MB}m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        raise WorldMissingError(f"a small disk needs the right to mount one: {mounted.stderr.strip()}")
    try:
        yield _SmallDisk(root)
    except Exception:
        # What is looked at behind a failure outlives the disk.
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
