"""The demonstration: a job from Kafka to Delta Lake and PostgreSQL is killed, upgraded and rolled back.

Version 1 processes the first half of the payments. Its driver process is killed between the commits of its two sinks.
Version 2 continues from a savepoint, with another record in its state. A rollback of the job is rejected, because
PostgreSQL cannot hide rows; so version 2 starts once more from the savepoint, with other targets. In the end all rows
must equal what plain Python computes. Any difference ends the demonstration with status 1.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from attrs import frozen
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from examples.demonstration.comparison import DifferenceError
from examples.demonstration.driven_job import PROCESS_WHAT_ARRIVES, epochs_reported, run_to_savepoint
from examples.demonstration.driver_process import DriverProcess
from examples.demonstration.narration import restore_table
from examples.demonstration.spark_session import start_spark
from examples.demonstration.stage import Stage, run_demonstration
from examples.payments.expected import expected_rows
from examples.payments.job import EPOCH_SIZE, JOB_NAME, Places, payments_job
from examples.payments.merchants import RatedAlert
from examples.payments.payments import MERCHANTS, PARTITIONS, payments, produce
from examples.payments.version_2 import Balance
from statebackend.connectors import SinkError
from tests.connectors.kafka_server import KafkaServer, running_broker
from tests.connectors.postgres_server import PostgresServer, running_server

PARTS = 8
"""The number of epochs in which the payments are read."""

RULES = ({"far above": 10}, {"far above": 6, "above": 3})
"""The factor of each rule, in the first and in the second half."""

BALANCES = "CREATE TABLE {} (card text PRIMARY KEY, payments bigint, spent numeric(12,2), journeys bigint DEFAULT 0)"


@frozen
class Servers:
    """The running servers, and the payments of both halves."""

    kafka: KafkaServer
    postgres: PostgresServer
    halves: Sequence[Sequence[Any]]

    def places(self, stage: Stage, job: str, targets: str) -> Places:
        """Where a job reads and writes."""
        broker = self.kafka.settings["bootstrap.servers"]
        alerts = stage.root / f"alerts-{targets}"
        return Places(broker, self.postgres.conninfo(), stage.job_dir(job), alerts, f"balances_{targets}")

    def arrive(self, half: int) -> None:
        """Write the rules and the payments of a half to Kafka."""
        rules = [
            {"name": name, "factor": factor, "valid_until": "2100-01-01T00:00:00+00:00"}
            for name, factor in RULES[half].items()
        ]
        produce(self.kafka.settings, "rules", rules, key="name")
        produce(self.kafka.settings, "payments", self.halves[half], key="card")

    def committed_epoch(self) -> int:
        """The newest epoch that PostgreSQL has."""
        with psycopg.connect(self.postgres.conninfo()) as connection:
            [[newest]] = connection.execute("SELECT max(epoch) FROM statebackend_epochs").fetchall()
        return int(newest)

    def balances(self, table: str) -> list[Balance]:
        """The rows of a table of balances, sorted."""
        with psycopg.connect(self.postgres.conninfo()) as connection:
            rows = connection.execute(f"SELECT card, payments, spent, journeys FROM {table}".encode()).fetchall()
        return sorted(Balance(*row) for row in rows)


@contextlib.contextmanager
def running_servers(parts: int) -> Iterator[Servers]:
    """A broker with topics, and a server with tables, as long as the context lasts."""
    made = payments(parts * EPOCH_SIZE)
    half = len(made) // 2
    with running_broker() as kafka, running_server() as postgres:
        kafka.new_topic(PARTITIONS, "payments")
        kafka.new_topic(1, "rules")
        with postgres.connect() as connection, connection.cursor() as cursor:
            for targets in ("first", "second"):
                cursor.execute(BALANCES.format(f"balances_{targets}").encode())
            cursor.execute(b"CREATE TABLE merchants (merchant text PRIMARY KEY, risk text)")
            cursor.executemany(b"INSERT INTO merchants VALUES (%s, %s)", MERCHANTS.items())
        yield Servers(kafka, postgres, (made[:half], made[half:]))


def killed(stage: Stage, servers: Servers) -> None:
    """Step 1: version 1 runs in a driver process, which is killed between the commits of its sinks."""
    stage.narrator.step("1. Version 1 processes the first half, and is killed between the commits of its two sinks")
    servers.arrive(0)
    places, log = servers.places(stage, "version-1", "first"), stage.log("version-1-killed")
    arguments = [
        *("--broker", places.broker),
        *("--postgres", places.conninfo),
        *("--job-dir", str(places.job_dir)),
        *("--alerts", str(places.alerts)),
        *("--balances", places.balances),
        *("--savepoint", str(stage.savepoint("upgrade"))),
        *("--log", str(log)),
    ]
    driver = DriverProcess("examples.payments.driver", arguments, stage.narrator.relay, job_dir=places.job_dir, log=log)
    try:
        killed_in = driver.kill_in_epoch_after(0)
    finally:
        driver.kill()
    if driver.completed_epoch() != killed_in:
        raise DifferenceError(
            f"the kill should have hit the commit of epoch {killed_in}, but its checkpoint is missing"
        )
    if servers.committed_epoch() >= killed_in:
        raise DifferenceError(f"the kill should have hit the commit of epoch {killed_in}, but PostgreSQL has it")
    alerts, balances = len(alerts_of(places)), sum(one.payments for one in servers.balances(places.balances))
    stage.say(
        f"SIGKILL to process {driver.pid}, Python and JVM at once, in the commit of epoch {killed_in}: Delta Lake has "
        f"the alerts of epochs 0 to {killed_in} ({alerts}), PostgreSQL the balances of epochs 0 to {killed_in - 1} "
        f"({balances:,} payments)"
    )


def continued(stage: Stage, spark: SparkSession, servers: Servers) -> list[RatedAlert]:
    """Step 2: version 1 continues in this process, and stops with a savepoint. Returns its alerts."""
    stage.narrator.step("2. Version 1 is started again: it commits the rest of the epoch first")
    places = servers.places(stage, "version-1", "first")
    env = payments_job(spark, 1, places, backend="rocksdb")
    run_to_savepoint(env, JOB_NAME, stage.savepoint("upgrade"), stage.say, stage.narrator.epoch)
    return alerts_of(places)


def upgraded(stage: Stage, spark: SparkSession, servers: Servers) -> None:
    """Step 3: version 2 continues from the savepoint, with new rules."""
    stage.narrator.step(
        "3. Version 2 processes the second half: a record with more fields, the heap for RocksDB, new rules"
    )
    servers.arrive(1)
    run_version_2(stage, spark, servers.places(stage, "version-2", "first"))


def rolled_back(stage: Stage, spark: SparkSession, servers: Servers) -> None:
    """Step 4: a rollback is rejected; the way back is the savepoint, with other targets."""
    stage.narrator.step("4. A rollback, which PostgreSQL cannot follow")
    places = servers.places(stage, "version-2", "first")
    before = alerts_of(places), servers.balances(places.balances)
    try:
        payments_job(spark, 2, places, backend="heap").execute(JOB_NAME, roll_back_to="previous").stop()
    except SinkError as error:
        stage.say(str(error))
    else:
        raise DifferenceError("the job was rolled back, although PostgreSQL cannot hide rows")
    if (alerts_of(places), servers.balances(places.balances)) != before:
        raise DifferenceError("the rollback was rejected, but the targets have changed")
    stage.say("nothing has changed. So version 2 starts again from the savepoint, with other targets:")
    run_version_2(stage, spark, servers.places(stage, "version-2-again", "second"))


def run_version_2(stage: Stage, spark: SparkSession, places: Places) -> None:
    """Run version 2 from the savepoint over all payments; at the end all timers fire."""
    env = payments_job(spark, 2, places, backend="heap")
    job = env.execute(JOB_NAME, trigger=PROCESS_WHAT_ARRIVES, from_savepoint=stage.savepoint("upgrade"))
    try:
        with epochs_reported(job, stage.narrator.epoch):
            job.process_all_available()
        restore_table(stage.narrator, job.restore_report())
        job.stop_with_savepoint(stage.savepoint(places.job_dir.name), drain=True)
    except BaseException:
        job.stop()
        raise


def compare(stage: Stage, servers: Servers, of_version_1: Sequence[RatedAlert]) -> None:
    """Step 5: compare all rows with plain Python; ``of_version_1`` are the alerts before the savepoint."""
    stage.narrator.step("5. Every row is compared with plain Python")
    alerts, balances = expected_rows(servers.halves, RULES)
    first, second = (servers.places(stage, "", targets) for targets in ("first", "second"))
    found = alerts_of(first)
    require_equal("alerts", alerts, found)
    table = [("alerts", "Delta Lake", f"{len(found):,}")]
    again = alerts_of(second)
    require_equal("alerts of version 2, again", [one for one in alerts if one not in of_version_1], again)
    table.append(("alerts of version 2, again", "Delta Lake", f"{len(again):,}"))
    for what, places in (("balances", first), ("balances, again", second)):
        require_equal(what, balances, servers.balances(places.balances))
        table.append((what, "PostgreSQL", f"{len(balances):,}"))
    stage.narrator.table(("output", "target", "rows, all equal"), table, right=(2,))


def alerts_of(places: Places) -> list[RatedAlert]:
    """The rows of a Delta table of alerts, sorted."""
    rows = DeltaTable(str(places.alerts)).to_pyarrow_table().to_pylist()
    found = [RatedAlert(*(row[name] for name in RatedAlert._fields)) for row in rows]
    return sorted(found, key=lambda one: (one.card, one.at, one.reason))


def require_equal(what: str, expected: Sequence[Any], found: Sequence[Any]) -> None:
    """Raise `DifferenceError` unless both have the same rows."""
    if list(expected) != list(found):
        missing = [row for row in expected if row not in found][:5]
        more = [row for row in found if row not in expected][:5]
        counts = f"{len(expected):,} rows are expected, {len(found):,} were found"
        raise DifferenceError(f"{what}: {counts}\n  missing: {missing}\n  unexpected: {more}")


def tell(stage: Stage) -> None:
    """Run all steps. Raises `DifferenceError` or `DriverFailedError`."""
    with running_servers(stage.parts) as servers:
        killed(stage, servers)
        spark = start_spark(stage.log("spark"))
        try:
            of_version_1 = continued(stage, spark, servers)
            upgraded(stage, spark, servers)
            rolled_back(stage, spark, servers)
        finally:
            spark.stop()
        compare(stage, servers, of_version_1)
    stage.narrator.step("Done: each alert and each balance is there once, and is what it should be.")


def main(arguments: Sequence[str]) -> int:
    """Run the demonstration; return the exit status."""
    if "STATEBACKEND_KAFKA_BROKER" not in os.environ:
        print(
            "This needs a Kafka broker and PostgreSQL: run `make demo-payments`, which installs both.", file=sys.stderr
        )
        return 2
    return run_demonstration("examples.payments", __doc__, tell, arguments, parts=PARTS, fewest_parts=4)
