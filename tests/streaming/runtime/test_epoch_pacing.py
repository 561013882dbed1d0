"""A no-data epoch does not delay batches, and does not wait forever for one."""

from __future__ import annotations

from statebackend.spark.no_data_epochs import EpochPacing


def test_the_first_epoch_of_a_run_does_not_wait() -> None:
    assert EpochPacing(1000).earliest_ms is None


def test_it_follows_a_batch_at_once_if_the_trigger_has_idle_time() -> None:
    pacing = EpochPacing(1000)
    pacing.batch_ended(5000, 5500)
    assert pacing.earliest_ms == 5500
    pacing.batch_ended(6000, 6501)
    assert pacing.earliest_ms == 7002, "as long as the batch took would be too long"


def test_after_a_batch_without_idle_time_it_waits_as_long_as_it_costs() -> None:
    pacing = EpochPacing(0)
    pacing.batch_ended(0, 400)
    assert pacing.earliest_ms == 800
    pacing.no_data_epoch_ended(800, 1000)
    pacing.batch_ended(1000, 1400)
    assert pacing.earliest_ms == 1600
    other = EpochPacing(0)
    other.batch_ended(0, 60_000)
    assert other.earliest_ms == 61_000, "a large batch says little of an epoch without one"


def test_there_is_one_per_trigger_interval() -> None:
    pacing = EpochPacing(1000)
    pacing.no_data_epoch_ended(5000, 5200)
    assert pacing.earliest_ms == 6000
    pacing.no_data_epoch_ended(6000, 7500)
    assert pacing.earliest_ms == 7500
    fast = EpochPacing(0)
    fast.no_data_epoch_ended(5000, 5200)
    assert fast.earliest_ms == 5200
