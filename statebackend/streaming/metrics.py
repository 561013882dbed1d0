"""The metrics of a job: the registry that declares each of them once, and the values of one run.

`METRICS` is the registry. `JobMetrics.values` reads every declared value from the classes below, and so do Prometheus,
the report, Spark's progress and docs/metrics.md (``python -m statebackend.streaming.metrics`` prints its table). The
attribute of a class has the name of the metric.

Subtasks send their metrics in acknowledgements, one number per epoch and output:

    records_in                       i64   records of the epoch
    late_records_dropped             i64
    records_out/<output>             i64   <output> is "main", or "side/<name of the tag>"
    late_records/<output>            i64   late records that were emitted to a side output
    entries_written, bytes_written   i64   of the snapshot
    open_s, process_s, snapshot_s    f64
    local_opens, restores            i64   0 or 1
    worker_cache_bytes               i64
    barrier_<name>                   i64   `SubtaskBarriers`
    state/<state>, snapshot          text  `statebackend.state.metrics`

The ``report`` of an acknowledgement has the restores:

    ["operator_state/"] "entries_migrated/" <state>   i64
    ["operator_state/"] "duration_s/" <state>         f64

Checkpoints do not store metrics: they belong to one run. A metric that cannot be decoded counts as 0.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from attrs import AttrsInstance, evolve, field, fields, frozen, has

from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, ReportValue, TaskId
from statebackend.state.metrics import KeyedStateMetrics, LatencyHistogram, skew_of
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.stream_graph import JobGraph, OperatorNode, StreamEdge, UnionNode
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP

if TYPE_CHECKING:
    from statebackend.savepoint.export import SavepointReport
    from statebackend.savepoint.statistics import CheckpointSizes
    from statebackend.state.backend_parameters import StateRestoreReport

__all__ = [
    "METRICS",
    "CheckpointCost",
    "EpochMetrics",
    "FailedCheckpoint",
    "JobMetrics",
    "Metric",
    "MetricType",
    "MetricValue",
    "ObservedRun",
    "OperatorBarriers",
    "OperatorMetrics",
    "OutputMetrics",
    "RestoreMetrics",
    "RestoredStateMetrics",
    "RunBarriers",
    "RunMetrics",
    "SinkMetrics",
    "SubtaskBarriers",
    "SubtaskMetrics",
    "TimeMetrics",
    "metrics_of_epoch",
    "metrics_table",
    "opening_metrics",
    "output_name",
    "record_counts",
    "restore_metrics",
    "restore_report",
    "sinks_of",
    "time_metrics",
]

REMEMBERED_EPOCHS: Final = 1000
"""Epochs whose metrics are kept one by one; a job may run for years."""

RECORDS_IN: Final = "records_in"
LATE_RECORDS_DROPPED: Final = "late_records_dropped"
_RECORDS_OUT: Final = "records_out/"
_LATE_RECORDS: Final = "late_records/"

T = TypeVar("T")


class MetricType(Enum):
    """The type of a metric: a counter only grows during a run, a gauge is a value of the moment."""

    COUNTER = "counter"
    GAUGE = "gauge"


@frozen
class Scope:
    """What a metric describes. ``find`` returns the objects with the values, each with the values of the labels."""

    name: str
    labels: tuple[str, ...]
    find: Callable[[JobMetrics], Iterable[tuple[tuple[str, ...], Any]]]


@frozen
class Metric:
    """A declared metric. ``unit`` is that of the value: ``ms``, ``s``, ``bytes``, ``ratio`` or what is counted."""

    scope: Scope
    name: str
    type: MetricType
    unit: str
    description: str

    @property
    def full_name(self) -> str:
        """The name with its scope, such as ``operator.records_in``."""
        return f"{self.scope.name}.{self.name}"

    @property
    def prometheus_name(self) -> str:
        """The name for Prometheus without ``_total``: base units, so milliseconds become seconds."""
        name = self.name + "_ratio" if self.unit == "ratio" else re.sub("_m?s$", "_seconds", self.name)
        return f"statebackend_{self.scope.name}_{name}"

    @property
    def sample_name(self) -> str:
        """The name that a query to Prometheus contains."""
        return f"{self.prometheus_name}_total" if self.type is MetricType.COUNTER else self.prometheus_name


@frozen
class MetricValue:
    """The value of a metric at one moment, with the values of its labels."""

    metric: Metric
    labels: Mapping[str, str]
    value: float

    @property
    def base_value(self) -> float:
        """The value in the unit of the Prometheus name."""
        return self.value / 1000 if self.metric.unit == "ms" else self.value


@frozen
class OutputMetrics:
    """One output of an operator."""

    records_out: int = 0
    late_records: int = 0

    def plus(self, other: OutputMetrics) -> OutputMetrics:
        """The sum of both."""
        return OutputMetrics(self.records_out + other.records_out, self.late_records + other.late_records)


@frozen
class SinkMetrics:
    """One sink."""

    records_out: int = 0

    def plus(self, other: SinkMetrics) -> SinkMetrics:
        """The sum of both."""
        return SinkMetrics(self.records_out + other.records_out)


def output_name(tag: OutputTag[Any] | None) -> str:
    """The name of an output in metrics: ``main``, or ``side/<name>``."""
    return "main" if tag is None else f"side/{tag.name}"


@frozen(kw_only=True)
class SubtaskMetrics:
    """What one subtask counted in an epoch. ``state`` is None if metrics of keyed state are off."""

    records_in: int = 0
    late_records_dropped: int = 0
    outputs: Mapping[str, OutputMetrics] = field(factory=dict)
    state: KeyedStateMetrics | None = None

    @classmethod
    def of(cls, acknowledgement: Acknowledgement) -> SubtaskMetrics:
        """Decode the metrics of an acknowledgement."""
        metrics = acknowledgement.metrics
        outputs: dict[str, OutputMetrics] = {}
        for key, value in metrics.items():
            for prefix, count in ((_RECORDS_OUT, OutputMetrics), (_LATE_RECORDS, _late)):
                if key.startswith(prefix):
                    name = key.removeprefix(prefix)
                    outputs[name] = outputs.get(name, OutputMetrics()).plus(count(_whole(value)))
        try:
            state = KeyedStateMetrics.from_report(metrics)
        except ValueError:
            state = None
        return cls(
            records_in=_whole(metrics.get(RECORDS_IN)),
            late_records_dropped=_whole(metrics.get(LATE_RECORDS_DROPPED)),
            outputs=outputs,
            state=state,
        )

    def followed_by(self, later: SubtaskMetrics) -> SubtaskMetrics:
        """The metrics of the same subtask over two epochs."""
        return SubtaskMetrics(
            records_in=self.records_in + later.records_in,
            late_records_dropped=self.late_records_dropped + later.late_records_dropped,
            outputs=_united(self.outputs, later.outputs, OutputMetrics.plus),
            state=self.state.followed_by(later.state) if self.state and later.state else later.state or self.state,
        )


def _late(count: int) -> OutputMetrics:
    return OutputMetrics(late_records=count)


def record_counts(
    records_in: int, records_out: Mapping[OutputTag[Any] | None, int], late: Mapping[OutputTag[Any] | None, int]
) -> Counter[str]:
    """The records of a subtask, as its acknowledgement sends them. ``late`` has the dropped ones under None."""
    counts = Counter({_RECORDS_OUT + output_name(tag): count for tag, count in records_out.items()})
    for tag, count in late.items():
        counts[LATE_RECORDS_DROPPED if tag is None else _LATE_RECORDS + output_name(tag)] = count
    counts[RECORDS_IN] = records_in
    return counts


@frozen(kw_only=True)
class OperatorMetrics:
    """One operator over all its subtasks, in one epoch or in all of a run. Sizes are those after the last epoch.

    A skew is the largest subtask divided by the mean: 1.0 if all are equal.
    """

    subtasks: int = 0
    records_in: int = 0
    records_skew: float = 1.0
    late_records_dropped: int = 0
    size_bytes: int = 0
    size_skew: float = 1.0
    outputs: Mapping[str, OutputMetrics] = field(factory=dict)

    @property
    def records_out(self) -> int:
        """The records emitted to all outputs."""
        return sum(one.records_out for one in self.outputs.values())

    @property
    def late_records(self) -> int:
        """The late records: those dropped, and those emitted to a side output."""
        return self.late_records_dropped + sum(one.late_records for one in self.outputs.values())

    def followed_by(self, later: OperatorMetrics) -> OperatorMetrics:
        """The metrics over two epochs."""
        return evolve(
            later,
            records_in=self.records_in + later.records_in,
            late_records_dropped=self.late_records_dropped + later.late_records_dropped,
            outputs=_united(self.outputs, later.outputs, OutputMetrics.plus),
        )


@frozen(kw_only=True)
class CheckpointCost:
    """What the runtime itself measures of an epoch. ``ended_ms`` is wall-clock time.

    ``checkpoint_s``: on the local runtime from the trigger to the completion, on Spark the snapshot of the slowest
    subtask and the storing. ``action_s`` is the time of the sinks' action on Spark.
    """

    ended_ms: int = 0
    duration_s: float = 0.0
    checkpoint_s: float = 0.0
    action_s: float = 0.0
    has_batch: bool = True


@frozen(kw_only=True)
class _Totals:
    """What the metrics of an epoch and of a run have in common. Mappings are by operator or sink uid."""

    duration_s: float = 0.0
    checkpoint_s: float = 0.0
    entries_written: int = 0
    bytes_written: int = 0
    local_opens: int = 0
    restores: int = 0
    operators: Mapping[str, OperatorMetrics] = field(factory=dict)
    sinks: Mapping[str, SinkMetrics] = field(factory=dict)
    state_metrics: Mapping[str, KeyedStateMetrics] = field(factory=dict)

    @property
    def local_share(self) -> float:
        """The share of the subtasks with state that found it on their host, 0 to 1; 1 if there was no state yet."""
        found = self.local_opens + self.restores
        return self.local_opens / found if found else 1.0


@frozen(kw_only=True)
class EpochMetrics(_Totals):
    """One epoch. ``open_s``, ``process_s`` and ``snapshot_s`` are those of the slowest subtask.

    ``worker_cache_bytes`` estimates what the workers of a host keep in memory for later epochs, for the host that keeps
    most. ``has_batch`` is False for a no-data epoch, and ``ended_ms`` and ``action_s`` are those of `CheckpointCost`.
    ``watermark_lag_ms`` is the largest lag of a source or operator, None without a watermark.
    """

    epoch_id: int
    ended_ms: int = 0
    action_s: float = 0.0
    has_batch: bool = True
    open_s: float = 0.0
    process_s: float = 0.0
    snapshot_s: float = 0.0
    worker_cache_bytes: int = 0
    watermark_lag_ms: int | None = None

    @property
    def records_in(self) -> int:
        """The records that all operators received."""
        return sum(one.records_in for one in self.operators.values())

    @property
    def late_records_dropped(self) -> int:
        """The late records that all operators dropped."""
        return sum(one.late_records_dropped for one in self.operators.values())

    @property
    def size_bytes(self) -> int:
        """The state of all operators."""
        return sum(one.size_bytes for one in self.operators.values())


def metrics_of_epoch(
    epoch_id: int,
    acknowledgements: Sequence[Acknowledgement],
    cost: CheckpointCost,
    *,
    subtasks: Mapping[TaskId, SubtaskMetrics] | None = None,
    sinks: Mapping[str, SinkMetrics] | None = None,
    watermark_lag_ms: int | None = None,
) -> EpochMetrics:
    """The metrics of a complete epoch.

    Args:
        epoch_id: The epoch.
        acknowledgements: Those of its checkpoint.
        cost: What the runtime measured.
        subtasks: What the subtasks counted, if some of it was acknowledged to a checkpoint that failed.
        sinks: What the sinks received, as far as it is known.
        watermark_lag_ms: The largest lag.
    """
    if subtasks is None:
        subtasks = {one.task: SubtaskMetrics.of(one) for one in acknowledgements}
    metrics = [acknowledgement.metrics for acknowledgement in acknowledgements]
    states: dict[str, KeyedStateMetrics] = {}
    for task, one in subtasks.items():
        if one.state is not None:
            states = dict(_united(states, {task.operator_uid: one.state}, KeyedStateMetrics.merged_with))

    def total(name: str) -> int:
        return sum(_whole(values.get(name)) for values in metrics)

    return EpochMetrics(
        **{one.name: getattr(cost, one.name) for one in fields(CheckpointCost)},
        epoch_id=epoch_id,
        open_s=slowest_s(acknowledgements, "open_s"),
        process_s=slowest_s(acknowledgements, "process_s"),
        snapshot_s=slowest_s(acknowledgements, "snapshot_s"),
        entries_written=total("entries_written"),
        bytes_written=total("bytes_written"),
        local_opens=total("local_opens"),
        restores=total("restores"),
        worker_cache_bytes=max((_whole(values.get("worker_cache_bytes")) for values in metrics), default=0),
        watermark_lag_ms=watermark_lag_ms,
        operators=_operators(acknowledgements, subtasks),
        sinks=sinks or {},
        state_metrics=states,
    )


def _operators(
    acknowledgements: Iterable[Acknowledgement], counts: Mapping[TaskId, SubtaskMetrics]
) -> Mapping[str, OperatorMetrics]:
    by_uid: dict[str, list[Acknowledgement]] = {}
    for one in acknowledgements:
        # Sources and sinks acknowledge too, without records.
        if RECORDS_IN in one.metrics:
            by_uid.setdefault(one.operator_uid, []).append(one)
    found = {}
    for uid, subtasks in by_uid.items():
        sizes = [one.state.size_bytes for one in subtasks]
        of_subtasks = [counts.get(one.task, SubtaskMetrics()) for one in subtasks]
        records = [one.records_in for one in of_subtasks]
        outputs: Mapping[str, OutputMetrics] = {}
        for counted in of_subtasks:
            outputs = _united(outputs, counted.outputs, OutputMetrics.plus)
        found[uid] = OperatorMetrics(
            subtasks=len(subtasks),
            records_in=sum(records),
            records_skew=skew_of(records),
            late_records_dropped=sum(one.late_records_dropped for one in of_subtasks),
            size_bytes=sum(sizes),
            size_skew=skew_of(sizes),
            outputs=outputs,
        )
    return found


def sinks_of(graph: JobGraph, operators: Mapping[str, OperatorMetrics]) -> Mapping[str, SinkMetrics]:
    """What the sinks of a job received, as the outputs of operators that they read.

    A sink after a step is left out: the step may drop or add records.
    """

    def records(edge: StreamEdge) -> int | None:
        if isinstance(edge.node, UnionNode):
            parts = [records(one) for one in edge.node.inputs]
            return None if None in parts else sum(part for part in parts if part is not None)
        if not isinstance(edge.node, OperatorNode) or edge.node.uid not in operators:
            return None
        return operators[edge.node.uid].outputs.get(output_name(edge.tag), OutputMetrics()).records_out

    found = {sink.uid: records(sink.inputs[0]) for sink in graph.sinks}
    return {uid: SinkMetrics(count) for uid, count in found.items() if count is not None}


def slowest_s(acknowledgements: Iterable[Acknowledgement], name: str) -> float:
    """The seconds of the slowest subtask."""
    seconds = (one.metrics.get(name) for one in acknowledgements)
    return max((float(one) for one in seconds if isinstance(one, (int, float))), default=0.0)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _united(first: Mapping[str, T], second: Mapping[str, T], unite: Callable[[T, T], T]) -> Mapping[str, T]:
    united = dict(first)
    for name, one in second.items():
        united[name] = unite(united[name], one) if name in united else one
    return united


@frozen(kw_only=True)
class RunMetrics(_Totals):
    """All epochs of a run: counters are sums, gauges are those of the last epoch."""

    epochs: int = 0
    epochs_without_records: int = 0
    failed_checkpoints: int = 0
    savepoints: int = 0
    records_in: int = 0
    late_records_dropped: int = 0

    def followed_by(self, epoch: EpochMetrics) -> RunMetrics:
        """The metrics with one more epoch."""
        summed = {name: getattr(self, name) + getattr(epoch, name) for name in _SUMMED}
        return evolve(
            self,
            epochs=self.epochs + 1,
            epochs_without_records=self.epochs_without_records + (not epoch.has_batch),
            operators=_united(self.operators, epoch.operators, OperatorMetrics.followed_by),
            sinks=_united(self.sinks, epoch.sinks, SinkMetrics.plus),
            state_metrics=_united(self.state_metrics, epoch.state_metrics, KeyedStateMetrics.followed_by),
            **summed,
        )


_SUMMED: Final = (
    "duration_s",
    "checkpoint_s",
    "records_in",
    "entries_written",
    "bytes_written",
    "late_records_dropped",
    "local_opens",
    "restores",
)


@frozen(kw_only=True)
class TimeMetrics:
    """The event time of a source or an operator in milliseconds: None without a watermark, and no lag at the end.

    The lag is the processing time of the last epoch minus the watermark.
    """

    watermark_ms: int | None = None
    lag_ms: int | None = None


def time_metrics(
    names: Iterable[str], watermarks: Mapping[str, int], processing_time_ms: int | None
) -> Mapping[str, TimeMetrics]:
    """The event time of sources and operators. ``processing_time_ms`` is that of the last epoch, None before it."""

    def of(watermark_ms: int | None) -> TimeMetrics:
        has_lag = watermark_ms not in (None, MAX_TIMESTAMP) and processing_time_ms is not None
        lag_ms = processing_time_ms - watermark_ms if has_lag else None  # type: ignore[operator]
        return TimeMetrics(watermark_ms=watermark_ms, lag_ms=lag_ms)

    return {name: of(watermarks.get(name)) for name in names}


@frozen(kw_only=True)
class SubtaskBarriers:
    """The barriers of one checkpoint at one subtask of the local runtime, in milliseconds.

    ``start_delay_ms`` lasts from the trigger to the first barrier, ``alignment_ms`` from there to the snapshot,
    ``capture_ms`` from there to the last barrier if the barriers overtook records. ``in_flight_bytes`` were stored.
    """

    is_unaligned: bool
    start_delay_ms: int
    alignment_ms: int
    capture_ms: int
    in_flight_bytes: int

    def to_metrics(self) -> dict[str, ReportValue]:
        """The metrics for an acknowledgement."""
        return {_BARRIER + one.name: int(getattr(self, one.name)) for one in fields(SubtaskBarriers)}

    @classmethod
    def of(cls, metrics: Mapping[str, ReportValue]) -> SubtaskBarriers | None:
        """Decode the metrics of an acknowledgement; None if they are missing or damaged."""
        values = {one.name: metrics.get(_BARRIER + one.name) for one in fields(SubtaskBarriers)}
        if not all(isinstance(value, int) and value >= 0 for value in values.values()):
            return None
        is_unaligned = bool(values.pop("is_unaligned"))
        return cls(is_unaligned=is_unaligned, **values)  # type: ignore[arg-type]


_BARRIER: Final = "barrier_"


@frozen(kw_only=True)
class OperatorBarriers:
    """The barriers of an operator over all subtasks and complete checkpoints of a run."""

    snapshots: int = 0
    unaligned_snapshots: int = 0
    longest_start_delay_ms: int = 0
    longest_alignment_ms: int = 0
    longest_capture_ms: int = 0
    in_flight_bytes: int = 0

    def with_subtask(self, one: SubtaskBarriers) -> OperatorBarriers:
        """The metrics with one more snapshot."""
        return OperatorBarriers(
            snapshots=self.snapshots + 1,
            unaligned_snapshots=self.unaligned_snapshots + one.is_unaligned,
            longest_start_delay_ms=max(self.longest_start_delay_ms, one.start_delay_ms),
            longest_alignment_ms=max(self.longest_alignment_ms, one.alignment_ms),
            longest_capture_ms=max(self.longest_capture_ms, one.capture_ms),
            in_flight_bytes=self.in_flight_bytes + one.in_flight_bytes,
        )


class RunBarriers:
    """The barriers of a run."""

    def __init__(self) -> None:
        self.operators: dict[str, OperatorBarriers] = {}
        """By uid."""
        self.newest: dict[tuple[str, int], SubtaskBarriers] = {}
        """Those of the newest complete checkpoint, by uid and subtask index."""

    def add(self, acknowledgements: Iterable[Acknowledgement]) -> None:
        """Add a complete checkpoint."""
        self.newest = {}
        for acknowledgement in acknowledgements:
            one = SubtaskBarriers.of(acknowledgement.metrics)
            if one is not None:
                uid = acknowledgement.operator_uid
                self.newest[uid, acknowledgement.subtask_index] = one
                self.operators[uid] = self.operators.get(uid, OperatorBarriers()).with_subtask(one)


def opening_metrics(*, is_local: bool, has_restore: bool, worker_cache_bytes: int) -> dict[str, ReportValue]:
    """Where a subtask found its state, as its acknowledgement sends it."""
    return {
        "local_opens": int(is_local),
        "restores": int(has_restore and not is_local),
        "worker_cache_bytes": worker_cache_bytes,
    }


_ENTRIES_MIGRATED: Final = "entries_migrated/"
_DURATION_S: Final = "duration_s/"
_OPERATOR_STATE: Final = "operator_state/"


@frozen
class RestoreMetrics:
    """The migration of one state: the entries of all subtasks, and the seconds of the slowest."""

    entries_migrated: int = 0
    duration_s: float = 0.0


def restore_report(
    keyed: Iterable[StateRestoreReport], operator_state: Iterable[StateRestoreReport]
) -> dict[str, ReportValue]:
    """The restores of one subtask, as its acknowledgement sends them."""
    report: dict[str, ReportValue] = {}
    for restored_states, prefix in ((keyed, ""), (operator_state, _OPERATOR_STATE)):
        for restored in restored_states:
            report[f"{prefix}{_ENTRIES_MIGRATED}{restored.state_name}"] = restored.entries_migrated
            report[f"{prefix}{_DURATION_S}{restored.state_name}"] = restored.duration_s
    return report


def restore_metrics(
    reports: Iterable[Mapping[str, ReportValue]], state_name: str, *, is_operator_state: bool
) -> RestoreMetrics:
    """The migration of a state, from the reports of all subtasks."""
    prefix = _OPERATOR_STATE if is_operator_state else ""
    entries, duration_s = 0, 0.0
    for report in reports:
        entries += _whole(report.get(f"{prefix}{_ENTRIES_MIGRATED}{state_name}"))
        took_s = report.get(f"{prefix}{_DURATION_S}{state_name}")
        duration_s = max(duration_s, took_s if isinstance(took_s, (int, float)) else 0.0)
    return RestoreMetrics(entries, duration_s)


@frozen(kw_only=True)
class ObservedRun:
    """A run of a job. ``engine`` is ``"spark"`` or ``"local"``, ``started_ms`` wall-clock time."""

    job_name: str
    job_id: str
    run_id: str
    engine: str
    parallelism: int
    max_parallelism: int
    started_ms: int
    restored_id: int | None = None
    """The checkpoint or savepoint that the run started from."""


@frozen(kw_only=True)
class FailedCheckpoint:
    """A checkpoint that did not complete. The id is None for an epoch that had none yet."""

    checkpoint_id: int | None
    reason: str
    at_ms: int


@frozen(kw_only=True)
class RestoredStateMetrics:
    """A state that the run started from: its compatibility result as text, and its migration over all subtasks."""

    operator_uid: str
    state_name: str
    compatibility: str
    issues: tuple[str, ...] = ()
    entries_migrated: int = 0
    duration_s: float = 0.0
    is_operator_state: bool = False


@frozen(kw_only=True)
class JobMetrics:
    """The metrics of a run at one moment. ``epochs``, ``failures`` and ``savepoints`` are the last ones, oldest first.

    ``ended_ms`` is None while the job runs; ``failure`` is the reason of a failure. ``time`` is by source name and
    operator uid; ``barriers`` is by uid, on the local runtime only.
    """

    run: ObservedRun
    at_ms: int
    ended_ms: int | None = None
    failure: str | None = None
    totals: RunMetrics = field(factory=RunMetrics)
    epochs: tuple[EpochMetrics, ...] = ()
    failures: tuple[FailedCheckpoint, ...] = ()
    savepoints: tuple[SavepointReport, ...] = ()
    restored: tuple[RestoredStateMetrics, ...] = ()
    newest_checkpoint: CheckpointSizes | None = None
    time: Mapping[str, TimeMetrics] = field(factory=dict)
    barriers: Mapping[str, OperatorBarriers] = field(factory=dict)

    @property
    def status(self) -> str:
        """``running``, ``ended`` or ``failed``."""
        if self.failure is not None:
            return "failed"
        return "running" if self.ended_ms is None else "ended"

    @property
    def watermark_lag_ms(self) -> int | None:
        """The largest lag of a source or operator, None without one."""
        return max((one.lag_ms for one in self.time.values() if one.lag_ms is not None), default=None)

    @property
    def entries_migrated(self) -> int:
        """The migrated entries of all restored states."""
        return sum(one.entries_migrated for one in self.restored)

    def values(self) -> Iterator[MetricValue]:
        """The values of all declared metrics, in the order of `METRICS`."""
        return (one for metric in METRICS for one in values_of(metric, self))

    def to_json(self) -> str:
        """Return the metrics as JSON text. NaN and infinity are null."""
        return json.dumps({"status": self.status, "watermark_lag_ms": self.watermark_lag_ms, **_plain(self)})


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, LatencyHistogram):
        return {"count": value.count, "total_ns": value.total_ns, "maximum_ns": value.maximum_ns}
    if has(type(value)):
        instance: AttrsInstance = value
        return {one.name: _plain(getattr(instance, one.name)) for one in fields(type(instance))}
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def _stored_states(job: JobMetrics) -> Iterator[tuple[tuple[str, ...], Any]]:
    newest = job.newest_checkpoint
    for operator in () if newest is None else newest.operators:
        for state, size_bytes in operator.bytes_by_state.items():
            yield (operator.uid, state), _Size(size_bytes)


@frozen
class _Size:
    size_bytes: int


_RUN: Final = Scope("job", (), lambda job: [((), job.run)])
_JOB: Final = Scope("job", (), lambda job: [((), job.totals)])
_RESTORED: Final = Scope("job", (), lambda job: [((), job)])
_EPOCH: Final = Scope("epoch", (), lambda job: [((), one) for one in job.epochs[-1:]])
_CHECKPOINT: Final = Scope(
    "checkpoint", (), lambda job: [((), one) for one in (job.newest_checkpoint,) if one is not None]
)
_OPERATOR: Final = Scope(
    "operator", ("operator",), lambda job: [((uid,), one) for uid, one in job.totals.operators.items()]
)
_BARRIERS: Final = Scope("barriers", ("operator",), lambda job: [((uid,), one) for uid, one in job.barriers.items()])
_OUTPUT: Final = Scope(
    "output",
    ("operator", "output"),
    lambda job: [
        ((uid, name), output)
        for uid, operator in job.totals.operators.items()
        for name, output in operator.outputs.items()
    ],
)
_SINK: Final = Scope("sink", ("sink",), lambda job: [((uid,), one) for uid, one in job.totals.sinks.items()])
_NODE: Final = Scope("node", ("node",), lambda job: [((name,), one) for name, one in job.time.items()])
_STORED_STATE: Final = Scope("state", ("operator", "state"), _stored_states)
_STATE: Final = Scope(
    "state",
    ("operator", "state"),
    lambda job: [
        ((uid, name), state)
        for uid, operator in job.totals.state_metrics.items()
        for name, state in operator.states.items()
    ],
)


def values_of(metric: Metric, job: JobMetrics) -> Iterator[MetricValue]:
    """The values of one metric; an unknown value is left out."""
    for labels, one in metric.scope.find(job):
        value = getattr(one, metric.name)
        if value is not None:
            yield MetricValue(metric, dict(zip(metric.scope.labels, labels, strict=True)), value)


METRICS: Final[tuple[Metric, ...]] = tuple(
    Metric(scope, name, MetricType(kind), unit, description)
    for scope, name, kind, unit, description in (
        (_RUN, "parallelism", "gauge", "subtasks", "Subtasks of each operator."),
        (_RUN, "max_parallelism", "gauge", "key groups", "Key groups of the job."),
        (_JOB, "epochs", "counter", "epochs", "Completed epochs."),
        (_JOB, "epochs_without_records", "counter", "epochs", "Completed epochs without records."),
        (_JOB, "failed_checkpoints", "counter", "checkpoints", "Checkpoints that failed or were overtaken."),
        (_JOB, "savepoints", "counter", "savepoints", "Savepoints written."),
        (_JOB, "duration_s", "counter", "s", "Time of all epochs."),
        (_JOB, "checkpoint_s", "counter", "s", "Time of all complete checkpoints."),
        (_JOB, "records_in", "counter", "records", "Records that operators received."),
        (_JOB, "late_records_dropped", "counter", "records", "Late records that operators dropped."),
        (_JOB, "entries_written", "counter", "entries", "State entries written for checkpoints."),
        (_JOB, "bytes_written", "counter", "bytes", "Bytes written for checkpoints."),
        (_JOB, "local_opens", "counter", "subtasks", "Subtasks that found their state on their host."),
        (_JOB, "restores", "counter", "subtasks", "Subtasks that downloaded their state."),
        (_RESTORED, "entries_migrated", "counter", "entries", "State entries migrated to a new schema."),
        (_EPOCH, "duration_s", "gauge", "s", "Time of the last epoch."),
        (_EPOCH, "open_s", "gauge", "s", "Time in which the slowest subtask opened its state."),
        (_EPOCH, "process_s", "gauge", "s", "Time in which the slowest subtask processed its records."),
        (_EPOCH, "snapshot_s", "gauge", "s", "Time of the slowest snapshot of a subtask."),
        (_EPOCH, "worker_cache_bytes", "gauge", "bytes", "Memory kept by the workers of the host that keeps most."),
        (_CHECKPOINT, "checkpoint_id", "gauge", "id", "Id of the newest checkpoint."),
        (_CHECKPOINT, "timestamp_ms", "gauge", "ms", "Time at which the newest checkpoint was stored."),
        (_CHECKPOINT, "size_bytes", "gauge", "bytes", "State in the newest checkpoint."),
        (_CHECKPOINT, "file_count", "gauge", "files", "Files of the newest checkpoint."),
        (_OPERATOR, "records_in", "counter", "records", "Records that the operator received."),
        (_OPERATOR, "records_out", "counter", "records", "Records that the operator emitted to all outputs."),
        (_OPERATOR, "late_records", "counter", "records", "Late records, dropped or emitted to a side output."),
        (_OPERATOR, "late_records_dropped", "counter", "records", "Late records that no side output received."),
        (_OPERATOR, "records_skew", "gauge", "ratio", "Records of the busiest subtask divided by the mean."),
        (_OPERATOR, "size_bytes", "gauge", "bytes", "State of the operator."),
        (_OPERATOR, "size_skew", "gauge", "ratio", "State of the largest subtask divided by the mean."),
        (_OUTPUT, "records_out", "counter", "records", "Records emitted to this output."),
        (_OUTPUT, "late_records", "counter", "records", "Late records emitted to this side output."),
        (_SINK, "records_out", "counter", "records", "Records that the sink received in completed epochs."),
        (_STORED_STATE, "size_bytes", "gauge", "bytes", "Files of a keyed state in the newest checkpoint."),
        (_STATE, "reads", "counter", "reads", "Reads of a keyed state, if metrics of state are on."),
        (_STATE, "writes", "counter", "writes", "Writes of a keyed state, if metrics of state are on."),
        (_STATE, "entries", "gauge", "entries", "Entries of a keyed state, if metrics of state are on."),
        (_NODE, "watermark_ms", "gauge", "ms", "Watermark of a source or operator."),
        (_NODE, "lag_ms", "gauge", "ms", "Processing time of the last epoch minus the watermark."),
        (_BARRIERS, "snapshots", "counter", "snapshots", "Snapshots of subtasks."),
        (_BARRIERS, "unaligned_snapshots", "counter", "snapshots", "Snapshots taken before the last barrier."),
        (_BARRIERS, "longest_start_delay_ms", "gauge", "ms", "Longest time from a trigger to its first barrier."),
        (_BARRIERS, "longest_alignment_ms", "gauge", "ms", "Longest time from the first barrier to the snapshot."),
        (_BARRIERS, "longest_capture_ms", "gauge", "ms", "Longest time from a snapshot to the last barrier."),
        (_BARRIERS, "in_flight_bytes", "counter", "bytes", "Records in flight that were stored."),
    )
)
"""Every metric of a job, declared once."""


def metrics_table() -> str:
    """The table of docs/metrics.md."""
    rows = ["| Metric | Type | Unit | Labels | In Prometheus | Description |", "|---|---|---|---|---|---|"]
    for one in METRICS:
        labels = ", ".join(f"`{label}`" for label in one.scope.labels) or "none"
        cells = (f"`{one.full_name}`", one.type.value, one.unit, labels, f"`{one.sample_name}`", one.description)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(metrics_table())  # noqa: T201
