"""The registry of contenders: a name for the output, and the function that does the task.

A contender is a function `(spark, checkpoint_dir, batches) -> value`: rows/s for the keyed count, milliseconds
for an almost empty epoch.  The checkpoint directory is new and empty in each run.  Ours are `keyed_count` and
`almost_empty_epoch` of `benchmarks.spark_stateful.ours`, a module that is imported when it is wanted: it brings
the whole project with it, and the peers should be measurable without.
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

#: Each peer with the question whether it can run here.
PEERS: dict[str, tuple[Contender, Callable[[], bool]]] = {
    "transformWithState": (peers.transform_with_state, peers.has_protobuf),
    "transformWithStateInPandas": (peers.transform_with_state_in_pandas, peers.has_pandas),
    SPARKS: (peers.grouped_count, lambda: True),
}


def available_peers() -> dict[str, Contender]:
    """The peers that can run here, by name."""
    return {name: contender for name, (contender, can_run) in PEERS.items() if can_run()}


def our_keyed_count() -> Contender:
    """Our own way to count, in rows/s."""
    contender: Contender = import_module("benchmarks.spark_stateful.ours").keyed_count
    return contender


def our_batch_count() -> Contender:
    """The count as a `KeyedBatchFunction`, in rows/s."""
    contender: Contender = import_module("benchmarks.spark_stateful.ours").batch_count
    return contender


def our_almost_empty_epoch() -> Contender:
    """An epoch of ours that has one row to process, in milliseconds; `epoch_cost` tells how it is taken."""
    contender: Contender = import_module("benchmarks.spark_stateful.ours").almost_empty_epoch
    return contender
