"""What a savepoint knows beside its state, when its operators have other uids: watermarks, timers due.

A node of the graph that was renamed is known under its new uid, also where it sends to others; of one that was split,
each part knows what the whole knew. What merged operators knew is kept only where they knew the same: an operator of
which nothing is known begins with the next watermark, which loses nothing, since what is late by it is late by any.
Whoever they send to knows of them what is true of both: the earlier watermark, and that they are idle if both are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import evolve

from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.metadata.checkpoint_sections import (
    InputChannel,
    InputWatermark,
    NodeWatermark,
    TimersDue,
    WatermarkState,
)
from savepoints.writing.drafts import Drafts
from savepoints.writing.new_files import NewOperator
from statebackend.queues.timer_names import TimeDomain, timer_state_name

__all__ = ["WRITTEN_ANEW_FROM", "carried_metadata"]

WRITTEN_ANEW_FROM: Final = "written_anew_from"
"""The property of a savepoint that was made of another: job id, id and time of that, with slashes between them."""


def carried_metadata(base: CheckpointMetadata, drafts: Drafts, operators: Sequence[NewOperator]) -> CheckpointMetadata:
    """The sections of the metadata as they are to be, without operators and files."""
    watermarks = None
    if base.watermarks is not None and "watermarks" not in drafts.dropped:
        nodes = _carried_nodes(base.watermarks.nodes, drafts.heirs)
        watermarks = WatermarkState(base.watermarks.watermark_ms, base.watermarks.channels, nodes)
    return evolve(
        base,
        watermarks=watermarks,
        timers_due=_timers_due(base.timers_due, operators),
        source_positions=None if "source_progress" in drafts.dropped else base.source_positions,
    )


def _carried_nodes(nodes: Sequence[NodeWatermark], heirs: Mapping[str, Sequence[str]]) -> tuple[NodeWatermark, ...]:
    carried: dict[str, NodeWatermark | None] = {}
    for node in nodes:
        inputs = tuple(kept for one in node.inputs if (kept := _carried_input(one, heirs)) is not None)
        for uid in heirs.get(node.node, (node.node,)):
            own = evolve(node, node=uid, inputs=inputs)
            # None stays: two that knew other things leave nothing that is known.
            carried[uid] = own if uid not in carried or carried[uid] == own else None
    return tuple(node for node in carried.values() if node is not None)


def _carried_input(one: InputWatermark, heirs: Mapping[str, Sequence[str]]) -> InputWatermark | None:
    channels: dict[str, InputChannel] = {}
    for channel in one.channels:
        for uid in heirs.get(channel.channel, (channel.channel,)):
            own = evolve(channel, channel=uid)
            channels[uid] = _earlier(channels[uid], own) if uid in channels else own
    return InputWatermark(one.watermark_ms, tuple(channels.values())) if channels else None


def _earlier(one: InputChannel, other: InputChannel) -> InputChannel:
    times = (one.watermark_ms, other.watermark_ms)
    watermark_ms = None if None in times else min(time for time in times if time is not None)
    return InputChannel(one.channel, watermark_ms, is_idle=one.is_idle and other.is_idle)


def _timers_due(known: Sequence[TimersDue], operators: Sequence[NewOperator]) -> tuple[TimersDue, ...]:
    """The earliest timers of each operator.

    What the former operators had is a bound for what was copied, and so may be earlier than what is there: somebody
    then looks for a timer once, and finds none.
    """
    former = {one.operator_uid: one for one in known}
    due = []
    for operator in operators:
        own = TimersDue(operator.uid, _earliest(operator, "event"), _earliest(operator, "processing"))
        if operator.has_copied_timers:
            for origin in operator.origins:
                if origin in former:
                    own = own.earliest(former[origin])
        if (own.event_time_ms, own.processing_time_ms) != (None, None):
            due.append(own)
    return tuple(due)


def _earliest(operator: NewOperator, domain: TimeDomain) -> int | None:
    prefix = timer_state_name(domain, "")
    return min((ms for name, ms in operator.earliest_timers_ms.items() if name.startswith(prefix)), default=None)
