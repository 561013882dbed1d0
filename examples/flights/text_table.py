"""Plain text tables, for a terminal and for a log file alike."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """The lines of a table; cells may have several lines, and the columns in ``right`` are aligned to the right."""
    cells = [[cell.split("\n") for cell in row] for row in [headings, *rows]]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*cells, strict=True)]
    rule = "-+-".join("-" * width for width in widths)
    lines: list[str] = []
    for row in cells:
        for index in range(max(len(cell) for cell in row)):
            texts = [cell[index] if index < len(cell) else "" for cell in row]
            aligned = [
                text.rjust(width) if column in right else text.ljust(width)
                for column, (text, width) in enumerate(zip(texts, widths, strict=True))
            ]
            lines.append(" | ".join(aligned).rstrip())
        lines.append(rule)
    return lines
