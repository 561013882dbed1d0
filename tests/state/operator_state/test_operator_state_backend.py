"""The cases of Flink's ``OperatorStateBackendTest``, and more guarantees of this backend."""

import attrs
import pytest

from snapshots.errors import SerializationError
from statebackend.state.errors import StateBackendClosedError, StateRegistrationError
from statebackend.state.operator_state_descriptors import (
    BroadcastStateDescriptor,
    OperatorStateMode,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)


@attrs.define
class Rule:
    """A mutable value."""

    name: str
    limits: list[int]


NUMBERS = SplitListStateDescriptor("numbers", int)
NAMES = UnionListStateDescriptor("names", str)
RULES = BroadcastStateDescriptor("rules", str, Rule)
TABLE = BroadcastStateDescriptor("table", int, str)


def test_a_new_backend_has_no_states(operator):
    (backend,) = operator.start()
    assert backend.state_names() == ()


def test_a_backend_without_states_has_no_part_and_is_restored(operator):
    (backend,) = operator.start()
    assert backend.snapshot(1, "snapshot-1").handle.states == ()
    assert operator.snapshot([backend]) == [None]
    (restored,) = operator.start([None])
    assert restored.state_names() == ()


def test_states_are_registered_once_and_share_content(operator):
    (backend,) = operator.start()
    for name in ("first", "second", "third"):
        state = backend.get_state(SplitListStateDescriptor(name, int))
        state.add_all([1, 2])
        assert backend.get_state(SplitListStateDescriptor(name, int)).get() == [1, 2]
    assert backend.state_names() == ("first", "second", "third")
    assert backend.state_names(OperatorStateMode.UNION) == ()


@pytest.mark.parametrize(
    "other",
    [UnionListStateDescriptor("numbers", int), BroadcastStateDescriptor("numbers", int, int)],
    ids=["union", "broadcast"],
)
def test_another_mode_under_the_same_name_is_rejected(operator, other):
    (backend,) = operator.start()
    backend.get_state(NUMBERS).add(7)
    with pytest.raises(StateRegistrationError, match=r"'numbers'.*registered as a split state.*another name"):
        backend.get_state(other)
    assert backend.get_state(NUMBERS).get() == [7]


def test_another_serializer_under_the_same_name_is_rejected(operator):
    (backend,) = operator.start()
    backend.get_state(NUMBERS)
    with pytest.raises(StateRegistrationError, match="different descriptors"):
        backend.get_state(SplitListStateDescriptor("numbers", str))


def test_a_name_is_required():
    with pytest.raises(StateRegistrationError, match="1 to 200 characters"):
        SplitListStateDescriptor("", int)


def test_each_step_of_a_broadcast_state_survives_a_restart(operator):
    backends = operator.start()
    expected = {}
    for step in (
        lambda state: state.put_all({1: "one", 2: "two", 3: None}),
        lambda state: state.remove(2),
        lambda state: state.put(1, "uno"),
        lambda state: state.clear(),
        lambda state: state.put(4, "four"),
    ):
        step(backends[0].get_state(TABLE))
        expected = dict(backends[0].get_state(TABLE).items())
        backends = operator.restart(backends)
        assert backends[0].state_names() == ("table",)
        assert list(backends[0].get_state(TABLE).items()) == list(expected.items())
    assert expected == {4: "four"}


def test_lists_and_broadcast_states_are_restored_in_order_with_empty_ones_among_them(operator):
    backends = operator.start()
    first = backends[0]
    first.get_state(NUMBERS).add_all([3, 1, 2, 1])
    first.get_state(NAMES).update(["b", "a"])
    first.get_state(SplitListStateDescriptor("empty list", int))
    first.get_state(RULES).put("late", Rule("late", [15]))
    first.get_state(TABLE).put_all({2: "b", 1: "a"})
    first.get_state(BroadcastStateDescriptor("empty map", int, int))
    names = first.state_names()
    (restored,) = operator.restart(backends)
    assert restored.state_names() == restored.unregistered_names() == names
    assert restored.get_state(NUMBERS).get() == [3, 1, 2, 1]
    assert restored.get_state(NAMES).get() == ["b", "a"]
    assert restored.get_state(SplitListStateDescriptor("empty list", int)).get() == []
    assert dict(restored.get_state(RULES).items()) == {"late": Rule("late", [15])}
    assert list(restored.get_state(TABLE).items()) == [(2, "b"), (1, "a")]
    assert restored.get_state(BroadcastStateDescriptor("empty map", int, int)).is_empty()
    assert restored.state_names() == names
    assert restored.unregistered_names() == ()


