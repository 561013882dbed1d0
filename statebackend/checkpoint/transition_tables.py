"""Formats a transition table as Markdown: a row per transition, then the meaning of each name."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any


def table_as_text(
    transitions: Mapping[tuple[Any, Any], tuple[Any, Sequence[Any]]],
    kinds: Sequence[type[enum.Enum]],
    steps_name: str = "steps",
) -> str:
    """Format the table; ``kinds`` are the classes of its states, events and steps, whose values explain their names."""
    lines = [f"| state | event | next state | {steps_name} |", "| --- | --- | --- | --- |"]
    for (state, event), (following, steps) in transitions.items():
        done = ", ".join(step.name for step in steps) or "none"
        lines.append(f"| {state.name} | {event.name} | {following.name} | {done} |")
    for kind in kinds:
        lines += ["", f"| {kind.__name__} | |", "| --- | --- |"]
        lines += [f"| {one.name} | {one.value} |" for one in kind]
    return "\n".join(lines) + "\n"
