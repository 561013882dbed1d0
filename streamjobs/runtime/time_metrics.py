"""How far event time is, for people: the watermark of each source and operator, how far it is behind, what was late.

The lag is the processing time of the last epoch less the watermark. Metrics are those of one run, and begin anew with
the next.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping

from attrs import frozen

from checkpointing.coordinator.acknowledgement import Acknowledgement
from streamjobs.time.timestamps import MAX_TIMESTAMP

__all__ = ["LATE_RECORDS_DROPPED", "TimeMetrics", "late_records_of", "time_metrics"]

LATE_RECORDS_DROPPED = "late_records_dropped"
"""What a subtask says of them among the metrics of its acknowledgement."""


@frozen(kw_only=True)
class TimeMetrics:
    """Of a source or an operator. Times are in milliseconds; None without a watermark, and without a lag at its end.

    ``late_records_dropped`` counts records of this run that came behind the watermark and went to no side output; a
    source has none.
    """

    watermark_ms: int | None = None
    lag_ms: int | None = None
    late_records_dropped: int = 0


def late_records_of(acknowledgements: Iterable[Acknowledgement]) -> Counter[str]:
    """How many late records each operator has dropped in an epoch, by uid."""
    dropped: Counter[str] = Counter()
    for acknowledgement in acknowledgements:
        with contextlib.suppress(TypeError, ValueError):
            dropped[acknowledgement.operator_uid] += int(acknowledgement.metrics.get(LATE_RECORDS_DROPPED) or 0)
    return dropped


def time_metrics(
    names: Iterable[str], known: Mapping[str, int], processing_time_ms: int | None, dropped: Mapping[str, int]
) -> Mapping[str, TimeMetrics]:
    """Those of sources, by name, and operators, by uid, of which the watermarks are ``known`` that there are.

    ``processing_time_ms`` is that of the last epoch, None before the first.
    """
    return {
        name: TimeMetrics(
            watermark_ms=known.get(name),
            lag_ms=_lag(known.get(name), processing_time_ms),
            late_records_dropped=dropped.get(name, 0),
        )
        for name in names
    }


def _lag(watermark_ms: int | None, processing_time_ms: int | None) -> int | None:
    if watermark_ms is None or processing_time_ms is None or watermark_ms == MAX_TIMESTAMP:
        return None
    return processing_time_ms - watermark_ms
