"""How a command ends, as a number for whoever called it; the head of the room says what each means."""

from __future__ import annotations

from typing import Final

__all__ = ["DIFFERENT", "INTERRUPTED", "LOSES", "MISUSED", "NOT_READABLE", "REFUSED"]

DIFFERENT: Final = 1
REFUSED: Final = 1
LOSES: Final = 2
NOT_READABLE: Final = 3
MISUSED: Final = 64
INTERRUPTED: Final = 130
