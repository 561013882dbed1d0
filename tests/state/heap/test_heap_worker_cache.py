"""Cached heap backends of workers between epochs, bounded over all workers of a host."""

import itertools
import multiprocessing
import os
import signal
import sys

import attrs
import pytest
from heap_subtask import HEAP, open_heap

from statebackend import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from statebackend.state.errors import StateBackendClosedError
from statebackend.state.heap import heap_state_backend as worker_cache_module
from statebackend.state.heap.heap_state_backend import (
    HeapStateBackend,
    HostLedger,
    OtherProcesses,
    WorkerCache,
    WorkerCacheKey,
    WorkerCacheLimits,
    memory_of_host_bytes,
)
from statebackend.state.heap.heap_state_table import estimated_bytes
from statebackend.state.state_backend import SubtaskIdentity
from statebackend.testing.backends.harness import VALUE, BackendHarness, contents, fill, filled

pytestmark = pytest.mark.slow

KEYS = range(20)
KEY = WorkerCacheKey("job", "operator", 0, 1)
PLENTY = WorkerCacheLimits(bytes_per_host=1 << 40, epochs=1000)


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


@pytest.fixture
def new_cache(tmp_path):
    """Creates caches of worker processes of one host; a cache without a directory has no ledger."""
    ledgers = []

    def make(root=str(tmp_path / "root"), **options):
        ledgers.append(HostLedger(lambda: root))
        return WorkerCache(ledgers[-1], **options)

    yield make
    for ledger in ledgers:
        ledger.close()


def kept(harness, epochs=1):
    """The store of a backend after some epochs."""
    backend = open_heap(harness)
    for epoch in range(epochs):
        fill(harness, backend, KEYS, epoch)
        harness.snapshot(backend)
    return backend.backend.release()


def is_closed(backend):
    try:
        backend.check_open()
    except StateBackendClosedError:
        return True
    return False


def subtask(index, **changes):
    return attrs.evolve(KEY, subtask_index=index, **changes)


def test_the_cache_leases_each_backend_once(harness, new_cache):
    cache = new_cache()
    backend = kept(harness)
    assert cache.take(KEY) is None
    cache.put(KEY, backend, PLENTY)
    assert len(cache) == 1
    assert cache.take(KEY) is backend
    assert cache.take(KEY) is None


def test_handles_of_a_cached_backend_are_closed_until_it_is_leased_again(harness, new_cache):
    backend = open_heap(harness)
    fill(harness, backend, KEYS, 0)
    harness.at(backend, 1)
    handle = backend.get_state(VALUE)
    assert handle.value() is not None
    harness.snapshot(backend)
    new_cache().put(KEY, backend.backend.release(), PLENTY)
    with pytest.raises(StateBackendClosedError):
        handle.value()


def test_the_cache_keeps_one_backend_per_subtask_and_parallelism(harness, new_cache):
    cache = new_cache()
    first, second, third, other = (kept(harness) for _ in range(4))
    cache.put(KEY, first, PLENTY)
    cache.put(KEY, second, PLENTY)
    assert is_closed(first)
    cache.put(attrs.evolve(KEY, operator_uid="other"), other, PLENTY)
    cache.put(attrs.evolve(KEY, parallelism=2), third, PLENTY)
    assert is_closed(second)
    assert not is_closed(other)
    assert len(cache) == 2


def test_the_cache_is_bounded_in_stores(harness, new_cache):
    cache = new_cache(max_stores=2)
    backends = [kept(harness) for _ in range(3)]
    for number, backend in enumerate(backends):
        cache.put(attrs.evolve(KEY, job_id=f"job-{number}"), backend, PLENTY)
    assert len(cache) == 2
    assert [is_closed(backend) for backend in backends] == [True, False, False]
    cache.clear()
    assert all(map(is_closed, backends))


def test_a_forked_child_starts_with_an_empty_cache_outside_of_the_ledger(harness, new_cache):
    cache, other = new_cache(), new_cache()
    cache.put(KEY, kept(harness), PLENTY)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, b"empty" if cache.take(KEY) is None and len(cache) == 0 else b"shared")
        signal.pause()
    assert os.read(read_end, 10) == b"empty"
    assert len(cache) == 1
    # The parent stops counting as soon as it closes its ledger, although the child inherited the file descriptor.
    with other._ledger.counted() as others:
        assert others.count == 1
    cache._ledger.close()
    with other._ledger.counted() as others:
        assert others == OtherProcesses(0, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read_end)
    os.close(write_end)


