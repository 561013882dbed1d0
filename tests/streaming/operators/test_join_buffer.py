"""The buffer of a join equals a plain list of waiting records, for any cache content."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.streaming.operators import interval_join as join_buffer
from statebackend.streaming.operators.element_form import ElementForm
from statebackend.streaming.operators.interval_join import JoinBuffer
from typeserializers import LongSerializer

KEYS = st.sampled_from("ab")
TIMES = st.integers(0, 4)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS, TIMES, TIMES),
        st.tuples(st.just("remove"), KEYS, TIMES, TIMES),
        st.tuples(st.just("between"), KEYS, TIMES, TIMES),
    ),
    max_size=40,
)


class KeyedMaps(dict[Any, Any]):
    """A map state per key; the current key is the last one set."""

    def __init__(self) -> None:
        self.maps: dict[str, dict[Any, Any]] = {"a": {}, "b": {}}
        self.key = "a"
        self.passes = 0

    def put(self, key: Any, value: Any) -> None:
        self.maps[self.key][key] = value

    def get(self, key: Any, default: Any = None) -> Any:
        return self.maps[self.key].get(key, default)

    def contains(self, key: Any) -> bool:
        return key in self.maps[self.key]

    def remove(self, key: Any) -> None:
        del self.maps[self.key][key]

    def items(self) -> Any:
        self.passes += 1
        return self.maps[self.key].items()


def buffer_over(state: KeyedMaps) -> JoinBuffer:
    return JoinBuffer("left", ElementForm.as_they_are(LongSerializer()), lambda descriptor: state)


@pytest.mark.parametrize("most", [0, 3, 100])
@given(calls=CALLS)
def test_a_buffer_returns_waiting_records_in_order_of_time_and_arrival(most: int, calls: list[Any]) -> None:
    state, model = KeyedMaps(), dict[str, list[tuple[int, int]]](a=[], b=[])
    buffer = buffer_over(state)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(join_buffer, "MOST_TIMES", most)
        for number, (call, key, time, other) in enumerate(calls):
            state.key = key
            if call == "add":
                buffer.add(key, number, time)
                model[key].append((time, number))
            elif call == "remove":
                buffer.remove(key, time)
                model[key] = [one for one in model[key] if one[0] != time]
            else:
                lowest, highest = min(time, other), max(time, other)
                waiting = sorted((one for one in model[key] if lowest <= one[0] <= highest), key=lambda one: one[0])
                assert list(buffer.between(key, lowest, highest)) == waiting
    assert {key: len(entries) for key, entries in state.maps.items()} == {key: len(model[key]) for key in model}


def test_cached_times_are_dropped_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_buffer, "MOST_TIMES", 10)
    state = KeyedMaps()
    buffer = buffer_over(state)
    for key in "ab":
        state.key = key
        for time in range(12):
            buffer.add(key, time, time)
    passes = []
    for key in "aabbbaa":
        state.key = key
        assert len(list(buffer.between(key, 0, 100))) == 12
        passes.append(state.passes)
    assert passes == [1, 1, 2, 2, 2, 3, 3]


def test_dropped_times_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_buffer, "MOST_TIMES", 30)
    state = KeyedMaps()
    state.maps.update(c={}, d={})
    buffer = buffer_over(state)
    for key in "abcd":
        state.key = key
        for time in range(12):
            buffer.add(key, time, time)
    for key in "abcdada":
        state.key = key
        assert len(list(buffer.between(key, 0, 100))) == 12
    # The fourth key evicted the first three. After that, there is space for two keys again.
    assert state.passes == 5


def test_keys_without_waiting_records_count_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_buffer, "MOST_TIMES", 10)
    state = KeyedMaps()
    buffer = buffer_over(state)
    for number in range(100):
        assert list(buffer.between(number, 0, 5)) == []
    assert len(buffer._known) <= 12


def test_removed_times_leave_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    state = KeyedMaps()
    buffer = buffer_over(state)
    assert list(buffer.between("a", 0, 0)) == []
    for time in range(5000):
        buffer.add("a", time, time)
        buffer.remove("a", time - 3)
    assert list(buffer.between("a", 0, 5000)) == [(time, time) for time in range(4997, 5000)]
    assert len(buffer._known["a"].order) < 200


def test_a_repeated_time_is_one_time() -> None:
    buffer = buffer_over(KeyedMaps())
    assert list(buffer.between("a", 0, 9)) == []
    for number in range(3):
        buffer.add("a", number, 5)
        assert list(buffer.between("a", 0, 9)) == [(5, number)]
        buffer.remove("a", 5)
    assert list(buffer.between("a", 0, 9)) == []


def test_many_times_removed_in_any_order_remove_no_others() -> None:
    state = KeyedMaps()
    buffer = buffer_over(state)
    assert list(buffer.between("a", 0, 0)) == []
    for time in range(300):
        buffer.add("a", time, time)
    for time in reversed(range(100, 300)):
        buffer.remove("a", time)
    assert list(buffer.between("a", 0, 300)) == [(time, time) for time in range(100)]
