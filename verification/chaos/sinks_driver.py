"""The driver of the chaos test of sinks: a local job from a Kafka topic to Delta, PostgreSQL and Kafka.

It prints a line when it starts, and one for each complete epoch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from attrs import frozen

from examples.demonstration.driven_job import print_line
from statebackend import KeyedProcessFunction, ValueStateDescriptor
from statebackend.connectors import DeltaSink, KafkaRecord, KafkaSink, KafkaSource, PostgresSink
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.observing.job_events import EpochCompleted, JobListener

__all__ = ["EPOCH", "EPOCH_SIZE", "STARTED", "TABLES", "Result"]

EPOCH: Final = "epoch"
STARTED: Final = "started"
EPOCH_SIZE: Final = 100

TABLES: Final = (
    "CREATE TABLE results (account text, number bigint, total bigint)",
    "CREATE TABLE balances (account text PRIMARY KEY, number bigint, total bigint)",
)
"""The tables of the job. ``results`` has no key, so it shows rows that are written twice."""


class Payment(NamedTuple):
    """A record of the input."""

    account: str
    cents: int


class Result(NamedTuple):
    """The count and the sum of an account's payments up to one of them."""

    account: str
    number: int
    total: int


@frozen
class Balance:
    """The state of an account."""

    number: int = 0
    total: int = 0


class AddUp(KeyedProcessFunction[str, Payment, Result]):
    """Emits a result for each payment."""

    balance = ValueStateDescriptor("balance", Balance, default=Balance())

    def process_element(self, value: Payment, context: Any) -> Iterator[Result]:
        before = self.balance.value()
        now = Balance(before.number + 1, before.total + value.cents)
        self.balance.update(now)
        yield Result(value.account, now.number, now.total)


def decoded(record: KafkaRecord) -> Payment:
    """Return the payment of a record: its key and its value."""
    assert record.key is not None
    assert record.value is not None
    return Payment(record.key.decode(), int(record.value))


class _Printing(JobListener):
    def epoch_completed(self, event: EpochCompleted) -> None:
        print_line(f"{EPOCH} {event.epoch.epoch_id}")


def main(arguments: Sequence[str]) -> None:
    """Run the job to the end of the topic."""
    parser = argparse.ArgumentParser(prog="python -m verification.chaos.sinks_driver", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="the directory of the job and of the Delta table")
    parser.add_argument("--broker", required=True)
    parser.add_argument("--postgres", required=True)
    options = parser.parse_args(arguments)
    kafka = {"bootstrap.servers": options.broker}
    environment = LocalStreamEnvironment(job_dir=options.root / "job", parallelism=2, epoch_size=EPOCH_SIZE)
    source = KafkaSource(kafka, "payments", until="latest", decode=decoded)
    results = environment.from_source(source, Payment, uid="payments").key_by("account").process(AddUp(), uid="add-up")
    results.sink_to(DeltaSink(str(options.root / "delta")), uid="delta")
    results.sink_to(PostgresSink(options.postgres, "results"), uid="results")
    results.sink_to(PostgresSink(options.postgres, "balances", key=["account"]), uid="balances")
    results.sink_to(KafkaSink(kafka, "results", key="account"), uid="kafka")
    environment.add_listener(_Printing())
    print_line(STARTED)
    environment.execute("sinks")


if __name__ == "__main__":
    main(sys.argv[1:])
