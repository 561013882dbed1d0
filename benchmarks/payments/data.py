"""Generates card payments as files of JSON lines: out of order, some late, some damaged.

The same seed always generates the same payments.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

__all__ = ["read_payments", "write_payments"]

FILES: Final = 30
_SPAN_S: Final = 24 * 3600
_START: Final = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
_CARDS: Final = 900


def write_payments(directory: Path, count: int, seed: int = 7) -> None:
    """Write `FILES` files of payments in the order of arrival."""
    draw = random.Random(seed)
    cards = [f"card-{number:04d}" for number in range(_CARDS)]
    homes = {card: draw.choice(("DE", "FR", "US", "BR")) for card in cards}
    devices = {card: _device(draw) for card in cards}
    arrivals = sorted(
        (_payment(draw, number, _SPAN_S * number / count, cards, homes, devices) for number in range(count)),
        key=lambda arrival: arrival[:2],
    )
    share = -(-count // FILES)
    for file in range(FILES):
        lines = [line for _, _, line in arrivals[file * share : (file + 1) * share]]
        (directory / f"part-{file:03d}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def read_payments(directory: Path) -> list[list[dict[str, Any]]]:
    """Return the payments of each file, with decimals and times with time zone."""
    return [[_parsed(line) for line in file.read_text().splitlines()] for file in sorted(directory.glob("*.jsonl"))]


def _device(draw: random.Random) -> dict[str, str | None]:
    return {"id": f"dev-{draw.randrange(10**6):06d}", "os": draw.choice(("ios", "android", "web"))}


def _payment(
    draw: random.Random,
    number: int,
    second: float,
    cards: list[str],
    homes: dict[str, str],
    devices: dict[str, dict[str, str | None]],
) -> tuple[float, str, str]:
    """Return the second of the arrival, the payment id and the JSON line."""
    card = draw.choice(cards[: _CARDS // 2] if draw.random() < 0.7 else cards)
    second += 2 * draw.random()
    arrival = second + (480 * draw.random() if draw.random() < 0.4 else 0)
    if draw.random() < 0.01:
        arrival = second + 900 + 7200 * draw.random()
    payment: dict[str, Any] = {
        "payment_id": f"p{number:06d}",
        "card_id": card,
        "merchant": f"m{draw.randrange(120):03d}",
        "amount": f"{draw.lognormvariate(3, 1.2):.2f}",
        "currency": draw.choice(("EUR",) * 6 + ("USD", "BRL")),
        "at": (_START + dt.timedelta(milliseconds=int(second * 1000))).isoformat(timespec="milliseconds"),
        "country": homes[card] if draw.random() < 0.97 else draw.choice(("NG", "RU", "CN")),
        "device": dict(devices[card]),
    }
    missing = draw.random()
    for share, field in ((0.004, "card_id"), (0.010, "amount"), (0.020, "merchant"), (0.030, "device"), (0.032, "at")):
        if missing < share:
            payment[field] = None
            break
    # The amount is a number in JSON, with all its digits.
    amount = payment["amount"]
    line = json.dumps(payment)
    return arrival, payment["payment_id"], line if amount is None else line.replace(f'"{amount}"', amount)


def _parsed(line: str) -> dict[str, Any]:
    payment: dict[str, Any] = json.loads(line, parse_float=Decimal)
    payment["at"] = payment["at"] and dt.datetime.fromisoformat(payment["at"])
    return payment
