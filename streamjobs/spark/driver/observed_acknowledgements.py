"""What the tasks of an operator acknowledged in an epoch, out of the observation that collected it.

Spark fills in an observation behind the action that it is part of, through the queue of its listeners. When that queue
is empty the observation has what it will ever have, so that rows which nobody computed are found out at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Observation, SparkSession

from streamjobs.errors import EpochError

__all__ = ["observed_acknowledgements"]

LISTENERS_TIMEOUT_MS: Final = 60_000
"""How long listeners of the user's may keep Spark from telling what it has observed."""


def observed_acknowledgements(
    spark: SparkSession, observation: Observation, uid: str, epoch_id: int
) -> Sequence[bytes]:
    """The encoded acknowledgements of an operator, once the sink's action has returned.

    Raises `EpochError` if no action has run, or none that ran to its end.
    """
    observed: Any = observation._jo
    if not observed.future().isCompleted():
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(LISTENERS_TIMEOUT_MS)
    if not observed.future().isCompleted():
        raise EpochError(
            f"epoch {epoch_id}: no acknowledgement of operator {uid!r} came: the step or sink behind it did not "
            f"compute its rows"
        )
    try:
        found = observation.get
    except PySparkException as error:
        raise EpochError(
            f"epoch {epoch_id}: Spark could not say what the tasks of operator {uid!r} acknowledged: {error}"
        ) from error
    return [bytes(encoded) for encoded in found["acknowledgements"]]
