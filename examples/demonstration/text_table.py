"""Plain text tables, for a terminal and for a log file."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return the lines of a table. Cells may have several lines; the columns in ``right`` are aligned to the right."""
    cells = [[cell.split("\n") for cell in row] for row in [headings, *rows]]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*cells, strict=True)]
    rule = "-+-".join("-" * width for width in widths)
    has_tall_rows = any(len(cell) > 1 for row in cells for cell in row)
    lines: list[str] = []
    for number, row in enumerate(cells):
        if number == 1 or (number > 1 and has_tall_rows):
            lines.append(rule)
        for index in range(max(len(cell) for cell in row)):
            texts = [cell[index] if index < len(cell) else "" for cell in row]
            aligned = [
                text.rjust(width) if column in right else text.ljust(width)
                for column, (text, width) in enumerate(zip(texts, widths, strict=True))
            ]
            lines.append(" | ".join(aligned).rstrip())
    return lines