def test_callers_changing_their_objects_do_not_change_the_state(operator):
    (backend,) = operator.start()
    rules, given = backend.get_state(RULES), Rule("late", [15])
    elements = backend.get_state(SplitListStateDescriptor("elements", Rule))
    rules.put("late", given)
    elements.add(given)
    given.limits.append(99)
    rules.get("late").limits.append(99)
    next(iter(rules.values())).limits.append(99)
    elements.get()[0].limits.append(99)
    elements.get().append(given)
    assert rules.get("late") == Rule("late", [15])
    assert elements.get() == [Rule("late", [15])]


def test_a_list_accepts_all_elements_or_none(operator):
    (backend,) = operator.start()
    numbers = backend.get_state(NUMBERS)
    numbers.add(1)
    for rejected in (lambda: numbers.add("x"), lambda: numbers.add_all([2, None]), lambda: numbers.update([3, "x"])):
        with pytest.raises(SerializationError, match="numbers"):
            rejected()
        assert numbers.get() == [1]
    numbers.add_all([])
    assert numbers.get() == [1]
    numbers.update([])
    assert numbers.get() == []


def test_a_broadcast_state_accepts_all_entries_or_none(operator):
    (backend,) = operator.start()
    table = backend.get_state(TABLE)
    table.put(1, "one")
    for rejected in (
        lambda: table.put(None, "x"),
        lambda: table.put("x", "x"),
        lambda: table.put(2, 2),
        lambda: table.put_all({3: "three", 4: 4}),
    ):
        with pytest.raises(SerializationError, match="table"):
            rejected()
        assert dict(table.items()) == {1: "one"}


def test_none_is_a_value_of_a_broadcast_entry(operator):
    (backend,) = operator.start()
    table = backend.get_state(TABLE)
    table.put(1, None)
    assert table.contains(1)
    assert table.get(1) is None
    assert not table.contains(2)
    assert not table.is_empty()
    table.remove(2)
    table.remove(1)
    assert table.is_empty()


def test_broadcast_entries_may_be_changed_while_iterating(operator):
    (backend,) = operator.start()
    table = backend.get_state(TABLE)
    table.put_all({number: str(number) for number in range(5)})
    for key, value in table.items():
        assert value == str(key)
        table.remove(key)
        table.put(key + 10, "moved")
    assert sorted(table.keys()) == [10, 11, 12, 13, 14]


def test_keys_whose_equality_differs_from_their_bytes_are_distinguished_by_bytes(operator):
    descriptor = BroadcastStateDescriptor("by limits", list[int], float)
    backends = operator.start()
    state = backends[0].get_state(descriptor)
    state.put([1, 2], 1.0)
    state.put([1, 2], 2.0)
    state.put([2, 1], 3.0)
    (restored,) = operator.restart(backends)
    assert list(restored.get_state(descriptor).items()) == [([1, 2], 2.0), ([2, 1], 3.0)]
    assert restored.get_state(descriptor).get([2, 1]) == 3.0


def test_a_read_only_view_shows_the_state_and_cannot_change_it(operator):
    (backend,) = operator.start()
    table = backend.get_state(TABLE)
    view = table.read_only()
    assert view.is_empty()
    table.put(1, "one")
    assert view.get(1) == "one"
    assert view.contains(1)
    assert (list(view.items()), list(view.keys()), list(view.values())) == ([(1, "one")], [1], ["one"])
    assert not any(hasattr(view, name) for name in ("put", "put_all", "remove", "clear"))


def test_a_closed_backend_rejects_every_use_of_its_states(operator):
    (backend,) = operator.start()
    numbers, table = backend.get_state(NUMBERS), backend.get_state(TABLE)
    numbers.add(1)
    table.put(1, "one")
    backend.prepare_snapshot(1, "snapshot-1")
    backend.close()
    backend.close()
    for use in (
        numbers.get,
        lambda: numbers.add(2),
        lambda: numbers.add_all([2]),
        lambda: numbers.update([2]),
        numbers.clear,
        lambda: table.get(1),
        lambda: table.contains(1),
        lambda: table.put(1, "x"),
        lambda: table.put_all({1: "x"}),
        lambda: table.remove(1),
        table.clear,
        table.is_empty,
        lambda: list(table.items()),
    ):
        with pytest.raises(StateBackendClosedError, match="closed"):
            use()
    with pytest.raises(StateBackendClosedError):
        backend.get_state(NUMBERS)
    with pytest.raises(StateBackendClosedError):
        backend.snapshot(2, "snapshot-2")
