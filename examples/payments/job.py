"""The job as a graph on Spark.

rules ------ broadcast --+
                         |
payments -- by card --> fraud detector --> balances --> PostgreSQL, a row per card
                         |
                         +--> alerts --> with the risk of the merchant --> Delta Lake
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Final

from attrs import frozen
from pyspark.sql import SparkSession

from examples.payments import version_1, version_2
from examples.payments.merchants import RatedAlert, RateMerchant
from examples.payments.payments import OUT_OF_ORDER, Payment, Rule, payment_of, rule_of
from statebackend import AsyncDataStream, WatermarkStrategy
from statebackend.connectors import DeltaSink, KafkaSource, PostgresSink
from statebackend.spark import SparkStreamEnvironment

JOB_NAME: Final = "payments"
VERSIONS: Final[dict[int, ModuleType]] = {1: version_1, 2: version_2}
EPOCH_SIZE: Final = 500


@frozen
class Places:
    """Where the job reads and writes: the servers, its directory, and its two targets."""

    broker: str
    conninfo: str
    job_dir: Path
    alerts: Path
    balances: str


def payments_job(
    spark: SparkSession,
    version: int,
    places: Places,
    *,
    backend: str,
    balances_sink: type[PostgresSink] = PostgresSink,
) -> SparkStreamEnvironment:
    """Return the environment of a version of the job, ready to be executed."""
    program, kafka = VERSIONS[version], {"bootstrap.servers": places.broker}
    env = SparkStreamEnvironment(
        spark,
        job_dir=places.job_dir,
        backend=backend,
        parallelism=2,
        local_state_directory=places.job_dir.with_name(f"{places.job_dir.name}-local"),
    )
    in_order = WatermarkStrategy.for_bounded_out_of_orderness(OUT_OF_ORDER)
    payments = env.from_source(
        KafkaSource(kafka, "payments", decode=payment_of), Payment, uid="payments", epoch_size=EPOCH_SIZE
    ).assign_timestamps_and_watermarks(in_order.with_timestamps("at").with_channel("partition"))
    # `valid_until` of a rule is later than any payment, so rules do not hold back the timers of cards.
    rules = env.from_source(
        KafkaSource(kafka, "rules", decode=rule_of), Rule, uid="rules"
    ).assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamps("valid_until"))

    balances = (
        payments.as_records(Payment)
        .key_by("card")
        .connect(rules.as_records(Rule).broadcast(version_1.RULES))
        .process(program.DetectFraud(), uid="fraud", schema=program.BALANCE, order_by="offset")
    )
    alerts = AsyncDataStream.unordered_wait(
        balances.get_side_output(version_1.ALERTS),
        RateMerchant(places.conninfo),
        "1 minute",
        uid="merchants",
        schema=RatedAlert,
    )
    # The order matters: the epochs of the alerts are committed first.
    alerts.sink_to(DeltaSink(str(places.alerts)), uid="alerts")
    balances.sink_to(balances_sink(places.conninfo, places.balances, key=["card"]), uid="balances")
    return env
