"""Checkpoint settings of a local environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from statebackend import JobDefinitionError, KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor
from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.local import LocalStreamEnvironment
from statebackend.local.environment import checkpoint_settings

CHOICES: dict[str, Any] = {
    "mode": "exactly_once",
    "interval_ms": None,
    "timeout_ms": 1,
    "is_unaligned": False,
    "aligned_timeout_ms": 0,
    "max_concurrent": 1,
    "min_pause_ms": 0,
    "tolerable_failures": 0,
}


@pytest.mark.parametrize(
    ("is_unaligned", "aligned_timeout_ms", "mode"),
    [
        (False, 0, CheckpointingMode.ALIGNED),
        (False, 5, CheckpointingMode.ALIGNED),
        (True, 0, CheckpointingMode.UNALIGNED),
        (True, 1, CheckpointingMode.unaligned_after(1)),
    ],
)
def test_an_alignment_timeout_applies_to_unaligned_barriers(
    is_unaligned: bool, aligned_timeout_ms: int, mode: CheckpointingMode
) -> None:
    choices = {**CHOICES, "is_unaligned": is_unaligned, "aligned_timeout_ms": aligned_timeout_ms}
    assert checkpoint_settings(**choices).mode == mode


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "exactly-once"},
        {"max_concurrent": 0},
        {"min_pause_ms": -1},
        {"tolerable_failures": -1},
    ],
    ids=str,
)
def test_invalid_checkpoint_settings_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(JobDefinitionError):
        checkpoint_settings(**{**CHOICES, **wrong})


@pytest.mark.parametrize("wrong", [{"checkpoint_interval": 0}, {"checkpoint_timeout": 0}], ids=str)
def test_durations_that_are_too_short_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(JobDefinitionError, match=next(iter(wrong))):
        LocalStreamEnvironment(**wrong)


def test_the_smallest_valid_values_are_accepted() -> None:
    settings = checkpoint_settings(**{**CHOICES, "interval_ms": 1})
    assert (settings.interval_ms, settings.timeout_ms, settings.has_threads) == (1, 1, True)


class Count(KeyedProcessFunction[bool, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[bool]) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        yield context.current_key, self.count.value()


def test_booleans_are_keys_if_the_column_is_boolean() -> None:
    rows: list[Any] = []
    environment = LocalStreamEnvironment(parallelism=2)
    elements = environment.from_elements([(True, 1), (False, 2), (True, 3)], "k boolean, n int")
    elements.key_by("k").process(Count(), uid="count", schema="k boolean, n int").sink_to(rows)
    environment.execute("job")
    assert sorted(map(tuple, rows)) == [(False, 1), (True, 1), (True, 2)]
