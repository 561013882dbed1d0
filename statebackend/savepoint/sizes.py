"""Formats sizes, durations, times and counts for people. A missing or infinite number becomes a dash."""

from __future__ import annotations

import datetime
import math

NOTHING = "–"


def format_bytes(size_bytes: float) -> str:
    """Format a size: ``1,234 B``, ``1.2 MiB``."""
    if not math.isfinite(size_bytes):
        return NOTHING
    if size_bytes < 1 << 20:
        return f"{size_bytes:,.0f} B"
    if size_bytes < 1 << 30:
        return f"{size_bytes / (1 << 20):,.1f} MiB"
    return f"{size_bytes / (1 << 30):,.1f} GiB"


def format_short_bytes(size_bytes: float) -> str:
    """Format a size in few characters, for axes: ``512 B``, ``20 KiB``, ``1.5 MiB``."""
    if not math.isfinite(size_bytes):
        return NOTHING
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"


def format_count(count: float) -> str:
    """Format a count: ``1,234``, ``12.3 k``, ``4.5 M``."""
    if not math.isfinite(count):
        return NOTHING
    for least, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(count) >= least:
            return f"{count / (1e3 if unit == 'k' else least):,.1f} {unit}"
    return f"{count:,.0f}"


def counted(count: int, one: str, several: str = "") -> str:
    """Format a count with its noun: ``1 file``, ``1,234 files``. ``several`` is an irregular plural."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def format_duration(seconds: float | None) -> str:
    """Format a duration: ``0.4 ms``, ``12 ms``, ``3.4 s``, ``2 min 05 s``, ``3 h 20 min``, ``3.5 d``, ``20,780 d``."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    sign, left = ("-" if seconds < 0 else ""), abs(seconds)
    if left == 0:
        return "0 s"
    if left < 0.9995:
        return f"{sign}{left * 1000:.1f} ms" if left < 0.00995 else f"{sign}{left * 1000:.0f} ms"
    if left < 99.95:
        return f"{sign}{left:.1f} s"
    whole = round(left)
    if whole < 3600:
        return f"{sign}{whole // 60} min {whole % 60:02} s"
    if whole < 48 * 3600:
        return f"{sign}{whole // 3600} h {whole % 3600 // 60:02} min"
    days = whole / 86400
    # Keep it short: it has to fit the axis of a plot.
    return f"{sign}{days:.1f} d" if days < 99.95 else f"{sign}{days:,.0f} d"


def format_time(time_ms: int | None) -> str:
    """Format a time in UTC, ``2026-01-31 12:00:05``. A time outside the calendar is formatted in milliseconds."""
    if time_ms is None:
        return NOTHING
    try:
        return f"{datetime.datetime.fromtimestamp(time_ms / 1000, datetime.timezone.utc):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
