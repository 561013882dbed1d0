"""What a subtask's channels add to its checkpoint: the elements that the barrier overtook, time, and how long it took.

A checkpoint of a subtask has two ends. At the *trigger* the operator is snapshotted and the barrier goes on. It is
*captured* when nothing on its way is missing: at once if the barriers were aligned, otherwise when the last barrier has
come out. Only then may the subtask acknowledge. Between the two it may be given up.

Invariants, for each checkpoint and subtask: at most one trigger; behind a trigger exactly one of captured and aborted,
unless the run ends; never captured without a trigger. What is captured of a channel is what was sent before the
barrier and taken behind the trigger, in order. What lay within the room of a channel is its reader's (input), what lay
beyond it is its sender's (output); the former comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen

from streamjobs.inprocess.network.elements import InFlight, SubtaskId
from streamjobs.time.operator_watermarks import OperatorWatermarkState
from streamjobs.time.watermark_elements import WatermarkStatus

__all__ = ["BarrierMetrics", "SubtaskCapture", "SubtaskTime"]


@frozen
class SubtaskTime:
    """What a subtask knows of event time when its barrier goes on: its own, and what it has sent."""

    own: OperatorWatermarkState[SubtaskId]
    sent_watermark_ms: int
    sent_status: WatermarkStatus


@frozen(kw_only=True)
class BarrierMetrics:
    """How long the barriers of a checkpoint took, in milliseconds of the network's clock.

    ``start_delay_ms`` from its making to the first one that came out, ``alignment_ms`` from there to the trigger,
    ``capture_ms`` from there to the last one, 0 if it was aligned.
    """

    start_delay_ms: int = 0
    alignment_ms: int = 0
    capture_ms: int = 0


@frozen(kw_only=True)
class SubtaskCapture:
    """See the module. ``inputs`` go by who has sent, ``outputs`` by who was to read; who has nothing is left out."""

    checkpoint_id: int
    is_unaligned: bool
    """Whether its own barriers overtook; if not, there are no ``inputs``."""
    time: SubtaskTime
    metrics: BarrierMetrics
    inputs: Mapping[SubtaskId, Sequence[InFlight]] = field(factory=dict)
    outputs: Mapping[SubtaskId, Sequence[InFlight]] = field(factory=dict)
