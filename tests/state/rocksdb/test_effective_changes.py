"""Which changes of an epoch are written, and how they change the content digest."""

from types import SimpleNamespace

import pytest

from statebackend.state.rocksdb.cached_state import UNKNOWN, Drained
from statebackend.state.rocksdb.engine import ColumnFamily, RocksDBError
from statebackend.state.rocksdb.file_chain import ContentDigest
from statebackend.state.rocksdb.table import effective_changes

SEED = 7


class Family:
    """A column family that records its calls."""

    def __init__(self, rows):
        self.rows = rows
        self.asked = []

    def get_all(self, keys):
        self.asked += keys
        return list(map(self.rows.get, keys))


def effect(drained, rows=(), expired=None):
    digest, family = ContentDigest(), Family(dict(rows))
    written = effective_changes(drained, family, digest, SEED, expired)
    return written, digest.since(0), family.asked


def test_changes_in_any_order_are_written_in_key_order():
    drained = Drained([b"c", b"a", b"b"], [b"3", b"1", None], [None, b"0", b"2"])
    written, digest, asked = effect(drained)
    assert written == ([b"a", b"b", b"c"], [b"1", None, b"3"])
    assert asked == []
    assert effect(Drained([b"a", b"b", b"c"], [b"1", None, b"3"], [b"0", b"2", None]))[:2] == (written, digest)


def test_only_unknown_rows_are_looked_up_in_order():
    drained = Drained([b"c", b"a", b"b"], [b"3", b"1", b"2"], [UNKNOWN, UNKNOWN, b"0"])
    written, digest, asked = effect(drained, {b"a": b"9", b"b": b"not asked for"})
    assert written == ([b"a", b"b", b"c"], [b"1", b"2", b"3"])
    assert asked == [b"a", b"c"]
    known = Drained([b"a", b"b", b"c"], [b"1", b"2", b"3"], [b"9", b"0", None])
    assert effect(known)[:2] == (written, digest)


def test_deleting_a_missing_row_is_no_change():
    written, digest, _ = effect(Drained([b"b", b"a"], [None, None], [UNKNOWN, None]))
    assert (written, digest) == (([], []), effect(Drained())[1])


def test_an_unchanged_row_is_written_and_leaves_the_digest_unchanged():
    written, digest, _ = effect(Drained([b"a"], [b"1"], [b"1"]))
    assert (written, digest) == (([b"a"], [b"1"]), effect(Drained())[1])


def test_an_expired_row_counts_as_missing():
    def expired(value):
        return None if value.startswith(b"old") else value

    swept = Drained([b"a", b"b"], [None, b"2"], [b"old", b"old too"])
    assert effect(swept, expired=expired)[1] == effect(Drained([b"b"], [b"2"], [None]))[1]


def test_a_digest_computed_by_a_state_is_reused():
    written, digest, asked = effect(Drained([b"b", b"a"], [None, b"1"], [UNKNOWN, UNKNOWN], digest=5))
    assert (written, digest, asked) == (([b"a", b"b"], [b"1", None]), f"{5:016x}", [])


def test_a_failed_look_up_is_an_error_of_the_column_family():
    def broken(keys):
        raise OSError("gone")

    family = ColumnFamily(SimpleNamespace(path="/db"), "state", SimpleNamespace(get=broken))
    with pytest.raises(RocksDBError, match="could not read an entry at /db: gone"):
        effective_changes(Drained([b"a"], [b"1"], [UNKNOWN]), family, ContentDigest(), SEED, None)
