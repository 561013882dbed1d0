"""One turn in a child process: `python -m benchmarks.payments.step WAY DIRECTORY EPOCHS [--profile]`.

Prints JSON. The process may import the packages of another commit, so it uses only the public API.
"""

from __future__ import annotations

import cProfile
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.payments import job, plain
from benchmarks.payments.data import read_payments
from benchmarks.time.processor_seconds import processor_seconds_since, processor_ticks

__all__ = ["run_local", "run_plain"]


def run_plain(payments: list[dict[str, Any]], epochs: int) -> tuple[float, dict[str, list[Any]]]:
    """Return the processor time in seconds, and the outputs."""
    size = -(-len(payments) // epochs)
    parts = [payments[start : start + size] for start in range(0, len(payments), size)]
    started = time.process_time()
    outputs = plain.detect_fraud(parts)
    return time.process_time() - started, outputs


def run_local(
    payments: list[dict[str, Any]], backend: str, epochs: int, profile: cProfile.Profile | None = None
) -> tuple[float, dict[str, list[Any]]]:
    """Run the job on the local runtime, and return its processor time in seconds and its outputs."""
    from statebackend.local import LocalStreamEnvironment

    outputs: dict[str, list[Any]] = {}
    environment = LocalStreamEnvironment(backend=backend, epoch_size=-(-len(payments) // epochs))
    stream = environment.from_elements(payments, job.PAYMENTS, uid="payments")
    job.detect_fraud(stream, lambda name: outputs.setdefault(name, []))
    execute: Callable[[], object] = lambda: environment.execute("payments")  # noqa: E731
    started = time.process_time()
    profile.runcall(execute) if profile else execute()
    seconds = time.process_time() - started
    environment.close()
    return seconds, outputs


def run_on_spark(directory: Path) -> float:
    """Return the processor time in seconds of Python, the JVM and Spark's workers, after a warm-up run."""
    from benchmarks.spark_stateful.session import PARALLELISM, benchmark_session
    from statebackend.spark import SparkStreamEnvironment
    from statebackend.spark.frame_sinks import NoopSink

    with benchmark_session() as (spark, checkpoints):
        for turn in ("warm-up", "measured"):
            files = spark.readStream.schema(job.PAYMENTS).option("maxFilesPerTrigger", 2).json(str(directory))
            environment = SparkStreamEnvironment(
                spark,
                job_dir=checkpoints / turn / "job",
                backend="rocksdb",
                parallelism=PARALLELISM,
                local_state_directory=checkpoints / turn / "local",
            )
            keyed = files.where("card_id IS NOT NULL AND at IS NOT NULL")
            job.detect_fraud(environment.from_dataframe(keyed, uid="payments"), lambda name: NoopSink())
            before = processor_ticks()
            environment.execute("payments", trigger={"availableNow": True}).query.awaitTermination()
            seconds = processor_seconds_since(before)
    return seconds


def main() -> None:
    """Run one contender on the payments of a directory."""
    way, directory, epochs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    started = time.process_time()
    payments = [
        payment
        for file in read_payments(directory)
        for payment in file
        if payment["card_id"] is not None and payment["at"] is not None
    ]
    reading_seconds = time.process_time() - started
    profile = cProfile.Profile() if "--profile" in sys.argv else None
    if way == "plain":
        seconds, _ = run_plain(payments, epochs)
    elif way == "spark":
        seconds = run_on_spark(directory)
    else:
        seconds, _ = run_local(payments, way, epochs, profile)
    shares = {}
    if profile:
        from benchmarks.payments.parts import shares_of_parts

        shares = shares_of_parts(profile)
    print(
        json.dumps({"records": len(payments), "seconds": seconds, "reading_seconds": reading_seconds, "shares": shares})
    )


if __name__ == "__main__":
    main()
