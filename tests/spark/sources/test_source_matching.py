"""How lines of a source log are matched to sources, and the log for other sources, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint.metadata import (
    ChannelWatermark,
    InputChannel,
    InputWatermark,
    NodeWatermark,
    ReadSource,
    WatermarkState,
)
from statebackend.spark.sources.offset_log import RearrangedLog, Rearrangement, check_kept, without_sources
from statebackend.spark.sources.progress import SOURCE_ORDER_FILE_NAME, source_order
from statebackend.spark.sources.source_identity import check_sources_named
from statebackend.streaming.errors import JobDefinitionError, JobRestoreError, SourceProgressMismatchError

BATCH = '{"batchTimestampMs":7,"conf":{}}'
UIDS = st.sampled_from(["flights", "weather", "rates", "\N{OX}", "source"])


def sources(*uids: str, names: Mapping[str, str] | None = None) -> tuple[ReadSource, ...]:
    """One source for each uid, in Spark's order."""
    name_of = {uid: f"FileSource[/{uid}]" for uid in uids} | dict(names or {})
    return tuple(ReadSource(name_of[uid], uid, str(place)) for place, uid in enumerate(uids))


def v1(*lines: str) -> bytes:
    return "\n".join(["v1", BATCH, *lines]).encode()


def v2(**lines: str) -> bytes:
    return "\n".join(["v2", BATCH, *(f"{log[1:]}:{line}" for log, line in lines.items())]).encode()


@given(
    former=st.lists(UIDS, unique=True, max_size=5),
    now=st.lists(UIDS, unique=True, min_size=1, max_size=5),
    restarted_sources=st.sets(UIDS, max_size=2),
)
def test_each_uid_keeps_its_line_and_its_log_when_sources_change(
    former: list[str], now: list[str], restarted_sources: set[str]
) -> None:
    files = {"metadata": b"{}", "commits/4": b"v1\n{}"}
    for batch in (4, 5):
        files[f"offsets/{batch}"] = v1(*(f"{uid}@{batch}" for uid in former))
    for place, uid in enumerate(former):
        files[f"sources/{place}/0"] = uid.encode()
        files[f"sources/{place}/9.compact"] = b"compact " + uid.encode()
    log = RearrangedLog(files, Rearrangement(sources(*former), sources(*now), frozenset(restarted_sources)))
    kept = [uid if uid in former and uid not in restarted_sources else None for uid in now]
    expected = {"metadata": b"{}", "commits/4": b"v1\n{}", SOURCE_ORDER_FILE_NAME: source_order(sources(*now))}
    for batch in (4, 5):
        expected[f"offsets/{batch}"] = v1(*("-" if uid is None else f"{uid}@{batch}" for uid in kept))
    for place, one in enumerate(kept):
        if one is not None:
            expected[f"sources/{place}/0"] = one.encode()
            expected[f"sources/{place}/9.compact"] = b"compact " + one.encode()
    assert dict(log) == expected
    assert len(log) == len(expected)


@given(st.permutations(["flights", "weather", "rates"]), st.permutations(["flights", "weather", "rates"]))
def test_a_reordered_log_is_restored_by_the_first_order(one: list[str], other: list[str]) -> None:
    content = v1("1", "2", "3")
    there = Rearrangement(sources(*one), sources(*other))
    assert Rearrangement(sources(*other), sources(*one)).offsets(there.offsets(content)) == content
    assert there.changes_nothing is (one == other)


def test_offsets_in_the_order_of_the_job_are_not_decoded() -> None:
    there = Rearrangement(sources("a", "b"), sources("a", "b"))
    assert there.changes_nothing
    for content in (b"of a format that is not known", b"", v1("only one")):
        assert there.offsets(content) == content


def test_a_source_of_several_streams_keeps_each_of_them() -> None:
    former = (*sources("a", "b"), ReadSource("rate", "b", "2"))
    now = (ReadSource("FileSource[/b]", "b", "0"), ReadSource("rate", "b", "1"), ReadSource("FileSource[/a]", "a", "2"))
    assert Rearrangement(former, now).offsets(v1("1", "2", "3")) == v1("2", "3", "1")
    with pytest.raises(
        JobRestoreError, match=r"source 'b' of the job reads FileSource\[/b\], and the state at /job has "
    ):
        check_kept(former, now[:1], "/job", ["a"])


def test_lines_with_names_are_found_by_name() -> None:
    content = v2(_0="x", _2="z")
    there = Rearrangement(sources("a", "b", "c"), sources("new", "c", "b", "a"))
    assert there.offsets(content) == v2(_1="z", _3="x")


