from __future__ import annotations

import pytest

from streamjobs.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, clamped


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [
        (0, 0),
        (MAX_TIMESTAMP, MAX_TIMESTAMP),
        (MAX_TIMESTAMP + 1, MAX_TIMESTAMP),
        (MIN_TIMESTAMP, MIN_TIMESTAMP),
        (MIN_TIMESTAMP - 1, MIN_TIMESTAMP),
    ],
)
def test_a_time_beyond_the_range_becomes_its_nearest_end(timestamp_ms: int, expected: int) -> None:
    assert clamped(timestamp_ms) == expected
