"""Time zones by the names that Spark accepts for `spark.sql.session.timeZone`.

Spark uses `java.time.ZoneId`. Besides the regions of the time zone database it knows offsets (``+5``, ``+05:30``,
``-0330``), offsets with a prefix (``UTC+5``, ``GMT+05:45``, ``UT-3``), ``Z``, and short names such as ``PST``. Python
and pyarrow know the regions and offsets like ``+05:30``.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import pyarrow as pa

__all__ = ["time_zone_named"]

_OFFSET: Final = re.compile(
    r"(?:UTC|GMT|UT)?(?P<sign>[+-])(?:(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d\d))?)?"
    r"|(?P<hhmm>\d{4})|(?P<hhmmss>\d{6}))"
)

_LARGEST_OFFSET: Final = datetime.timedelta(hours=18)

_SHORT_NAMES: Final[Mapping[str, str]] = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
    "UT": "UTC",
    "Z": "UTC",
}
"""Java's `ZoneId.SHORT_IDS`, and the names of UTC that are not regions."""


@lru_cache(maxsize=256)
def time_zone_named(name: str) -> datetime.tzinfo:
    """Return a time zone. Raises `ValueError` if neither Java nor the time zone database knows the name."""
    name = _SHORT_NAMES.get(name, name)
    matched = _OFFSET.fullmatch(name)
    if matched is not None:
        offset = _offset(matched)
        if offset is not None:
            return datetime.timezone(offset)
    try:
        zone: datetime.tzinfo = pa.lib.string_to_tzinfo(name)
    except (ValueError, KeyError, OSError, pa.ArrowException) as error:
        raise ValueError(f"the time zone database of this Python has no zone {name!r}") from error
    return zone


def _offset(matched: re.Match[str]) -> datetime.timedelta | None:
    """Return the offset, or None if Java rejects it."""
    digits = matched["hhmm"] or matched["hhmmss"]
    parts = (
        [matched["hour"], matched["minute"], matched["second"]]
        if digits is None
        else [digits[at : at + 2] for at in range(0, len(digits), 2)]
    )
    hours, minutes, seconds = (int(part or 0) for part in [*parts, None, None][:3])
    offset = datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if minutes > 59 or seconds > 59 or offset > _LARGEST_OFFSET:
        return None
    return -offset if matched["sign"] == "-" else offset
