"""Uids that stand for the place of a source, told from those that a program gave."""

from __future__ import annotations

import pytest

from statebackend.streaming.output_tag import is_uid_of_place, uid_of_place


@pytest.mark.parametrize("place", [0, 1, 10, 123])
def test_what_a_source_is_called_without_a_uid_is_known(place: int) -> None:
    assert is_uid_of_place(uid_of_place(place))


@pytest.mark.parametrize(
    "uid", ["source-", "source-01", "source-1-orders", "source-1\n", "my-source-1", "source-x", ""]
)
def test_a_uid_that_only_looks_like_that_is_one_that_was_given(uid: str) -> None:
    assert not is_uid_of_place(uid)
