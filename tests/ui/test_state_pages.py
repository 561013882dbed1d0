"""The pages of jobs, savepoints and their state, with any stored content."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from inspected_job import SALES, SumPerShop, run_job
from served_page import ServedPage, served

from statebackend import KeyedProcessFunction, Savepoint, ValueStateDescriptor
from statebackend.checkpoint.errors import MissingFileError, StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.lockfile import lock_to_bytes
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.state.key_groups import KeyGroupRange
from statebackend.ui.places import Places, entries_page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Jobs and savepoints of both backends."""
    directory = tmp_path_factory.mktemp("state")
    for backend in ("heap", "rocksdb"):
        run_job(backend, directory / f"{backend} job").savepoint(directory / f"{backend} savepoint")
    return directory


@pytest.fixture(scope="module")
def page(directory: Path) -> Iterator[ServedPage]:
    with served([directory]) as one:
        yield one


PLACES = ["heap job", "heap savepoint", "rocksdb job", "rocksdb savepoint"]


def address(place: str, state: str, **more: Any) -> str:
    given = {"at": f"0.{place}", "operator": "per shop", "state": state, **more}
    return "/state?" + "&".join(f"{name}={quote(str(value))}" for name, value in given.items())


def test_the_first_page_lists_all_jobs_and_savepoints_of_a_directory(directory: Path, page: ServedPage) -> None:
    first = page.get("/")
    names = [f"{directory.name}/{place}" for place in PLACES]
    # Each name is in the table, and in both lists of the form that compares two.
    assert [one for one in first.texts if one in names] == 3 * names
    assert sum(link.startswith("/job") for link in first.links) == len(PLACES)


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("place", PLACES)
def test_every_link_of_a_place_leads_to_a_page(page: ServedPage, place: str) -> None:
    job = page.get(f"/job?at={quote(f'0.{place}')}")
    kind = place.rpartition(" ")[2].replace("job", "checkpoint")
    assert f"{kind} 3" in job.texts
    assert ("Growth by operator" in job.texts) is (kind == "checkpoint")
    followed = set()
    newest, *older = [one for one in job.links if one.startswith("/checkpoint")]
    assert len(older) == (2 if kind == "checkpoint" else 0)
    for link in (newest, *older):
        checkpoint = page.get(link)
        assert {"totals", "by amount", "handled", "processing-time timers", "timers"} <= set(checkpoint.texts)
        followed |= {one for one in checkpoint.links if one.startswith("/state") and link == newest}
    assert len(followed) == 10
    for link in sorted(followed):
        page.get(link)


def test_entries_are_counted_on_request(page: ServedPage) -> None:
    for counts, shown in (("", "–"), ("&counts=1", str(len(SALES)))):
        texts = page.get(f"/checkpoint?at=0.heap%20job{counts}").texts
        row = texts[texts.index("by amount") :]
        assert row[3] == shown


@pytest.mark.parametrize("place", PLACES)
def test_a_key_is_looked_up(page: ServedPage, place: str) -> None:
    own = [sale["amount"] for sale in SALES if sale["shop"] == "shop 3"]
    found = page.get(address(place, "totals", key="shop 3"))
    assert f'{{"sales": 5, "turnover": {float(sum(own))}, "note": null}}' in found.texts
    assert found.texts.count("shop 3") == 1
    assert [one for one in page.get(address(place, "by amount", key="shop 3")).texts if one == "even"] == [
        "even"
    ] * len([one for one in own if one % 2 == 0])
    timers = page.get(address(place, "_timer_state/processing_user-timers", key="shop 3"))
    assert timers.texts[0].startswith("processing-time timers")
    assert len([one for one in timers.texts if one.startswith("2023-11-14 22:1")]) == 5
    assert "Entries: none." in page.get(address(place, "totals", key="no such shop")).texts


def test_a_text_that_is_no_key_is_reported(page: ServedPage) -> None:
    assert "without keys" in page.get(address("heap job", "handled", key="1"), status=409).text
    assert "the key has one column" in page.get(address("heap job", "totals", key="a") + "&key=b", status=409).text


@pytest.mark.extended_after(5)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("state", "limit"),
    [("totals", 7), ("totals", 20), ("by amount", 33), ("amounts", 21), ("_timer_state/processing_user-timers", 40)],
)
def test_pages_of_entries_contain_all_entries_in_order(directory: Path, place: str, state: str, limit: int) -> None:
    savepoint = Savepoint.open(directory / place)
    expected = [repr(one) for one in savepoint.read("per shop", state)]
    pages: list[list[str]] = []
    start: tuple[int, int] | None = (0, 0)
    while start is not None:
        one = entries_page(savepoint, "per shop", state, start, limit, lambda entry: (repr(entry),))
        pages.append([text for [text] in one.rows])
        start = one.next_place
    assert [text for texts in pages for text in texts] == expected
    assert [len(texts) for texts in pages[:-1]] == [limit] * (len(pages) - 1)
    assert 1 <= len(pages[-1]) <= limit


