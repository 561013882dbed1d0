"""Whether a source position is of the sources that a job reads: by their names, or by their number where none are."""

from __future__ import annotations

import pytest

from checkpointing.metadata.checkpoint_sections import SourcePositions
from streamjobs.errors import JobRestoreError
from streamjobs.spark.sources.source_identity import check_same_sources

ONE, TWO = ("FileSource[/in]",), ("FileSource[/in]", "rate")


def offsets(number: int, version: str = "v1") -> bytes:
    return "\n".join([version, '{"batchWatermarkMs":0}', *number * ['{"logOffset":2}']]).encode()


def at(offsets: bytes, sources: tuple[str, ...] | None = None) -> SourcePositions:
    return SourcePositions(batch_id=3, offsets=offsets, sources=sources)


def test_positions_that_name_their_sources_are_of_these_alone() -> None:
    check_same_sources(TWO, at(offsets(2), TWO), "/job")
    for others in (ONE, TWO[::-1]):
        with pytest.raises(
            JobRestoreError, match=r"the job reads .*, and the state at /job has read FileSource\[/in\], r"
        ):
            check_same_sources(others, at(offsets(2), TWO), "/job")


@pytest.mark.parametrize(("sources", "read"), [(ONE, 2), (TWO, 1), (TWO, 3)])
def test_positions_without_names_are_not_of_more_or_fewer_sources(sources: tuple[str, ...], read: int) -> None:
    check_same_sources(sources, at(offsets(len(sources))), "/job")
    with pytest.raises(
        JobRestoreError, match=f"{len(sources)} in number, and the state at /job has read {read} sources"
    ):
        check_same_sources(sources, at(offsets(read)), "/job")


@pytest.mark.parametrize("content", [b"", b"v1", b"something else", offsets(1, "v2")])
def test_positions_that_do_not_tell_how_many_sources_there_are_say_nothing_against_a_job(content: bytes) -> None:
    check_same_sources(TWO, at(content), "/job")
    check_same_sources(TWO, None, "/job")
