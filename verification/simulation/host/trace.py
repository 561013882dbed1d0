"""The steps of a schedule, line by line for a replay, and a digest that counts interleavings."""

from __future__ import annotations

import xxhash

__all__ = ["Trace"]


class Trace:
    """The steps so far. Without ``keeps_lines`` only their digest is kept."""

    def __init__(self, keeps_lines: bool) -> None:
        self.keeps_lines = keeps_lines
        self.lines: list[str] = []
        self._digest = xxhash.xxh3_64()

    def add(self, line: str) -> None:
        """Add a step."""
        if self.keeps_lines:
            self.lines.append(line)

    def move(self, who: str) -> None:
        """Add a move; moves and their order are the interleaving."""
        self.add(who)
        self._digest.update(who.encode())
        self._digest.update(b"\0")

    @property
    def interleaving(self) -> int:
        """A number that is equal for two runs with the same moves in the same order."""
        return self._digest.intdigest()