def test_a_page_that_begins_inside_of_a_key_group_contains_all_entries_after_it() -> None:
    entries = [
        SimpleNamespace(key_group=group, key=key)
        for group, key in zip([0] * 5 + list(range(1, 9)), "abcde12345678", strict=True)
    ]

    def read(operator: str, state: str, key_groups: KeyGroupRange) -> list[Any]:
        return [one for one in entries if one.key_group in key_groups]

    savepoint: Any = SimpleNamespace(metadata=SimpleNamespace(max_parallelism=9), read=read)
    first = entries_page(savepoint, "operator", "state", (0, 0), 3, lambda entry: (entry.key,))
    assert (first.rows, first.next_place) == ([("a",), ("b",), ("c",)], (0, 3))
    second = entries_page(savepoint, "operator", "state", (0, 3), 20, lambda entry: (entry.key,))
    assert [key for [key] in second.rows] == list("de12345678")


def test_pages_of_entries_follow_one_another(page: ServedPage) -> None:
    for state, count in (("by amount", 100), ("handled", 100)):
        seen = 0
        link: str | None = address("rocksdb savepoint", state)
        while link is not None:
            one = page.get(link)
            seen += one.elements["tr"] - 1
            link = next((target for target in one.links if "skip=" in target), None)
        # The rows of the schema are on each page.
        types = 3 if state == "by amount" else 1
        assert seen == count + 2 * (1 + types)


def test_two_checkpoints_and_two_savepoints_are_compared(page: ServedPage) -> None:
    both = "/difference?old=0.heap%20job&new=0.heap%20job&old_checkpoint=2&new_checkpoint=3"
    assert "Schemas: none." in page.get(both).texts
    texts = page.get(f"{both}&entries=1").texts
    assert {"changed", "added"} <= set(texts)
    same = page.get("/difference?old=0.heap%20savepoint&new=0.rocksdb%20savepoint&entries=1").text
    assert "Entries, at most 200: none." in same


@attrs.frozen
class OtherTotals:
    sales: int
    turnover: str


def locked(function: KeyedProcessFunction[str, Any, Any]) -> bytes:
    environment = LocalStreamEnvironment()
    stream = environment.from_elements([], schema="shop string, amount bigint").key_by("shop")
    stream.process(function, uid="per shop", schema="shop string").sink_to([])
    return lock_to_bytes(environment.described().lock())


class Reads(KeyedProcessFunction[str, Any, Any]):
    totals = ValueStateDescriptor("totals", OtherTotals)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize("place", PLACES)
def test_a_lockfile_is_compared_with_stored_state(page: ServedPage, place: str) -> None:
    target = f"/compatibility?at={quote(f'0.{place}')}"
    of_the_job = page.upload(target, locked(SumPerShop())).texts
    assert "restores" in of_the_job
    assert of_the_job.count("compatible as is") == 11
    of_another = page.upload(target, locked(Reads())).texts
    assert "rejected" in of_another
    assert "incompatible" in of_another
    assert of_another.count("not registered, kept as it is") == 9


def test_a_checkpoint_that_the_job_deletes_meanwhile_is_looked_up_again(directory: Path, tmp_path: Path) -> None:
    job = shutil.copytree(directory / "heap job", tmp_path / "job")
    places = Places([str(job)])
    [place] = places
    opened: list[int] = []

    def use(savepoint: Savepoint) -> int:
        opened.append(savepoint.metadata.checkpoint_id)
        if len(opened) == 1:
            shutil.rmtree(job / "checkpoints" / f"chk-{3:012d}")
            raise MissingFileError("a file of the checkpoint is gone")
        return savepoint.metadata.checkpoint_id

    assert places.read(place, None, use) == 2
    assert opened == [3, 2]
    with served([job]) as page:
        assert "holds no checkpoint 3" in page.get("/checkpoint?at=0&checkpoint=3", status=404).text
        assert "checkpoint 2" in page.get("/job?at=0").texts


def test_a_job_without_checkpoints_and_damaged_places_are_listed(directory: Path, tmp_path: Path) -> None:
    job = shutil.copytree(directory / "heap job", tmp_path / "job")
    shutil.rmtree(job / "checkpoints")
    damaged = shutil.copytree(directory / "heap savepoint", tmp_path / "damaged")
    (damaged / "_metadata").write_bytes(b"no metadata")
    with served([tmp_path]) as page:
        texts = page.get("/").texts
        assert "no completed checkpoint yet" in texts
        assert "not readable" in texts
        assert "The job has not completed a checkpoint yet." in page.get("/job?at=0.job").texts
        page.get("/job?at=0.damaged", status=409)
        page.get("/checkpoint?at=0.damaged", status=409)