def test_the_oldest_backend_is_evicted_when_the_bytes_are_used_up(harness, new_cache):
    backends = [kept(harness) for _ in range(3)]
    size = backends[0].estimated_bytes()
    cache = new_cache()
    limits = attrs.evolve(PLENTY, bytes_per_host=2 * size)
    for index in (0, 1):
        cache.put(subtask(index), backends[index], limits)
    assert (len(cache), cache.bytes_of_host) == (2, 2 * size)
    # The first one was taken and put back, so it is the newest.
    assert cache.take(subtask(0)) is backends[0]
    cache.put(subtask(0), backends[0], limits)
    cache.put(subtask(2), backends[2], limits)
    assert [is_closed(backend) for backend in backends] == [False, True, False]
    assert cache.bytes_of_host == 2 * size
    cache.put(subtask(3), kept(harness), attrs.evolve(PLENTY, bytes_per_host=size - 1))
    assert (len(cache), cache.bytes_of_host) == (0, 0)


def test_all_workers_of_a_host_share_the_bytes(harness, new_cache):
    size = kept(harness).estimated_bytes()
    limits = attrs.evolve(PLENTY, bytes_per_host=4 * size)
    workers = [new_cache() for _ in range(3)]

    def put_all(worker):
        for index in range(4):
            worker.take(subtask(index))
            worker.put(subtask(index), kept(harness), limits)

    put_all(workers[0])
    assert [len(worker) for worker in workers] == [4, 0, 0]
    # The second worker has no space until the first one notices that it is no longer alone.
    put_all(workers[1])
    assert [len(worker) for worker in workers] == [4, 0, 0]
    for _ in range(2):
        for worker in workers[:2]:
            put_all(worker)
            assert sum(map(len, workers)) <= 4
    assert [len(worker) for worker in workers] == [2, 2, 0]
    assert [worker.bytes_of_host for worker in workers] == [4 * size, 4 * size, 0]
    for _ in range(2):
        for worker in workers:
            put_all(worker)
            assert sum(map(len, workers)) <= 4
    assert [len(worker) for worker in workers] == [1, 1, 1]


def test_another_host_has_its_own_bytes(harness, new_cache, tmp_path):
    size = kept(harness).estimated_bytes()
    limits = attrs.evolve(PLENTY, bytes_per_host=2 * size)
    first, second = new_cache(), new_cache(str(tmp_path / "another host"))
    for cache in (first, second):
        for index in range(2):
            cache.put(subtask(index), kept(harness), limits)
    assert (len(first), len(second)) == (2, 2)


@pytest.mark.parametrize(("age", "is_kept"), [(3, True), (4, False)])
def test_a_backend_that_is_outdated_for_some_epochs_is_evicted(harness, new_cache, age, is_kept):
    cache = new_cache()
    limits = attrs.evolve(PLENTY, epochs=3)
    old, of_another_job = kept(harness), kept(harness)
    old.last_checkpoint_id = of_another_job.last_checkpoint_id = 100
    cache.put(KEY, old, limits)
    cache.put(attrs.evolve(KEY, job_id="another"), of_another_job, limits)
    current = kept(harness)
    current.last_checkpoint_id = 100 + age
    cache.put(subtask(1), current, limits)
    assert is_closed(old) is not is_kept
    assert not is_closed(of_another_job)
    assert not is_closed(current)


def test_a_backend_knows_the_checkpoint_of_its_last_snapshot(harness):
    backend = open_heap(harness)
    assert backend.last_checkpoint_id == -1
    backend.snapshot(7, "state-7")
    assert backend.last_checkpoint_id == 7


def keep_and_wait(root, connection):
    ledger = HostLedger(lambda: root)
    with ledger.counted():
        ledger.note(70)
    connection.send("kept")
    connection.recv()


def test_backends_of_a_killed_worker_do_not_count(tmp_path):
    root = str(tmp_path / "root")
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    child = context.Process(target=keep_and_wait, args=(root, theirs))
    child.start()
    assert ours.recv() == "kept"
    ledger = HostLedger(lambda: root)
    with ledger.counted() as others:
        assert others == OtherProcesses(1, 70)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    with ledger.counted() as others:
        assert others == OtherProcesses(0, 0)
    assert os.listdir(os.path.join(root, "heap-copies")) == ["lock"]


def test_a_smaller_number_replaces_a_larger_one(tmp_path):
    first, second = (HostLedger(lambda: str(tmp_path / "root")) for _ in range(2))
    for number in (123_456_789, 5, 0):
        with first.counted() as others:
            assert others == OtherProcesses(0, 0)
            first.note(number)
        with second.counted() as others:
            assert others == OtherProcesses(1, number)
    first.close()
    second.close()


