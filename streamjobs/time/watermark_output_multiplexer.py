"""One watermark of many outputs, such as the splits of a source (Flink's ``WatermarkOutputMultiplexer``).

What is sent is the smallest watermark of the outputs that are not idle, or the largest of all when all are, if it is
larger than what was sent before. So an output that returns behind holds the others until it has caught up: unlike a
channel of a valve, which is not waited for. An output is new, and has no watermark, when it is registered.

| event of an output        | what it does                                | what follows                               |
|---------------------------|---------------------------------------------|--------------------------------------------|
| watermark T, immediate    | active; its watermark is the larger of both | an update, if T is larger than what it was |
| watermark T, deferred     | the same                                    | nothing until the next periodic emit       |
| idle, active              | is idle, is active                          | an update, if immediate                    |
| periodic emit             |                                             | an update                                  |
| unregister                | it is forgotten                             | nothing until the next update              |

An update sends that watermark if there is a larger one, and otherwise that all are idle if they are, each time. Whether
they are is judged at an update; as long as no output is registered, the last judgement stands.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from checkpointing.errors import IllegalTransitionError
from snapshots.value_text import shown
from streamjobs.time.timestamps import MIN_TIMESTAMP
from streamjobs.time.watermark_elements import Watermark, WatermarkElement, WatermarkStatus

__all__ = ["WatermarkOutputMultiplexer"]

C = TypeVar("C", bound=Hashable)


class _Output:
    __slots__ = ("is_idle", "watermark_ms")

    def __init__(self) -> None:
        self.watermark_ms = MIN_TIMESTAMP
        self.is_idle = False


class WatermarkOutputMultiplexer(Generic[C]):
    """One watermark of several outputs, which are known by any hashable ids.

    Each event returns what is to be sent on, in that order. What does not belong here raises `IllegalTransitionError`
    and changes nothing.
    """

    __slots__ = ("_is_idle", "_outputs", "_watermark_ms")

    def __init__(self) -> None:
        self._outputs: dict[C, _Output] = {}
        self._watermark_ms = MIN_TIMESTAMP
        self._is_idle = False

    @property
    def watermark_ms(self) -> int:
        """The largest watermark that was sent; the smallest time if none was."""
        return self._watermark_ms

    def __contains__(self, output: object) -> bool:
        return output in self._outputs

    def watermark_of(self, output: C) -> int:
        """The largest watermark of an output; the smallest time if it has none."""
        return self._output(output, "WATERMARK_OF").watermark_ms

    def is_idle(self, output: C) -> bool:
        """Whether an output is."""
        return self._output(output, "IS_IDLE").is_idle

    def register(self, output: C) -> None:
        """A new output, active and without a watermark."""
        if output in self._outputs:
            raise IllegalTransitionError("REGISTER", self._state, f"there is an output {shown(output)}")
        self._outputs[output] = _Output()

    def unregister(self, output: C) -> bool:
        """Forgets an output; returns whether there was one. What it held is released at the next update."""
        return self._outputs.pop(output, None) is not None

    def take(self, output: C, element: WatermarkElement, *, deferred: bool) -> tuple[WatermarkElement, ...]:
        """A watermark or a status of an output; ``deferred`` if it is to count at the next periodic emit only."""
        one = self._output(output, type(element).__name__)
        if not isinstance(element, Watermark):
            one.is_idle = element.is_idle
        else:
            one.is_idle = False
            former_ms, one.watermark_ms = one.watermark_ms, max(one.watermark_ms, element.timestamp_ms)
            if element.timestamp_ms <= max(former_ms, self._watermark_ms):
                return ()
        return () if deferred else self.on_periodic_emit()

    def on_periodic_emit(self) -> tuple[WatermarkElement, ...]:
        """What is due: called in regular intervals."""
        if self._outputs:
            awaited = [one.watermark_ms for one in self._outputs.values() if not one.is_idle]
            self._is_idle = not awaited
            combined_ms = min(awaited) if awaited else max(one.watermark_ms for one in self._outputs.values())
            if combined_ms > self._watermark_ms:
                self._watermark_ms = combined_ms
                return (Watermark(combined_ms),)
        return (WatermarkStatus.IDLE,) if self._is_idle else ()

    def _output(self, output: C, event: str) -> _Output:
        one = self._outputs.get(output)
        if one is None:
            raise IllegalTransitionError(event, self._state, f"there is no output {shown(output)}")
        return one

    @property
    def _state(self) -> str:
        return "IDLE" if self._is_idle else "ACTIVE"
