"""When a paged priority queue reads: nothing at opening, pages in order, never more than the limit."""

import bisect
import random

import pytest

from statebackend.state.errors import StateRestoreError
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.rocksdb import priority_queue
from statebackend.state.rocksdb.priority_queue import FIRST_PAGE, LARGEST_PAGE, PagedPriorityQueue
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.backends.harness import BackendHarness
from statebackend.testing.backends.priority_queue_contract import TIMERS, QueueModel, timer

pytestmark = pytest.mark.slow

KEY_GROUPS = KeyGroupRange(3, 5)


class ListedQueue(PagedPriorityQueue):
    """Its store is a sorted list per key group; records every page read."""

    def __init__(self, max_changes=1 << 30):
        super().__init__("timers", TIMERS.element_serializer, KEY_GROUPS, max_changes)
        self.stored = {group: [] for group in KEY_GROUPS}
        self.pages = []

    def stored_page(self, key_group, after, limit):
        elements = self.stored[key_group]
        start = 0 if after is None else bisect.bisect_right(elements, after)
        page = elements[start : start + limit]
        self.pages.append((key_group, len(page)))
        return page

    def write_back(self):
        in_store = self.in_store
        for entry, is_present in self.take_changes().items():
            elements = self.stored[int.from_bytes(entry[-2:], "big")]
            place = bisect.bisect_left(elements, entry[:-2])
            is_stored = elements[place : place + 1] == [entry[:-2]]
            assert in_store.get(entry, is_stored) == is_stored
            if is_present and not is_stored:
                elements.insert(place, entry[:-2])
            elif is_stored and not is_present:
                del elements[place]


def stored(count):
    """A queue whose elements are all in the store, in equal numbers per key group."""
    queue = ListedQueue()
    write = TIMERS.element_serializer.to_bytes
    for group in KEY_GROUPS:
        queue.stored[group] = [write(timer(number, group)) for number in range(count)]
    return queue


def test_opening_reads_nothing_and_the_first_use_a_page_of_each_key_group():
    queue = stored(10_000)
    assert queue.pages == []
    assert queue.peek() == timer(0, 3)
    assert queue.pages == [(group, FIRST_PAGE) for group in KEY_GROUPS]
    for _ in range(3 * FIRST_PAGE - 3):
        queue.poll()
    assert len(queue.pages) == 3


def test_pages_grow_with_polled_elements_up_to_a_limit():
    queue = stored(10_000)
    assert sum(1 for _ in queue.poll_while(lambda element: element.timestamp < 9_000)) == 27_000
    sizes = [size for group, size in queue.pages if group == 4]
    assert sizes[:5] == [FIRST_PAGE, 64, 256, LARGEST_PAGE, LARGEST_PAGE]
    assert max(sizes) == LARGEST_PAGE
    assert sum(sizes) < 9_000 + 2 * LARGEST_PAGE


def test_unread_elements_are_added_and_removed_without_a_read():
    queue = stored(1_000)
    queue.peek()
    before = len(queue.pages)
    assert queue.add(timer(500, 4), 4) is False
    assert queue.add(timer(500, 7), 4) is False
    assert queue.remove(timer(600, 4), 4) is False
    assert queue.remove(timer(600, 9), 4) is False
    assert len(queue.pages) == before
    polled = [element for element, group in queue.poll_while(lambda element: True) if group == 4]
    expected = [timer(number, 4) for number in range(1_000) if number != 600]
    expected.insert(501, timer(500, 7))
    assert polled == expected


def test_a_removed_frontier_still_marks_unread_elements():
    queue = stored(100)
    for group in KEY_GROUPS:
        for number in reversed(range(FIRST_PAGE)):
            queue.remove(timer(number, group), group)
    assert queue.peek() == timer(FIRST_PAGE, 3)
    assert sum(1 for _ in queue.poll_while(lambda element: True)) == 3 * (100 - FIRST_PAGE)


def test_a_frontier_removed_before_it_was_read_still_continues():
    queue = stored(1_000)
    last_of_second_page = FIRST_PAGE + 64 - 1
    for group in KEY_GROUPS:
        queue.remove(timer(last_of_second_page, group), group)
    polled = [element.timestamp for element, _ in queue.poll_while(lambda element: True)]
    assert polled == [number for number in range(1_000) if number != last_of_second_page for _ in KEY_GROUPS]


def test_a_compacted_heap_still_knows_its_frontiers():
    queue = stored(100)
    for group in KEY_GROUPS:
        queue.remove(timer(FIRST_PAGE - 1, group), group)
    size = len(queue._heap)
    for number in range(2_000):
        queue.add(timer(10, 7 + number), 4)
        queue.remove(timer(10, 7 + number), 4)
    assert len(queue._heap) < size + 2_000
    assert sum(1 for _ in queue.poll_while(lambda element: True)) == 3 * 99


@pytest.mark.parametrize("damaged", [b"", b"\x80", TIMERS.element_serializer.to_bytes(timer(1)) + b"\x00"])
def test_a_damaged_element_is_named_and_kept(damaged):
    queue = stored(3)
    bisect.insort(queue.stored[4], damaged)
    for _ in range(2):
        with pytest.raises(StateRestoreError, match=rf"timers.*element {damaged.hex()} in key group 4"):
            list(queue.poll_while(lambda element: True))
        with pytest.raises(StateRestoreError, match=rf"timers.*element {damaged.hex()} in key group 4"):
            queue.poll_many(lambda element: True, 5)
    with pytest.raises(StateRestoreError, match="timers"):
        list(queue.subset_of_key_group(4))
    assert damaged in queue.stored[4]


