"""Kills a job that writes to Delta, PostgreSQL and Kafka repeatedly, and compares the final contents of the three.

The driver (`verification.chaos.sinks_driver`) reads payments from a Kafka topic and commits each epoch to four targets:
a Delta table, a PostgreSQL table to which it appends, one that it upserts, and a topic. After a number of epochs and
milliseconds it is killed by SIGKILL and started again, until no kills are left. In the end each target must have
exactly the rows that plain Python computes from the payments, without missing rows and duplicates.

A seed repeats the payments, and the epochs and delays of the kills. The instruction that a kill interrupts is chance.
"""

from __future__ import annotations

import json
import queue
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from deltalake import DeltaTable

from examples.demonstration.comparison import DifferenceError
from examples.demonstration.driver_process import DriverProcess
from tests.connectors.kafka_server import KafkaServer, running_broker
from tests.connectors.postgres_server import PostgresServer, running_server
from verification.chaos.sinks_driver import EPOCH, EPOCH_SIZE, STARTED, TABLES, Result

__all__ = ["Kill", "expected_results", "kills", "payments", "run_sinks"]

PARTITIONS: Final = 3
ACCOUNTS: Final = 40
FEED: Final = 4 * EPOCH_SIZE * PARTITIONS
"""Number of payments added before each start: about four epochs."""

MOST_EPOCHS: Final = 3
LONGEST_DELAY_MS: Final = 400
_DRIVER: Final = "verification.chaos.sinks_driver"


@frozen
class Kill:
    """A SIGKILL to the driver, ``delay_ms`` milliseconds after it completed ``after_epochs`` epochs."""

    after_epochs: int
    delay_ms: int


def kills(seed: int, count: int) -> list[Kill]:
    """Return the kills of a seed; a larger `count` only appends kills."""
    chance = random.Random(seed)
    return [Kill(chance.randint(0, MOST_EPOCHS), chance.randint(0, LONGEST_DELAY_MS)) for _ in range(count)]


def payments(seed: int) -> Iterator[tuple[int, str, int]]:
    """Yield payments endlessly: partition, account and cents. An account is in one partition, so its order is fixed."""
    chance = random.Random(seed)
    while True:
        number = chance.randrange(ACCOUNTS)
        yield number % PARTITIONS, f"account-{number}", chance.randint(1, 10_000)


def expected_results(fed: list[tuple[int, str, int]]) -> list[Result]:
    """Return the result of each payment, sorted."""
    before: dict[str, Result] = {}
    found = []
    for _, account, cents in fed:
        last = before.get(account, Result(account, 0, 0))
        before[account] = Result(account, last.number + 1, last.total + cents)
        found.append(before[account])
    return sorted(found)


def run_sinks(root: Path, seed: int, count: int, say: Callable[[str], None]) -> None:
    """Run the job through all kills and compare its output. Raises `DifferenceError`."""
    with running_broker() as broker, running_server() as postgres:
        broker.new_topic(PARTITIONS, "payments")
        broker.new_topic(PARTITIONS, "results")
        with postgres.connect() as connection:
            for table in TABLES:
                connection.execute(table.encode())
        job = _Job(root, broker, postgres)
        source, fed = payments(seed), list[tuple[int, str, int]]()
        waiting, starts = kills(seed, count), 0
        _feed(broker, source, fed)
        while waiting:
            starts += 1
            if job.is_killed_by(waiting[0], starts):
                kill = waiting.pop(0)
                number = count - len(waiting)
                say(f"kill {number}: {kill.delay_ms} ms after {kill.after_epochs} epochs of start {starts}")
            _feed(broker, source, fed)
        job.run_to_end(starts + 1)
        say(f"{starts + 1} starts, {count} kills, {len(fed):,} payments")
        expected = expected_results(fed)
        last = {one.account: one for one in expected}
        for target, found in job.rows().items():
            wanted = sorted(last.values()) if target == "PostgreSQL, upserted" else expected
            if found != wanted:
                raise DifferenceError(f"{target}: {_difference(wanted, found)}")
            say(f"{target}: {len(found):,} rows, all equal")


def _feed(broker: KafkaServer, source: Iterator[tuple[int, str, int]], fed: list[tuple[int, str, int]]) -> None:
    more = [next(source) for _ in range(FEED)]
    fed += more
    for account in sorted({one[1] for one in more}):
        own = [one for one in more if one[1] == account]
        broker.produce("payments", [b"%d" % cents for _, _, cents in own], own[0][0], key=account.encode())


def _difference(wanted: list[Result], found: list[Result]) -> str:
    missing, more = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    return (
        f"expected {len(wanted):,} rows, found {len(found):,} ({len(set(found)):,} distinct); missing: "
        f"{missing[:5]}, unexpected: {more[:5]}"
    )


@frozen
class _Job:
    """The driver and its targets."""

    root: Path
    broker: KafkaServer
    postgres: PostgresServer

    def is_killed_by(self, kill: Kill, start: int) -> bool:
        """Start the driver and kill it. Return False if it ended before, because it had read all payments."""
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        driver = self._started(start, lines)
        try:
            epochs = -1
            while epochs < kill.after_epochs:
                line = lines.get()
                if line is None:
                    driver.wait()
                    return False
                epochs += line == STARTED or line.startswith(EPOCH)
            return not driver.ends_within(kill.delay_ms / 1000)
        finally:
            driver.kill()

    def run_to_end(self, start: int) -> None:
        """Run the driver until all payments are processed. Raises `DriverFailedError`."""
        driver = self._started(start, queue.SimpleQueue())
        try:
            driver.wait()
        finally:
            driver.kill()

    def rows(self) -> Mapping[str, list[Result]]:
        """Return the rows of each target, sorted."""
        names = Result._fields
        delta = DeltaTable(str(self.root / "delta")).to_pyarrow_table().select(names)
        with self.postgres.connect() as connection:
            results, balances = (
                connection.execute(f"SELECT account, number, total FROM {table}".encode()).fetchall()
                for table in ("results", "balances")
            )
        topic = [json.loads(one.value()) for one in self.broker.records("results")]
        found: Mapping[str, list[Any]] = {
            "Delta": [tuple(row.values()) for row in delta.to_pylist()],
            "PostgreSQL, appended": results,
            "PostgreSQL, upserted": balances,
            "Kafka": [tuple(row[name] for name in names) for row in topic],
        }
        return {target: sorted(Result(*row) for row in rows) for target, rows in found.items()}

    def _started(self, number: int, lines: queue.SimpleQueue[str | None]) -> DriverProcess:
        arguments = [
            *("--root", str(self.root)),
            *("--broker", self.broker.settings["bootstrap.servers"]),
            *("--postgres", self.postgres.conninfo()),
        ]
        log = self.root / f"driver-{number}.log"
        driver = DriverProcess(
            _DRIVER, arguments, lines.put, job_dir=self.root / "job", log=log, on_end=lambda: lines.put(None)
        )
        driver.hang_up()
        return driver
