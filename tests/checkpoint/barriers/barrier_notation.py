"""Barrier cases as one line of text: what channels deliver, and what the handler does.

script   b0 b0x3 b0*    records of channel 0; three times; that are captured
         B1@0 U1@0 S1@0 a barrier, an unaligned one, one of a savepoint; without @ channel 0 delivers it
         N1@0           a barrier with alignment timeout is announced; O1@0 delivers it
         C1@0 E0        checkpoint 1 is cancelled; the channel ends
         +500 !1        500 ms pass; the timer of checkpoint 1 fires
         |              separates groups, without effect
result   T1 U1          the snapshot is taken, aligned or not
         A1             the checkpoint is aborted because it was cancelled, As1 because a newer one has started,
                        Ae1 because a channel ended, Am1 because too many are pending
         R{0,2} V{0}    channels are resumed; barriers overtake
         D1             all records in flight are captured
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from attrs import define, field

from statebackend.checkpoint.barriers.elements import (
    Abort,
    AbortReason,
    AlignmentTimedOut,
    BarrierAction,
    BarrierAnnounced,
    BarrierArrived,
    BarrierEvent,
    BarrierHandler,
    Block,
    CancellationArrived,
    CaptureComplete,
    ChannelEnded,
    CheckpointBarrier,
    DataPassed,
    Overtake,
    Resume,
    StartCapture,
    StartTimer,
    StopCapture,
    StopTimer,
    Trigger,
)

BUFFER_BYTES: Final = 100
TIMEOUT_MS: Final = 1000
"""The alignment timeout of announced barriers (N and O)."""

_TOKEN: Final = re.compile(r"([bBUSNOCE])(\d+)?(?:@(\d+))?(?:x(\d+))?(\*)?")
_REASONS: Final = {
    AbortReason.CANCELLED: "A",
    AbortReason.SUBSUMED: "As",
    AbortReason.END_OF_CHANNEL: "Ae",
    AbortReason.TOO_MANY_PENDING: "Am",
}


@define
class Played:
    """The actions after a script. ``created_ms`` is the creation time of each barrier, by id."""

    handler: BarrierHandler
    now_ms: int = 0
    created_ms: Mapping[int, int] = field(factory=dict)
    results: list[str] = field(factory=list)
    actions: list[BarrierAction] = field(factory=list)
    captured: list[int] = field(factory=list)
    starred: list[int] = field(factory=list)
    data_count: int = 0
    timers: dict[int, int] = field(factory=dict)

    @property
    def text(self) -> str:
        """All actions as text, except those that every barrier causes for its channel."""
        return " ".join(self.results)

    @property
    def checkpoints(self) -> str:
        """Triggers and aborts only."""
        return " ".join(one for one in self.results if one[0] in "TUA")

    def of(self, kind: type) -> list[Any]:
        """The actions of one class."""
        return [one for one in self.actions if isinstance(one, kind)]

    def play(self, script: str) -> Played:
        """Play a script after the scripts that were played before."""
        for token in script.split():
            for event in self._events(token):
                self._handle(event)
        return self

    def _events(self, token: str) -> Iterator[BarrierEvent]:
        if token == "|":
            return
        if token[0] == "+":
            self.now_ms += int(token[1:])
            return
        if token[0] == "!":
            yield AlignmentTimedOut(int(token[1:]), self.now_ms)
            return
        match = _TOKEN.fullmatch(token)
        assert match, token
        kind, number, by, times, star = match.groups()
        if kind == "b":
            channel = int(number or 0)
            for _ in range(int(times or 1)):
                self._deliver(channel, is_starred=bool(star))
                yield DataPassed(channel, BUFFER_BYTES)
        elif kind == "E":
            yield ChannelEnded(int(number or 0), self.now_ms)
        elif kind == "C":
            yield CancellationArrived(int(by or 0), int(number), self.now_ms)
        else:
            barrier = self._barrier(kind, int(number))
            event = BarrierAnnounced if kind == "N" else BarrierArrived
            yield event(int(by or 0), barrier, self.now_ms)

    def _barrier(self, kind: str, checkpoint_id: int) -> CheckpointBarrier:
        return CheckpointBarrier(
            checkpoint_id=checkpoint_id,
            created_ms=self.created_ms.get(checkpoint_id, 0),
            is_savepoint=kind == "S",
            is_unaligned=kind == "U",
            alignment_timeout_ms=TIMEOUT_MS if kind in "NO" else None,
        )

    def _deliver(self, channel: int, *, is_starred: bool) -> None:
        if channel in self.handler.captured_channels:
            self.captured.append(self.data_count)
        if is_starred:
            self.starred.append(self.data_count)
        self.data_count += 1

    def _handle(self, event: BarrierEvent) -> None:
        actions = self.handler.handle(event)
        self.actions.extend(actions)
        for action in actions:
            _NOTES[type(action)](self, action)

    def _note_trigger(self, action: Trigger) -> None:
        self.results.append(f"{'U' if action.barrier.is_unaligned else 'T'}{action.barrier.checkpoint_id}")

    def _note_abort(self, action: Abort) -> None:
        self.results.append(f"{_REASONS[action.reason]}{action.checkpoint_id}")

    def _note_resume(self, action: Resume) -> None:
        self.results.append(f"R{{{','.join(map(str, action.channels))}}}")

    def _note_overtake(self, action: Overtake) -> None:
        self.results.append(f"V{{{action.channel}}}")

    def _note_complete(self, action: CaptureComplete) -> None:
        self.results.append(f"D{action.checkpoint_id}")

    def _start_timer(self, action: StartTimer) -> None:
        self.timers[action.checkpoint_id] = action.at_ms

    def _stop_timer(self, action: StopTimer) -> None:
        del self.timers[action.checkpoint_id]

    def _nothing(self, action: BarrierAction) -> None:
        """Actions that the handler itself reports."""


_NOTES: Final[Mapping[type, Callable[[Played, Any], None]]] = {
    Trigger: Played._note_trigger,
    Abort: Played._note_abort,
    Resume: Played._note_resume,
    Overtake: Played._note_overtake,
    CaptureComplete: Played._note_complete,
    StartTimer: Played._start_timer,
    StopTimer: Played._stop_timer,
    Block: Played._nothing,
    StartCapture: Played._nothing,
    StopCapture: Played._nothing,
}
