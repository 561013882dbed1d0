"""Turns off progress lines of commands, which a busy machine would print anywhere."""

from __future__ import annotations

from functools import partial

import pytest

from statebackend.cli import opening
from statebackend.savepoint.progress_display import shown_progress


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "shown_progress", partial(shown_progress, now_s=lambda: 0.0))
