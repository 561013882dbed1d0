from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint import CheckpointFileSystem, FileHandle, UnsafePathError
from statebackend.checkpoint.invariants import checked_relative_path, checksum_of_bytes, path_segment

ESCAPES = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../x",
    "a/../../x",
    "a/..",
    ".",
    "./a",
    "a/./b",
    "a//b",
    "a/",
    "a\\..\\b",
    "a\0b",
    "a\nb",
    "a\x1fb",
    "a\x7fb",
    "\udcff",
    "x" * 256,
    "a/" * 600 + "a",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_a_path_that_could_leave_its_directory_is_rejected_everywhere(path: str, tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    source = tmp_path / "source"
    source.write_bytes(b"x")
    calls = [
        lambda: FileHandle(path, 1, checksum_of_bytes(b"x")),
        lambda: fs.write_file(path, b"x"),
        lambda: fs.upload(source, path),
        lambda: fs.read_file(path),
        lambda: fs.open_input(path),
        lambda: fs.exists(path),
        lambda: fs.size(path),
        lambda: fs.delete(path),
        lambda: fs.delete_directory(path),
        lambda: fs.move_directory(path, "b"),
        lambda: fs.move_directory("b", path),
    ]
    if path:
        calls += [lambda: fs.list_files(path), lambda: fs.local_path(path), lambda: fs.list_directories(path)]
    for call in calls:
        with pytest.raises(UnsafePathError):
            call()
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("longest", "too_long"),
    [("/".join(["x" * 204] * 5), "/".join(["x" * 204] * 5) + "x"), ("x" * 255, "x" * 256), ("ä" * 127, "ä" * 128)],
)
def test_a_path_and_its_segments_have_maximal_lengths(longest: str, too_long: str) -> None:
    assert checked_relative_path(longest) == longest
    with pytest.raises(UnsafePathError, match="long"):
        checked_relative_path(too_long)


def test_long_names_have_distinct_segments_of_equal_length() -> None:
    segments = {path_segment("x" * length) for length in range(151, 400)}
    assert len(segments) == 249
    assert {len(segment) for segment in segments} == {150}
    assert path_segment("x" * 150) == "x" * 150


def test_a_path_must_be_a_string() -> None:
    with pytest.raises(UnsafePathError, match="bytes"):
        checked_relative_path(b"a/b")  # type: ignore[arg-type]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="/"), max_size=8), max_size=5))
def test_an_accepted_path_stays_below_its_root(segments: list[str]) -> None:
    import os.path

    path = "/".join(segments)
    try:
        checked_relative_path(path)
    except UnsafePathError:
        return
    assert os.path.normpath("/root/" + path) == "/root/" + path


def test_symbolic_links_in_place_of_files_are_not_followed(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    handle = fs.write_file("a", b"secret")
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "root" / "a").unlink()
    (tmp_path / "root" / "a").symlink_to(tmp_path / "outside")
    from statebackend.checkpoint import CheckpointError

    for read in (
        lambda: fs.read_file(handle),
        lambda: fs.read_file("a"),
        lambda: fs.download(handle, tmp_path / "copy"),
        lambda: fs.open_input("a"),
    ):
        with pytest.raises(CheckpointError):
            read()
    assert not (tmp_path / "copy").exists()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200), min_size=1, unique=True))
def test_every_name_has_its_own_segment_with_space_for_a_suffix(names: list[str]) -> None:
    segments = [path_segment(name) for name in [".", "..", "a", *names]]
    assert len(set(segments)) == len({".", "..", "a", *names})
    for segment in segments:
        assert "/" not in segment
        checked_relative_path(f"x/{segment}{'s' * 100}/y")


def test_a_plain_name_is_its_own_segment_and_an_empty_name_is_rejected() -> None:
    assert path_segment("last-legs_2.x") == "last-legs_2.x"
    assert path_segment("by number") == "by%20number"
    with pytest.raises(UnsafePathError):
        path_segment("")
