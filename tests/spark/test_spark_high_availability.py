"""Three drivers of one job: one is paused too long, one is killed, and the last one finishes the job."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_spark_processes import ENVIRONMENT, FILES, GIVE_UP_S, PROGRAM, Hold, make_source, written

from statebackend.checkpoint import CheckpointFileSystem, JobDirectory, ZooKeeperHighAvailability

if TYPE_CHECKING:
    from zookeeper_server import ZooKeeperServer

pytestmark = [pytest.mark.spark, pytest.mark.extended]

SESSION_TIMEOUT_S = 120.0
"""No session expires by itself even on a busy machine. The test removes the nodes of two sessions."""

LEADERS = "/words/rocksdb/leaders"


class Driver:
    """A driver that leads the job or waits as standby, and reports each checkpoint that it completes.

    After ``held_from`` epochs it waits until it is released.
    """

    def __init__(self, work: Path, server: ZooKeeperServer, number: int, held_from: int) -> None:
        self.log = work / f"log-{number}"
        self.hold = Hold(held_from)
        reading, writing = os.pipe()
        with self.log.open("wb") as log, self.hold.handed_over() as (descriptor, held):
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(PROGRAM.with_name("stand_by.py")),
                    str(work),
                    server.hosts,
                    str(SESSION_TIMEOUT_S),
                ],
                env={**ENVIRONMENT, "CHECKPOINT_EVENTS": str(writing), "CHECKPOINT_HELD": held},
                stdout=log,
                stderr=log,
                pass_fds=[writing, descriptor],
            )
        os.close(writing)
        self.events = open(reading, encoding="ascii")  # noqa: SIM115

    def completed(self) -> Iterator[int]:
        """The number of completed epochs, at each checkpoint of this driver."""
        for line in self.events:
            yield int(line.rpartition(" ")[2])

    def end(self) -> int:
        """The exit status of the driver."""
        return self.process.wait(timeout=GIVE_UP_S)

    def close(self) -> None:
        """End the driver in any state."""
        self.process.kill()
        self.process.wait(timeout=GIVE_UP_S)
        self.hold.release()
        self.events.close()


def test_with_standby_drivers_a_paused_driver_completes_nothing_and_a_killed_one_loses_nothing(
    tmp_path: Path, zookeeper_server: ZooKeeperServer
) -> None:
    expected = make_source(tmp_path, FILES)
    with ExitStack() as stack:
        drivers: list[Driver] = []
        for number in range(3):
            # A driver must not end before it is paused or killed. So the first driver waits after its second epoch.
            drivers.append(Driver(tmp_path, zookeeper_server, number, held_from=4 if number else 2))
            stack.callback(drivers[-1].close)
            if number == 0:
                # The first driver leads. It is paused at a random step.
                next(drivers[0].completed())
                drivers[0].process.send_signal(signal.SIGSTOP)
                zookeeper_server.remove_node(zookeeper_server.leading_node(LEADERS))
        paused, *others = drivers
        events = {driver: driver.completed() for driver in others}
        # One of the other two leads now. It is killed after its first epoch, and the other one finishes the job.
        killed = first_to_complete(events)
        its_node = zookeeper_server.leading_node(LEADERS)
        killed.process.send_signal(signal.SIGKILL)
        [last] = [driver for driver in others if driver is not killed]
        last.hold.release()
        assert killed.end() == -signal.SIGKILL
        zookeeper_server.remove_node(its_node)
        assert last.end() == 0, last.log.read_text(errors="replace")[-4000:]
        paused.hold.release()
        paused.process.send_signal(signal.SIGCONT)
        logged = ""
        assert paused.end() == 3, paused.log.read_text(errors="replace")[-4000:]
        logged = paused.log.read_text(errors="replace")
        assert "lost: this driver does not lead job 'rocksdb' any more" in logged
    assert written(tmp_path, "out-rocksdb") == expected
    check_nothing_is_left(tmp_path / "job-rocksdb", zookeeper_server)


def first_to_complete(events: dict[Driver, Iterator[int]]) -> Driver:
    """The leading driver, as soon as it has completed an epoch."""
    readable, _, _ = select.select([driver.events for driver in events], [], [], GIVE_UP_S)
    [led] = [driver for driver in events if driver.events in readable]
    next(events[led])
    return led


def check_nothing_is_left(job: Path, server: ZooKeeperServer) -> None:
    """Start the job again to check that it is intact and has the files of only one driver."""
    services = ZooKeeperHighAvailability(server.hosts, "/words", session_timeout_s=SESSION_TIMEOUT_S)
    file_system = CheckpointFileSystem.from_uri(job)
    assert len(file_system.list_directories("drivers")) >= 1
    with services.read_only(file_system, JobDirectory.inspect(str(job))) as records:
        found = records.pointers.find()
        newest = found.newest()
        assert newest is not None
        assert found.unreadable == {}
        assert FILES // 2 <= newest.checkpoint_id + 1 <= FILES
        for one in found.retained.values():
            file_system.verify_present(one.metadata.files)
        assert records.driver_files.exists(f"spark/commits/{newest.checkpoint_id}")
