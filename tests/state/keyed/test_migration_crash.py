"""A process killed during a migration: handles are unchanged, and the next attempt is exact."""

import multiprocessing
import os
import signal

import pytest

from statebackend import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from statebackend.state.errors import StateBackendError
from statebackend.state.progress import Operation
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends.evolving_records import LegV1, LegV2, leg_v1, leg_v2
from statebackend.testing.backends.harness import BackendHarness, content

OLD = [
    ValueStateDescriptor("value", leg_v1()),
    ListStateDescriptor("list", leg_v1()),
    MapStateDescriptor("map", str, leg_v1()),
]
NEW = [
    ValueStateDescriptor("value", leg_v2()),
    ListStateDescriptor("list", leg_v2()),
    MapStateDescriptor("map", str, leg_v2()),
]
KEYS = range(200)


def write(harness, backend):
    value, elements, entries = (backend.get_state(descriptor) for descriptor in OLD)
    for key in KEYS:
        harness.at(backend, key)
        value.update(LegV1("EWR", key))
        elements.add_all([LegV1("JFK", key), LegV1("LGA", -key)])
        entries.put("leg", LegV1("BOS", key))


def migrate_and_wait(name, harness, handle, state_name, connection):
    """Restore, and stop forever during the migration of one state."""

    def progress(reported):
        if reported.operation is Operation.MIGRATION and reported.state_name == state_name and reported.entries:
            connection.send((reported.state_name, reported.entries))
            connection.recv()

    backend = harness.open(state_backend(name), handle, local="local", progress=progress)
    for descriptor in NEW:
        backend.get_state(descriptor)


@pytest.mark.parametrize("state_name", ["value", "map"])
@pytest.mark.parametrize("name", ["heap", "rocksdb"])
def test_a_restore_after_a_killed_migration_is_exact(tmp_path, name, state_name):
    harness = BackendHarness(str(tmp_path))
    backend = harness.open(state_backend(name), local="local")
    write(harness, backend)
    handle = harness.snapshot(backend).handle
    backend.close()
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    child = context.Process(
        target=migrate_and_wait, args=(name, BackendHarness(str(tmp_path)), handle, state_name, theirs)
    )
    child.start()
    assert ours.recv()[0] == state_name
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    restored = harness.open(state_backend(name), handle, local="local")
    assert [content(harness, restored, descriptor) for descriptor in NEW] == [
        {key: LegV2("EWR", float(key)) for key in KEYS},
        {key: [LegV2("JFK", float(key)), LegV2("LGA", float(-key))] for key in KEYS},
        {key: {"leg": LegV2("BOS", float(key))} for key in KEYS},
    ]
    restored.close()
    old = harness.open(state_backend(name), handle, local="local")
    assert content(harness, old, OLD[0]) == {key: LegV1("EWR", key) for key in KEYS}
    harness.close()


class InterruptedMigrationError(StateBackendError):
    pass


@pytest.mark.parametrize("name", ["heap", "rocksdb"])
def test_an_interrupted_migration_changes_nothing_in_its_own_process(tmp_path, name):
    harness = BackendHarness(str(tmp_path))
    backend = harness.open(state_backend(name))
    write(harness, backend)
    handle = harness.snapshot(backend).handle

    def interrupt(reported):
        if reported.operation is Operation.MIGRATION and reported.entries:
            raise InterruptedMigrationError(reported.state_name)

    restored = harness.open(state_backend(name), handle, progress=interrupt)
    with pytest.raises(InterruptedMigrationError):
        restored.get_state(NEW[0])
    expected = {key: LegV1("EWR", key) for key in KEYS}
    carried = harness.snapshot(restored).handle
    assert content(harness, restored, OLD[0]) == expected
    assert content(harness, harness.open(state_backend(name), carried), OLD[0]) == expected
    harness.close()
