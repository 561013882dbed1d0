"""What the environments of all runtimes do at a start."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from statebackend import KeyedProcessFunction, ValueStateDescriptor
from statebackend.local import LocalStreamEnvironment


def card_of(**fields: Any) -> type:
    return attrs.make_class("Card", {name: attrs.field(default=0, type=int) for name in fields}, frozen=True)


def run(job_dir: Path, card: type) -> None:
    class Keep(KeyedProcessFunction[str, Any, Any]):
        state = ValueStateDescriptor("card", card, default=card())

        def process_element(self, value: Any, context: Any) -> Iterator[Any]:
            self.state.update(self.state.value())
            yield value

    environment = LocalStreamEnvironment(job_dir=job_dir)
    environment.from_elements([("a",)], "k string").key_by("k").process(Keep(), uid="keep", schema="k string").sink_to(
        []
    )
    environment.execute("cards")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_start_that_drops_a_field_logs_a_warning_and_the_next_start_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "job", card_of(payments=0, largest=0))
    assert warnings_of(caplog) == []
    run(tmp_path / "job", card_of(payments=0))
    (warning,) = warnings_of(caplog)
    assert warning.startswith("job 'cards': operator 'keep', state 'card': .largest: removed (data loss)")
    caplog.clear()
    run(tmp_path / "job", card_of(payments=0))
    assert warnings_of(caplog) == []


def test_a_start_that_adds_a_field_logs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "job", card_of(payments=0))
    run(tmp_path / "job", card_of(payments=0, largest=0))
    assert warnings_of(caplog) == []
