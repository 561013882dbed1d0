"""The registry of contenders: a name for the output, and the function that does the task.

A contender is a function `(spark, checkpoint_dir, batches) -> value`: rows/s for the keyed count, milliseconds for an
almost empty epoch. The checkpoint directory is new and empty in each run. Our contenders are imported only when they
are used, because they import the whole project, and the peers do not need it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.spark_stateful import peers

Contender = Callable[[SparkSession, Path, int], float]

OURS = "ValueState on RocksDB"
OURS_IN_BATCHES = "count as KeyedBatchFunction"
SPARKS = "groupBy().count()"

#: Each peer, and a function that returns whether it can run.
PEERS: dict[str, tuple[Contender, Callable[[], bool]]] = {
    "transformWithState": (peers.transform_with_state, peers.has_protobuf),
    "transformWithStateInPandas": (peers.transform_with_state_in_pandas, peers.has_pandas),
    SPARKS: (peers.grouped_count, lambda: True),
}


def available_peers() -> dict[str, Contender]:
    """Return the peers whose requirements are installed, by name."""
    return {name: contender for name, (contender, can_run) in PEERS.items() if can_run()}


def our_keyed_count() -> Contender:
    """Return our keyed count, in rows/s."""
    contender: Contender = import_module("benchmarks.spark_stateful.ours").keyed_count
    return contender


def our_batch_count() -> Contender:
    """Return the count as a `KeyedBatchFunction`, in rows/s."""
    contender: Contender = import_module("benchmarks.spark_stateful.ours").batch_count
    return contender


def our_almost_empty_epoch() -> Contender:
    """Return our epoch with one row, in milliseconds; `epoch_cost` describes the measurement."""
    contender: Contender = import_module("benchmarks.spark_stateful.ours").almost_empty_epoch
    return contender