def test_a_removed_ledger_is_created_again(tmp_path):
    first, second = (HostLedger(lambda: str(tmp_path / "root")) for _ in range(2))
    for _ in range(2):
        with first.counted():
            first.note(3)
        with second.counted() as others:
            assert others == OtherProcesses(1, 3)
        for path in (tmp_path / "root" / "heap-copies").iterdir():
            path.unlink()
        (tmp_path / "root" / "heap-copies").rmdir()
    first.close()
    second.close()


def test_without_a_ledger_a_worker_keeps_the_share_of_a_cpu(harness, new_cache, tmp_path, monkeypatch):
    (tmp_path / "elsewhere" / "heap-copies").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    cache, size = new_cache(str(tmp_path / "link")), kept(harness).estimated_bytes()
    for index in range(3):
        cache.put(subtask(index), kept(harness), attrs.evolve(PLENTY, bytes_per_host=8 * size))
    assert len(cache) == 2
    assert [path.name for path in (tmp_path / "elsewhere").rglob("*")] == ["heap-copies"]


def test_the_limits_of_the_configuration_are_those_of_the_cache(harness, new_cache, monkeypatch):
    cache = new_cache()
    monkeypatch.setattr("statebackend.state.heap.heap_state_backend.worker_cache", cache)
    for configured, is_kept in ((HEAP, True), (HeapStateBackend(kept_bytes_per_host=0), False), (HEAP, True)):
        filled_backend = open_heap(harness)
        fill(harness, filled_backend, KEYS)
        handle = harness.snapshot(filled_backend).handle
        backend = configured.lease_keyed_state_backend(harness.parameters(handle), SubtaskIdentity("job", 0, 1))
        assert contents(harness, backend) == filled(KEYS, 0)
        harness.snapshot(backend)
        store = backend._store
        size = store.estimated_bytes()
        assert size > 0
        configured.return_keyed_state_backend(backend, SubtaskIdentity("job", 0, 1), succeeded=True)
        assert is_closed(store) is not is_kept
        assert configured.worker_cache_bytes() == (size if is_kept else 0)


def test_the_default_is_a_fraction_of_the_memory_of_the_process(tmp_path, monkeypatch):
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for content, expected in (("max\n", physical), ("4096\n", 4096), (f"{1 << 60}\n", physical)):
        (tmp_path / "limit").write_text(content)
        monkeypatch.setattr(worker_cache_module, "_CGROUP_LIMIT_PATH", str(tmp_path / "limit"))
        assert memory_of_host_bytes() == expected
    monkeypatch.setattr(worker_cache_module, "_CGROUP_LIMIT_PATH", str(tmp_path / "none"))
    assert memory_of_host_bytes() == physical


@pytest.mark.parametrize("number", [-1, True, 1.5, "1"])
def test_invalid_limits_are_rejected(number):
    for name in ("kept_bytes_per_host", "kept_epochs"):
        with pytest.raises(ValueError, match=f"{name} is {number!r}"):
            HeapStateBackend(**{name: number})
    with pytest.raises(ValueError, match="kept_epochs is None"):
        HeapStateBackend(kept_epochs=None)


@attrs.frozen
class Point:
    x: float
    labels: tuple[str, ...]


class Slotted:
    __slots__ = ("label", "unset")


def test_an_estimate_follows_the_content():
    text = "x" * 10_000
    assert 10_000 < estimated_bytes(text) < 11_000
    for many in ([text] * 1000, dict.fromkeys(range(1000), text), (text,) * 1000, {f"{n}{text}" for n in range(1000)}):
        assert 10_000_000 < estimated_bytes(many) < 11_000_000
    assert 20_000_000 < estimated_bytes({key: [text, text] for key in range(1000)}) < 21_000_000
    assert estimated_bytes(Point(1.0, (text,))) > 10_000
    slotted = Slotted()
    slotted.label = text
    assert estimated_bytes(slotted) > 10_000
    assert estimated_bytes({}) == sys.getsizeof({})
    nested = []
    nested.append(nested)
    assert estimated_bytes(nested) < 10_000


def test_the_estimate_of_a_backend_counts_all_registered_states(harness):
    backend = open_heap(harness)
    states = [
        backend.get_state(ValueStateDescriptor("text", str)),
        backend.get_state(ListStateDescriptor("texts", str)),
        backend.get_state(MapStateDescriptor("named", int, str)),
    ]
    text = "x" * 1000
    sizes = [backend.estimated_bytes()]
    for write in (states[0].update, states[1].add, lambda value: states[2].put(1, value)):
        for key in range(100):
            harness.at(backend, key)
            write(text)
        sizes.append(backend.estimated_bytes())
    assert [after - before > 100_000 for before, after in itertools.pairwise(sizes)] == [True] * 3
    unregistered = open_heap(harness, harness.snapshot(backend).handle)
    assert unregistered.estimated_bytes() == 0
    unregistered.get_state(VALUE)
