"""The fraud detector in plain Python on dicts: the same results without stored state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

__all__ = ["detect_fraud"]

_BOUND_MS: Final = 600_000
_SILENCE_MS: Final = 1_800_000
_SIZE_MS: Final = 600_000
_SLIDE_MS: Final = 300_000
_KEPT_PAYMENTS: Final = 5


def detect_fraud(epochs: Iterable[list[dict[str, Any]]]) -> dict[str, list[Any]]:
    """Return the rows of each output; an epoch is processed under the watermark of the epochs before it."""
    windows: dict[tuple[str, int], list[Any]] = defaultdict(lambda: [Decimal(0), 0])
    cards: dict[str, dict[str, Any]] = {}
    outputs: dict[str, list[Any]] = {name: [] for name in ("profiled", "windows", "silent", "damaged", "late")}
    watermark = largest = -1

    def fire() -> None:
        for card, start in [window for window in windows if window[1] + _SIZE_MS - 1 <= watermark]:
            outputs["windows"].append((card, start, start + _SIZE_MS, *windows.pop((card, start))))
        for card, known in cards.items():
            if known["silent"] is not None and known["silent"] <= watermark:
                outputs["silent"].append((card, known["newest"], known["silent"]))
                known["silent"] = None

    for payments in epochs:
        fire()
        timed = [
            (int(payment["at"].timestamp() * 1000), payment["payment_id"], payment)
            for payment in payments
            if payment["card_id"] is not None and payment["at"] is not None
        ]
        timed.sort(key=lambda one: one[:2])
        for at, payment_id, payment in timed:
            card, amount = payment["card_id"], payment["amount"]
            largest = max(largest, at)
            is_late = True
            for start in range(at - at % _SLIDE_MS, at - _SIZE_MS, -_SLIDE_MS):
                if start + _SIZE_MS - 1 > watermark:
                    is_late = False
                    sums = windows[card, start]
                    sums[0] += amount or 0
                    sums[1] += 1
            if is_late:
                outputs["late"].append(payment)
            if amount is None:
                outputs["damaged"].append((payment_id, card, "no amount"))
                continue
            known = cards.get(card) or cards.setdefault(card, _new_card())
            reasons = []
            if known["country"] and payment["country"] and payment["country"] != known["country"]:
                reasons.append("country")
            if known["recent"] and amount > 10 * sum(known["recent"]) / len(known["recent"]):
                reasons.append("amount")
            known["recent"] = [*known["recent"], amount][-_KEPT_PAYMENTS:]
            if payment["merchant"] is not None:
                totals = known["merchants"].setdefault(payment["merchant"], [0, Decimal(0)])
                totals[0] += 1
                totals[1] += amount
            known["newest"] = at if known["newest"] is None else max(at, known["newest"])
            known["silent"] = known["newest"] + _SILENCE_MS
            known["n"] += 1
            known["score"] += len(reasons)
            known["country"] = payment["country"] or known["country"]
            known["os"] = known["os"] or (payment["device"] or {}).get("os")
            if amount > known["max"]:
                known["max"], known["max_at"] = amount, at
            reason = ",".join(reasons) or None
            outputs["profiled"].append((card, payment_id, at, amount, reason, known["n"], float(known["score"])))
        watermark = max(watermark, largest - _BOUND_MS - 1)
    fire()
    return outputs


def _new_card() -> dict[str, Any]:
    names = ("country", "os", "max_at", "newest", "silent")
    return {**dict.fromkeys(names), "n": 0, "score": 0, "max": Decimal(0), "recent": [], "merchants": {}}
