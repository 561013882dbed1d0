"""What all parts of a local run share: the program, its settings, the job directory, the current epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from attrs import define, field, frozen

from migration import EvolutionRules
from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.coordinator.requests import CheckpointLimits
from statebackend.checkpoint.fs.retries import monotonic_ms
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.local.graph import LocalOperator, PreparedGraph
from statebackend.local.network.channel import DEFAULT_CAPACITY
from statebackend.local.network.network import Scheduler
from statebackend.local.network.subtasks import Mail, OutputListener
from statebackend.state.clock import Clock, StoppedClock
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.state_backend import StateBackend
from statebackend.streaming.observing.job_events import JobListeners
from statebackend.streaming.observing.job_recorder import JobRecorder
from statebackend.streaming.runtime.event_time import EventTime
from statebackend.streaming.runtime.starting_point import StartingPoint
from statebackend.streaming.stream_environment import StartOptions
from statebackend.streaming.stream_graph import JobGraph


@frozen(kw_only=True)
class CheckpointSettings:
    """How a run takes its checkpoints.

    ``mode`` is how barriers travel. Without ``interval_ms`` checkpoints are taken on request only; without
    ``timeout_ms`` they never time out. ``tolerable_failures`` failures in a row do not fail the job. ``now_ms`` is the
    clock of timers, apart from that of the job, and ``wait`` waits for seconds of it. With ``has_threads`` threads
    write snapshots. ``post`` decides what becomes of a message: the message alone, nothing if it is lost, several if it
    is duplicated.
    """

    mode: CheckpointingMode = CheckpointingMode.ALIGNED
    interval_ms: int | None = None
    timeout_ms: int | None = None
    limits: CheckpointLimits = field(factory=CheckpointLimits)
    tolerable_failures: int = 0
    now_ms: Callable[[], int] = monotonic_ms
    wait: Callable[[float], object] = time.sleep
    has_threads: bool = False
    post: Callable[[Mail], Iterable[Mail]] = lambda mail: (mail,)


@frozen(kw_only=True)
class LocalProgram:
    """A checked program, and how it is started and run.

    ``listener`` receives the results in order, ``listeners`` the events of the job.
    """

    graph: JobGraph
    prepared: PreparedGraph
    event_time: EventTime | None
    name: str
    options: StartOptions
    backend: StateBackend
    parallelism: int
    clock: Clock
    metrics: StateMetricsConfig | None
    rules: EvolutionRules
    scheduler: Scheduler
    checkpoints: CheckpointSettings = field(factory=CheckpointSettings)
    capacity: int = DEFAULT_CAPACITY
    listener: OutputListener | None = None
    listeners: JobListeners = field(factory=JobListeners)

    @property
    def operators(self) -> Mapping[str, LocalOperator]:
        """The operators, by uid."""
        return self.prepared.operators


@define
class CurrentEpoch:
    """The epoch of all subtasks, and their processing time."""

    epoch_id: int = -1
    clock: StoppedClock = field(factory=lambda: StoppedClock(0))


@frozen(kw_only=True)
class LocalJobParts:
    """A program that runs in a job directory from a starting point."""

    program: LocalProgram
    directory: JobDirectory
    store: CompletedCheckpointStore
    point: StartingPoint
    recorder: JobRecorder
    epoch: CurrentEpoch = field(factory=CurrentEpoch)