def test_paths_that_are_missing_or_have_other_names_than_text_are_listed(directory: Path, tmp_path: Path) -> None:
    named = os.path.join(os.fsencode(tmp_path), b"\xff \xe2\x80\xae<b>")
    shutil.copytree(os.fsencode(directory / "heap savepoint"), named)
    with served([tmp_path, tmp_path / "missing"]) as page:
        first = page.get("/")
        assert "not readable" in first.texts
        assert f"{tmp_path.name}/missing" in first.texts
        links = [one for one in first.links if one.startswith("/job")]
        assert len(links) == 2
        assert "savepoint 3" in page.get(links[0]).texts
        assert "Compare" in page.get(links[0]).text
        page.get(links[1], status=409)


def test_a_directory_that_may_not_be_read_does_not_hide_the_others(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("closed", "open"):
        shutil.copytree(directory / "heap savepoint", tmp_path / name)
    exists, accessible = CheckpointFileSystem.exists, os.access

    def looked_up(directory: CheckpointFileSystem, path: str) -> bool:
        if directory.uri.endswith("closed"):
            raise StorageError("Permission denied")
        return exists(directory, path)

    monkeypatch.setattr(CheckpointFileSystem, "exists", looked_up)
    monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path) and accessible(path, mode))
    with served([tmp_path]) as page:
        texts = page.get("/").texts
        assert "not readable" in texts
        assert f"{tmp_path.name}/open" in texts
        page.get("/job?at=0.open")


def test_pages_beyond_the_last_entry_are_empty(page: ServedPage) -> None:
    for more in ({"group": 128}, {"group": 9**18}, {"group": 127, "skip": 9**18}, {"key": "shop 3", "skip": 9**18}):
        assert "Entries: none." in page.get(address("heap job", "totals", **more)).texts
    page.get(address("heap job", "totals", skip=10**18), status=404)


@pytest.mark.parametrize("parameters", ["", "?at=0.heap%20job&checkpoint=x", "?at=0.heap%20job&checkpoint=%C2%B2"])
def test_an_address_that_lacks_a_parameter_or_has_no_number_is_reported(page: ServedPage, parameters: str) -> None:
    assert "the " in page.get(f"/checkpoint{parameters}", status=404).text


HOSTILE = {
    "markup": "</td></table><script>alert(1)</script><img src=x onerror=alert(1)>",
    "attribute": "\" onmouseover='alert(1)' x=\"",
    "control": "a\x00b\x1b[31mc\x7f\r\nd\u202egnp.exe\u2066\ufeff",
    "surrogate": "\ud800",
    "long": "x" * (10 << 20),
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    directory = tmp_path_factory.mktemp("hostile")
    name = HOSTILE["markup"]
    texts = ValueStateDescriptor(f"state {name}", str)
    storable = {key: value for key, value in HOSTILE.items() if key != "surrogate"}
    plan = Plan().add_operator("texts", "string").add_state("texts", texts, list(storable.items()))
    SavepointWriter.new(directory / "savepoint", job_name=f"job {name}", max_parallelism=8).write(plan)
    with served([directory / "savepoint"]) as page:
        yield page


def test_hostile_values_and_names_are_shown_as_text(hostile: ServedPage) -> None:
    state = quote(f"state {HOSTILE['markup']}")
    shown = hostile.get(f"/state?at=0&operator=texts&state={state}")
    assert HOSTILE["markup"] in shown.texts
    assert HOSTILE["attribute"] in shown.texts
    assert "a\\x00b\\x1b[31mc\\x7f\\x0d\\nd\\x202egnp.exe\\x2066\\xfeff" in shown.texts
    assert "x" * 300 + "… (10,485,760 characters)" in shown.texts
    looked_up = hostile.get(f"/state?at=0&operator=texts&state={state}&key=long")
    assert re.search("x… \\(10,485,760 characters\\)", looked_up.text)
    for path in ("/", "/job?at=0", "/checkpoint?at=0&counts=1"):
        assert "script" not in hostile.get(path).elements


def test_hostile_parameters_are_shown_as_text(hostile: ServedPage) -> None:
    for name in ("operator", "state", "key"):
        given = {"at": "0", "operator": "texts", "state": "state", "key": "key", name: HOSTILE["markup"] + "\x00\u202e"}
        parameters = "&".join(f"{key}={quote(value)}" for key, value in given.items())
        answered = hostile.request(f"/state?{parameters}", hostile.signed_in)
        assert answered.status == 404
        assert "<script" not in answered.text
        assert "\u202e" not in answered.text
