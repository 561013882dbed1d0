"""One memory budget for RocksDB, shared by all states and stores of a process.

The budget of a process never shrinks, so each test runs in a process of its own.
"""

import multiprocessing

import pytest

from statebackend import ValueStateDescriptor
from statebackend.state.rocksdb.engine import DEFAULT_MEMORY_BUDGET_BYTES, RocksDBEngine, SstWriter, shared_memory
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.backends.harness import BackendHarness

BUDGET = 2 << 20
ROWS = 100_000


def in_a_process_of_its_own(function, *arguments):
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        return pool.apply(function, arguments)


def filled_store(path, budget, families):
    store = RocksDBEngine(path, budget)
    for number in range(families):
        writer = SstWriter(f"{path}-{number}.sst")
        # Values that do not compress, so that the files are many times the budget.
        writer.write(
            (row.to_bytes(4, "big"), hash((number, row)).to_bytes(8, "big", signed=True) * 2) for row in range(ROWS)
        )
        writer.finish()
        store.column_family(f"state-{number}").ingest(writer.path)
    return store


def usage_of_many_states(directory):
    """Read five times the budget through six states of two stores; returns RocksDB's memory metrics."""
    stores = [filled_store(f"{directory}/{name}", BUDGET, 3) for name in "ab"]
    families = [store.column_family(name) for store in stores for name in store.column_family_names]
    for family in families:
        for row in range(0, ROWS, 10):
            assert family.get(row.to_bytes(4, "big")) is not None
    result = {
        name: [family.property_value(name) for family in families]
        for name in ("block-cache-capacity", "block-cache-usage", "estimate-table-readers-mem")
    }
    for store in stores:
        store.close()
    return result


def test_all_states_of_all_stores_share_one_cache_and_stay_within_it(tmp_path):
    reported = in_a_process_of_its_own(usage_of_many_states, str(tmp_path))
    assert set(reported["block-cache-capacity"]) == {BUDGET}
    # There is one cache, so every state reports the same usage.
    assert len(set(reported["block-cache-usage"])) == 1
    assert BUDGET / 2 < reported["block-cache-usage"][0] <= BUDGET
    # Index and filter blocks are inside the cache. One filter alone would take 125,000 bytes.
    assert max(reported["estimate-table-readers-mem"]) < 20_000


def budgets_in_force(directory):
    result = [shared_memory(BUDGET).budget_bytes]
    for number, budget in enumerate((BUDGET, 2 * BUDGET, BUDGET, None)):
        store = RocksDBEngine(f"{directory}/{number}", budget)
        result.append(store.column_family("state").property_value("block-cache-capacity"))
        store.close()
    return result


def test_the_largest_requested_budget_applies(tmp_path):
    assert in_a_process_of_its_own(budgets_in_force, str(tmp_path)) == [
        BUDGET,
        BUDGET,
        2 * BUDGET,
        2 * BUDGET,
        2 * BUDGET,
    ]


def budget_of_a_backend(directory, *budget):
    harness = BackendHarness(directory)
    backend = harness.open(RocksDBStateBackend(memory_budget_bytes=budget[0]) if budget else RocksDBStateBackend())
    state = backend.get_state(ValueStateDescriptor("value", int))
    harness.at(backend, 1)
    state.update(1)
    harness.snapshot(backend)
    harness.close()
    return shared_memory().budget_bytes


def test_a_backend_requests_the_budget_of_its_configuration(tmp_path):
    # A snapshot and a merge of files must not request more memory.
    assert in_a_process_of_its_own(budget_of_a_backend, str(tmp_path), BUDGET) == BUDGET
    assert in_a_process_of_its_own(budget_of_a_backend, str(tmp_path)) == DEFAULT_MEMORY_BUDGET_BYTES


def test_a_budget_that_is_too_small_is_rejected():
    with pytest.raises(ValueError, match="at least 1048576"):
        RocksDBStateBackend(memory_budget_bytes=1000)
