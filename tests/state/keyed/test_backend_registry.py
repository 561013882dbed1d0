"""Backends are found by name, also those of other distributions."""

import pickle
from importlib.metadata import EntryPoint

import pytest

from statebackend.state import state_backend as backend_registry
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_backend import UnknownStateBackendError, known_state_backends, state_backend


class PagedStateBackend(HeapStateBackend):
    name = "paged"


NO_BACKEND = object


def declare(monkeypatch, **values):
    declared = [EntryPoint(name, value, backend_registry.ENTRY_POINT_GROUP) for name, value in values.items()]
    monkeypatch.setattr(backend_registry, "entry_points", lambda group: declared)


def test_the_built_in_backends_are_known_by_name():
    assert isinstance(state_backend("heap"), HeapStateBackend)
    assert isinstance(state_backend("rocksdb"), RocksDBStateBackend)
    assert {"heap", "rocksdb"} <= set(known_state_backends())


def test_an_instance_is_returned_unchanged():
    configured = RocksDBStateBackend(cache_entries=7)
    assert state_backend(configured) is configured


def test_a_backend_of_another_distribution_is_found(monkeypatch):
    declare(monkeypatch, paged=f"{__name__}:PagedStateBackend")
    assert state_backend("paged").name == "paged"
    assert known_state_backends() == ("heap", "paged", "rocksdb")


def test_a_built_in_name_is_reserved(monkeypatch):
    declare(monkeypatch, heap=f"{__name__}:PagedStateBackend")
    assert type(state_backend("heap")) is HeapStateBackend


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownStateBackendError, match=r"'roksdb'; known are .*heap.*rocksdb"):
        state_backend("roksdb")


@pytest.mark.parametrize("value", ["no.such.module:Backend", f"{__name__}:Missing", f"{__name__}:NO_BACKEND"])
def test_an_invalid_backend_is_named(monkeypatch, value):
    declare(monkeypatch, broken=value)
    with pytest.raises(UnknownStateBackendError, match="broken"):
        state_backend("broken")


@pytest.mark.parametrize("name", ["heap", "rocksdb"])
def test_a_configuration_is_pickled_for_the_workers(name):
    assert pickle.loads(pickle.dumps(state_backend(name))).name == name


def test_a_class_in_place_of_an_instance_is_named() -> None:
    from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend

    with pytest.raises(UnknownStateBackendError, match=r"RocksDBStateBackend is a class\. Pass an instance"):
        state_backend(RocksDBStateBackend)  # type: ignore[arg-type]


def test_a_list_is_not_a_backend() -> None:
    with pytest.raises(
        UnknownStateBackendError, match=r"\['heap'\] is not a state backend\. Pass a name or an instance"
    ):
        state_backend(["heap"])  # type: ignore[arg-type]