def test_one_frame_in_two_sources_has_one_log_and_one_position() -> None:
    frame = ReadSource("FileSource[/in]", None, "0")
    both = (evolve(frame, uid="large"), evolve(frame, uid="small"))
    swapped = Rearrangement(
        (*both, ReadSource("rate", "rate", "1")),
        (ReadSource("rate", "rate", "0"), *(evolve(one, log="1") for one in reversed(both))),
    )
    assert swapped.offsets(v1("4", "4", "9")) == v1("9", "4", "4")
    apart = Rearrangement(both, (evolve(both[0], log="0"), evolve(both[1], log="1")))
    assert apart.offsets(v1("4", "4")) == v1("4", "4")
    log = RearrangedLog({"metadata": b"", "sources/0/3": b"files", "offsets/1": v1("4", "4")}, apart)
    assert {name for name in log if name.startswith("sources")} == {"sources/0/3", "sources/1/3"}
    with pytest.raises(JobRestoreError, match=r"'large' and 'new' use one streaming DataFrame.*: 4 and -"):
        Rearrangement(both[:1], (both[0], evolve(frame, uid="new"))).offsets(v1("4"))


def test_a_log_with_another_number_of_sources_is_rejected() -> None:
    with pytest.raises(SourceProgressMismatchError, match="has 1 offsets for 2 sources"):
        Rearrangement(sources("a", "b"), sources("b", "a")).offsets(v1("4"))


def test_a_source_is_dropped_only_on_request() -> None:
    with pytest.raises(JobRestoreError, match=r"the source 'b' \(.*/b\]\), which .*allow_dropped_sources=\['b'\]"):
        check_kept(sources("a", "b"), sources("c", "a"), "/job")
    check_kept(sources("a", "b"), sources("c", "a"), "/job", ["b", "and one that it never had"])


def test_a_uid_for_something_else_is_rejected() -> None:
    now = sources("a", "b", names={"a": "rate"})
    with pytest.raises(
        JobRestoreError,
        match=r"'a' of the job reads rate, and the state at /job has read FileSource\[/a\]: .*'a': False",
    ):
        check_kept(sources("a"), now, "/job")
    with pytest.raises(JobRestoreError, match="a savepoint with restore_source_progress=False, which reads"):
        check_kept(sources("a"), now[:1], "/job")


@pytest.mark.parametrize(
    ("progress", "dropped", "error"),
    [
        (True, "flights", "takes a list of uids of sources"),
        (True, ["a"], "'a', which is a source of the job"),
        ("a", [], "takes True, False, or a dict"),
        ({"b": False}, [], "'b': False; it takes True or False for a source of the job, which has 'a'"),
        ({"a": None}, [], "'a': None; it takes True or False"),
    ],
)
def test_invalid_sources_are_rejected(progress: Any, dropped: Any, error: str) -> None:
    check_sources_named(["a"], {"a": False}, ["b"])
    with pytest.raises(JobDefinitionError, match=error):
        check_sources_named(["a"], progress, dropped)


def watermarks(*names: str) -> WatermarkState:
    """Watermarks of sources, and of one operator that reads all of them."""
    return WatermarkState(
        5,
        tuple(ChannelWatermark(source=name, channel="c", watermark_ms=place) for place, name in enumerate(names)),
        (
            *(NodeWatermark(node=name, watermark_ms=place) for place, name in enumerate(names)),
            NodeWatermark(
                node="count",
                watermark_ms=3,
                inputs=(InputWatermark(3, tuple(InputChannel(name, place) for place, name in enumerate(names))),),
            ),
        ),
    )


def test_a_restarted_source_has_no_watermarks() -> None:
    left = without_sources(watermarks("a", "b"), ["a"])
    assert {one.source for one in left.channels} == {"b"}
    assert [(one.node, one.watermark_ms) for one in left.nodes] == [("b", 1), ("count", 3)]
    [valve] = left.nodes[-1].inputs
    assert [one.channel for one in valve.channels] == ["a'", "b"]
    assert without_sources(watermarks("a", "b"), []) == watermarks("a", "b")
    [alone] = without_sources(watermarks("a"), ["a"]).nodes
    assert [one.channel for one in alone.inputs[0].channels] == ["a'"]


def test_an_input_without_senders_gets_the_name_of_no_other_source() -> None:
    [_, count] = without_sources(watermarks("a", "a'"), ["a"]).nodes
    assert [one.channel for one in count.inputs[0].channels] == ["a''", "a'"]
