"""The lockfile round trips, and a changed file is rejected with advice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend import SplitListStateDescriptor, ValueStateDescriptor
from statebackend.savepoint.errors import StateLockError
from statebackend.savepoint.lockfile import (
    MAX_LOCK_BYTES,
    LockedOperator,
    StateLock,
    add_to_history,
    is_lock_file,
    lock_from_bytes,
    lock_to_bytes,
    locks_of_history,
    read_lock,
    write_lock,
    write_locks,
)
from statebackend.state.descriptors import character_problem
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.operator_state_handles import OperatorStateMeta, StatePart, envelopes_of
from statebackend.state.state_meta import KeyedStateMeta, first_meta_of
from typeserializers import serializer_for


def operator(uid: str, *states: str, value: type = int) -> LockedOperator:
    metas = [first_meta_of(ValueStateDescriptor(name, value), VOID_NAMESPACE_SERIALIZER) for name in states]
    return LockedOperator(uid, KeyedStateMeta(serializer_for(str).snapshot_configuration(), 0, tuple(metas)))


def lock(*operators: LockedOperator) -> StateLock:
    return StateLock(128, tuple(operators), "state.lock")


def described() -> StateLock:
    """A lockfile with keyed and operator state, and with names that need escapes."""
    keyed = operator("aircraft", "legs \N{BULLET} 2", 'quoted "so"')
    handled = SplitListStateDescriptor("handled", int)
    meta = OperatorStateMeta(handled.name, handled.mode, (StatePart(envelopes_of(handled.serializers)),))
    return lock(LockedOperator(keyed.uid, keyed.keyed, (meta,)), operator("weather", "hours"))


def test_a_lock_round_trips_to_the_byte() -> None:
    data = lock_to_bytes(described())
    again = lock_from_bytes(data, "state.lock")
    assert lock_to_bytes(again) == data
    assert list(again.operator_uids) == ["aircraft", "weather"]
    [meta] = again.keyed_metas_of("aircraft")
    assert [one.name for one in meta.states] == ["legs \N{BULLET} 2", 'quoted "so"']
    assert [one.name for one in again.operator_state_metas_of("aircraft")] == ["handled"]
    assert again.keyed_metas_of("nobody") == again.operator_state_metas_of("nobody") == ()


@given(
    uid=st.text(max_size=8),
    # Names of states contain no characters that control a terminal or the direction of text.
    name=st.text(min_size=1, max_size=8).filter(lambda name: character_problem(name) is None),
)
def test_any_name_is_one_line_and_round_trips(uid: str, name: str) -> None:
    data = lock_to_bytes(lock(operator(uid, name)))
    again = lock_from_bytes(data, "state.lock")
    assert again.operators[0].uid == uid
    assert again.operators[0].keyed.states[0].name == name
    assert all(line.isprintable() for line in data.decode().split("\n"))


def test_a_job_without_state_has_a_lock() -> None:
    assert lock_from_bytes(lock_to_bytes(lock()), "state.lock").operators == ()


def test_every_flipped_byte_is_rejected() -> None:
    data = lock_to_bytes(lock(operator("a", "s")))
    for place in range(len(data)):
        for bits in (1, 32, 128):
            flipped = data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]
            with pytest.raises(StateLockError, match=r"state\.lock"):
                lock_from_bytes(flipped, "state.lock")


def test_every_truncation_is_rejected() -> None:
    data = lock_to_bytes(lock(operator("a", "s")))
    for length in range(len(data)):
        with pytest.raises(StateLockError):
            lock_from_bytes(data[:length], "state.lock")
    with pytest.raises(StateLockError, match="it was cut off"):
        lock_from_bytes(data[:-4], "state.lock")


def test_every_repeated_or_missing_line_is_rejected() -> None:
    lines = lock_to_bytes(described()).split(b"\n")
    for index, line in enumerate(lines):
        for damaged in ([*lines[:index], line, *lines[index:]], lines[:index] + lines[index + 1 :]):
            with pytest.raises(StateLockError):
                lock_from_bytes(b"\n".join(damaged), "state.lock")


@given(data=st.binary(max_size=200))
def test_any_bytes_are_rejected_by_an_error_of_the_library(data: bytes) -> None:
    written = lock_to_bytes(lock(operator("a", "s")))
    for hostile in (data, written + data + b"\n", b"statebackend schema lockfile, format 1\n" + data + b"\nend\n"):
        with pytest.raises(StateLockError):
            lock_from_bytes(hostile, "state.lock")


def test_a_file_beyond_the_limit_is_rejected_unread(tmp_path: Path) -> None:
    path = tmp_path / "state.lock"
    with path.open("wb") as file:
        file.truncate(MAX_LOCK_BYTES * 1000)
    with pytest.raises(StateLockError, match=r"at most 16,777,216"):
        read_lock(path)


def test_a_line_edited_by_hand_is_rejected_with_advice() -> None:
    edited = lock_to_bytes(lock(operator("a", "s"))).replace(b"value: int64", b"value: int32")
    with pytest.raises(StateLockError, match=r'operator "a" do not match their checksum') as reported:
        lock_from_bytes(edited, "jobs/state.lock")
    assert str(reported.value).endswith("statebackend lock --job MODULE:FACTORY --output jobs/state.lock")


def test_another_max_parallelism_is_rejected() -> None:
    edited = lock_to_bytes(lock(operator("a", "s"))).replace(b"max_parallelism 128", b"max_parallelism 256")
    with pytest.raises(StateLockError, match="do not match their checksum"):
        lock_from_bytes(edited, "state.lock")


def test_a_conflict_of_git_is_reported_with_its_line() -> None:
    conflict = lock_to_bytes(described()).replace(b"max_parallelism 128", b"<<<<<<< HEAD\nmax_parallelism 128")
    with pytest.raises(StateLockError, match=r"git conflict in line 4: take either side"):
        lock_from_bytes(conflict, "state.lock")


def test_windows_line_ends_are_reported_with_the_line_for_gitattributes() -> None:
    with pytest.raises(StateLockError, match=r"'state.lock -text' in .gitattributes"):
        lock_from_bytes(lock_to_bytes(described()).replace(b"\n", b"\r\n"), "jobs/state.lock")


def test_changes_of_two_branches_to_two_operators_merge_into_one_lock() -> None:
    def text(first: type, second: type) -> list[bytes]:
        return lock_to_bytes(lock(operator("a", "s", value=first), operator("b", "s", value=second))).split(b"\n")

    # Merge like git: from each side, take the lines that differ from the common ancestor.
    sides = zip(text(int, int), text(bool, int), text(int, bool), strict=True)
    merged = b"\n".join(one if one != was else other for was, one, other in sides)
    assert merged.split(b"\n") == text(bool, bool)
    lock_from_bytes(merged, "state.lock")


def test_checksummed_bytes_that_are_not_state_are_rejected() -> None:
    with pytest.raises(StateLockError, match=r"cannot be read: .*twice"):
        lock_from_bytes(lock_to_bytes(lock(operator("a", "s", "s"))), "state.lock")


def test_operators_in_another_order_are_rejected() -> None:
    with pytest.raises(StateLockError, match="repeated or unsorted operators"):
        lock_from_bytes(lock_to_bytes(lock(operator("b", "s"), operator("a", "s"))), "state.lock")


def test_a_file_is_written_only_if_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "jobs" / "state.lock"
    path.parent.mkdir()
    assert write_lock(path, described())
    before = path.stat()
    assert not write_lock(path, described())
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert write_lock(path, lock())
    assert [file.name for file in path.parent.iterdir()] == ["state.lock"]


def test_a_directory_in_place_of_the_lock_is_reported(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="the path is a directory; name a file in it"):
        write_lock(tmp_path, lock())


def test_a_link_to_a_lock_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "state.lock").symlink_to("locks/sales.lock")
    for one in (described(), lock()):
        assert write_lock(tmp_path / "state.lock", one)
        assert (tmp_path / "state.lock").is_symlink()
        assert (tmp_path / "locks" / "sales.lock").read_bytes() == lock_to_bytes(one)


def test_a_file_that_is_not_a_lock_is_not_replaced(tmp_path: Path) -> None:
    program = tmp_path / "sales.py"
    program.write_text("import attrs\n")
    with pytest.raises(StateLockError, match=r"sales\.py exists and is not a lockfile"):
        write_lock(program, lock())
    assert program.read_text() == "import attrs\n"
    # An empty file, as `touch` creates it, has no content to protect.
    (tmp_path / "empty.lock").touch()
    assert write_lock(tmp_path / "empty.lock", lock())


def test_a_missing_lock_is_reported_with_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(StateLockError, match=r"there is no lockfile .*state\.lock; write it"):
        read_lock(tmp_path / "state.lock")


def test_a_history_keeps_each_lock_once_and_returns_the_newest_first(tmp_path: Path) -> None:
    first, second = lock(operator("a", "s")), lock(operator("a", "s", value=float))
    added = [add_to_history(tmp_path / "history", one) for one in (first, first, second, first)]
    assert [None if one is None else one.name[:6] for one in added] == ["00001-", None, "00002-", None]
    kept = [lock_to_bytes(one) for _, one in locks_of_history(tmp_path / "history")]
    assert kept == [lock_to_bytes(second), lock_to_bytes(first)]


def test_a_history_with_a_replaced_file_is_rejected(tmp_path: Path) -> None:
    path = add_to_history(tmp_path, lock(operator("a", "s")))
    assert path is not None
    path.write_bytes(lock_to_bytes(lock()))
    with pytest.raises(StateLockError, match="does not match its name"):
        list(locks_of_history(tmp_path))


def test_a_lock_does_not_count_as_kept_if_its_file_was_replaced(tmp_path: Path) -> None:
    path = add_to_history(tmp_path, lock(operator("a", "s")))
    assert path is not None
    path.write_bytes(b"")
    with pytest.raises(StateLockError, match="does not match its name"):
        add_to_history(tmp_path, lock(operator("a", "s")))


def test_a_file_and_its_history_are_written_both_or_neither(tmp_path: Path) -> None:
    first, second = lock(operator("a", "s")), lock(operator("a", "s", value=float))
    path, history = tmp_path / "state.lock", tmp_path / "above" / "history"
    (tmp_path / "program.py").write_text("import attrs")
    for wrong, error in ((tmp_path / "program.py", StateLockError), (tmp_path / "nowhere" / "state.lock", OSError)):
        with pytest.raises(error):
            write_locks(wrong, history, first)
        assert [one.name for one in tmp_path.iterdir()] == ["program.py"]
    assert write_locks(path, None, first) == (True, None)
    with pytest.raises(NotADirectoryError):
        write_locks(path, path / "history", second)
    with pytest.raises(OSError, match="File name too long"):
        write_locks(path, tmp_path / "above" / ("x" * 300), second)
    assert not (tmp_path / "above").exists()
    assert path.read_bytes() == lock_to_bytes(first)
    changed, added = write_locks(path, history, first)
    assert (changed, [added]) == (False, list(history.iterdir()))
    with pytest.raises(IsADirectoryError):
        write_locks(tmp_path, history, second)
    with pytest.raises(IsADirectoryError):
        write_locks(tmp_path, history, first)
    assert list(history.iterdir()) == [added]


def test_a_missing_history_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StateLockError, match="create it with statebackend lock --history"):
        list(locks_of_history(tmp_path / "nowhere"))


def test_a_path_with_the_home_of_an_unknown_user_is_an_ordinary_path() -> None:
    assert not is_lock_file("~nobody of this name/state.lock")
