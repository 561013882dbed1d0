"""Full writes leave out expired rows; a row that is not a value of the state raises an error."""

from __future__ import annotations

import pytest

from statebackend.state.canonical import CanonicalBatch
from statebackend.state.errors import StateRestoreError
from statebackend.state.list_state import LIST
from statebackend.state.state_kind import StateKind
from statebackend.state.ttl import expired_row_filter, kept_batches
from statebackend.state.value_state import VALUE
from typeserializers import ListSerializer, LongSerializer, StringSerializer
from typeserializers.containers.ttl import TtlSerializer, TtlValue

TEXTS = TtlSerializer(StringSerializer())
NOW_MS, TTL_MS = 1000, 100
ALIVE, EXPIRED = TtlValue("alive", 901), TtlValue("expired", 900)


def a_filter(kind: StateKind):
    return expired_row_filter(kind, TEXTS, TTL_MS, NOW_MS)


def a_chunk(*values: TtlValue[str]) -> bytes:
    return ListSerializer(TEXTS).to_bytes(list(values))


def test_a_value_is_kept_until_the_millisecond_at_which_it_expires() -> None:
    row_filter = a_filter(VALUE)
    assert row_filter(TEXTS.to_bytes(ALIVE)) == TEXTS.to_bytes(ALIVE)
    assert row_filter(TEXTS.to_bytes(EXPIRED)) is None


def test_a_list_drops_its_expired_elements_and_is_removed_with_the_last() -> None:
    row_filter = a_filter(LIST)
    assert row_filter(a_chunk(EXPIRED, ALIVE, EXPIRED)) == a_chunk(ALIVE)
    assert row_filter(a_chunk(ALIVE, ALIVE)) == a_chunk(ALIVE, ALIVE)
    assert row_filter(a_chunk(EXPIRED)) is None


@pytest.mark.parametrize("chunk", [a_chunk(ALIVE) + b"\0", a_chunk(ALIVE)[:-1], b"\0\0\0\1", b""], ids=bytes.hex)
def test_a_list_with_other_bytes_at_its_end_is_rejected(chunk: bytes) -> None:
    with pytest.raises(StateRestoreError, match="a stored value cannot be read by TtlSerializer"):
        a_filter(LIST)(chunk)


@pytest.mark.parametrize("kind", [VALUE, LIST], ids=repr)
def test_a_row_too_short_for_a_time_is_rejected(kind: StateKind) -> None:
    with pytest.raises(StateRestoreError, match="a stored value cannot be read by TtlSerializer"):
        a_filter(kind)(b"\0\0")


def test_batches_keep_live_rows_and_are_dropped_when_empty() -> None:
    alive, expired = TEXTS.to_bytes(ALIVE), TEXTS.to_bytes(EXPIRED)

    def batch(*values: bytes) -> CanonicalBatch:
        keys = [b"%d" % place for place in range(len(values))]
        return CanonicalBatch([3] * len(values), keys, [b"\0"] * len(values), [None] * len(values), list(values))

    given = [batch(expired, alive), batch(expired, expired), batch(alive)]
    kept = [batch.values for batch in kept_batches(a_filter(VALUE), given)]
    assert kept == [[alive], [alive]]
    assert list(kept_batches(None, given)) == given


def test_a_filter_of_long_values_reads_the_time_only() -> None:
    longs = TtlSerializer(LongSerializer())
    row_filter = expired_row_filter(VALUE, longs, TTL_MS, NOW_MS)
    assert row_filter(longs.to_bytes(TtlValue(-1, 901))) is not None
    assert row_filter(longs.to_bytes(TtlValue(-1, 900))) is None