def test_changes_are_flushed_when_there_are_too_many():
    generator = random.Random(1)
    queue = ListedQueue(max_changes=10)
    model = QueueModel(queue)
    for _ in range(600):
        element, group = timer(generator.randrange(60), generator.randrange(4)), generator.choice(list(KEY_GROUPS))
        generator.choice([model.add, model.add, model.remove])(element, group)
        if generator.randrange(4) == 0:
            model.poll()
        assert len(queue._changes) <= 10
    model.check()


@pytest.mark.parametrize("max_changes", [1 << 30, 200])
def test_many_elements_are_added_and_polled_together_as_one_by_one(max_changes, monkeypatch):
    monkeypatch.setattr(priority_queue, "_MIN_HEAPIFIED", 3)
    monkeypatch.setattr(priority_queue, "_POLLED_SINGLY", 3)
    generator = random.Random(max_changes)
    for round_number in range(16):
        queue = ListedQueue(max_changes)
        # Whether a queue knows that it started empty does not change its content.
        queue.upper_bound = b"" if round_number % 2 else None
        model = QueueModel(queue)
        for _ in range(12):
            spread = generator.choice([3, 50, 2_000])
            new = [
                (timer(generator.randrange(spread), generator.randrange(2)), generator.choice(list(KEY_GROUPS)))
                for _ in range(generator.choice([1, 30, 150]))
            ]
            queue.add_all(new)
            for entry in new:
                model.take(*entry)
            for element, group in generator.sample(new, len(new) // 10):
                model.remove(element, group)
            if generator.randrange(3) == 0:
                queue.write_back()
            model.poll_until(generator.randrange(-1, spread))
            assert len(queue._changes) <= max_changes
        model.check()


def test_few_pages_are_read_for_many_due_elements():
    queue = stored(3_000)
    polled = queue.poll_many(lambda element: element.timestamp < 1_000, 2_000)
    assert polled == [(timer(number, group), group) for number in range(1_000) for group in KEY_GROUPS][:2_000]
    # A few elements are polled one by one, which reads the first two pages. The third page holds the others.
    assert max(sum(1 for group, _ in queue.pages if group == one) for one in KEY_GROUPS) <= 3
    assert sum(size for _, size in queue.pages) <= 3 * (FIRST_PAGE + 64 + LARGEST_PAGE)
    rest = queue.poll_many(lambda element: element.timestamp < 1_000, 2_000)
    assert len(rest) == 1_000
    assert queue.peek() == timer(1_000, 3)


def test_elements_above_all_stored_ones_are_known_to_be_absent():
    queue = ListedQueue()
    queue.upper_bound = b""
    queue.add_all([(timer(number), group) for number in range(100) for group in KEY_GROUPS])
    queue.write_back()
    late, early = timer(1_000), timer(98, 7)
    queue.add_all([(late, 4), (early, 4)])
    assert queue.in_store == {queue.entry_of(late, 4): False}
    queue.write_back()
    queue.poll()
    queue.add(timer(999), 4)
    queue.add(timer(1_001), 4)
    assert queue.entry_of(timer(999), 4) not in queue.in_store
    assert queue.in_store[queue.entry_of(timer(1_001), 4)] is False


def test_flushed_changes_are_released():
    queue = ListedQueue(max_changes=100)
    for number in range(5_000):
        queue.add(timer(number), 3)
        assert len(queue._heap) <= FIRST_PAGE + 100
    assert queue.size() == 5_000


def test_removals_do_not_grow_the_heap(tmp_path):
    harness = BackendHarness(str(tmp_path))
    heap_queue = harness.open(HeapStateBackend()).get_priority_queue(TIMERS)
    for queue, heap in ((ListedQueue(), lambda queue: queue._heap), (heap_queue, lambda queue: queue._table.heap)):
        queue.add(timer(0), 3)
        for number in range(1, 20_000):
            queue.add(timer(number), 3)
            assert queue.remove(timer(number), 3) is False
        assert len(heap(queue)) < 3_000
        for number in range(1, 20_000, 100):
            assert queue.add(timer(number), 3) is False
        expected = [0, *range(1, 20_000, 100)]
        assert [element.timestamp for element, _ in queue.poll_while(lambda element: True)] == expected
    harness.close()


def test_the_rocksdb_queue_finds_the_heads_of_full_sparse_and_empty_key_groups(tmp_path):
    harness = BackendHarness(str(tmp_path), max_parallelism=1 << 15)
    backend = harness.open(RocksDBStateBackend())
    entries = [(timer(number, number), group) for group in (0, 1, 7, 8, 300, 32_767) for number in range(group % 50)]
    entries += [(timer(number), group) for group in (2, 20_000) for number in range(2 * LARGEST_PAGE + 5)]
    backend.get_priority_queue(TIMERS).add_all(entries)
    restored = harness.open(RocksDBStateBackend(), harness.snapshot(backend).handle).get_priority_queue(TIMERS)
    heads = dict(restored.stored_heads(FIRST_PAGE))
    write = TIMERS.element_serializer.to_bytes
    assert heads == {
        group: sorted(write(element) for element, found in entries if found == group)[:FIRST_PAGE]
        for group in {group for _, group in entries}
    }
    in_order = sorted(entries, key=lambda entry: (write(entry[0]), entry[1]))
    assert restored.size() == len(entries)
    assert sorted(restored.entries(), key=lambda entry: (write(entry[0]), entry[1])) == in_order
    assert list(restored.poll_while(lambda element: True)) == in_order
    harness.close()
