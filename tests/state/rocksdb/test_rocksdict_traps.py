"""Pitfalls of rocksdict with damage, other processes, or forbidden use.

`test_rocksdb_store` has the pitfalls of bounds, closing, unfinished files and forks.
"""

import ast
import os
import pathlib
import subprocess
import sys

import pytest
import rocksdict

import statebackend
from statebackend import MapStateDescriptor
from statebackend.state.rocksdb.engine import RocksDBEngine, RocksDBError, SstWriter
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.backends.evolving_records import LegV1, leg_v1
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, fill

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(statebackend.__file__).parent.parent
PACKAGES = (
    "snapshots",
    "typeserializers",
    "migration",
    "statebackend",
    "verification",
)
ROWS = 20_000
MIDDLE = b"k10000"


def written_store(path):
    """A closed store of one column family in one file of about two megabytes."""
    store = RocksDBEngine(str(path))
    writer = SstWriter(str(path) + ".sst")
    writer.write((b"k%05d" % row, os.urandom(100)) for row in range(ROWS))
    writer.finish()
    store.column_family("a").ingest(writer.path)
    store.close()
    return str(path)


def damage(database, start=0.45, stop=0.55):
    """Flip bits in that part of every SST file; returns the file names."""
    names = [name for name in os.listdir(database) if name.endswith(".sst")]
    for name in names:
        path = pathlib.Path(database, name)
        data = bytearray(path.read_bytes())
        for position in range(int(len(data) * start), int(len(data) * stop), 64):
            data[position] ^= 0xFF
        path.write_bytes(data)
    return names


def test_the_library_ends_an_iteration_at_damage_without_an_error(tmp_path):
    # If this fails, the library reports damage itself, and the store no longer needs its own check.
    path = written_store(tmp_path / "db")
    damage(path)
    database = rocksdict.Rdict(path, rocksdict.Options(raw_mode=True))
    found = sum(1 for _ in database.get_column_family("a").items())
    database.close()
    assert 0 < found < ROWS


def test_a_scan_over_damage_is_an_error_and_not_the_end(tmp_path):
    path = written_store(tmp_path / "db")
    (name,) = damage(path)
    store = RocksDBEngine(path)
    family = store.column_family("a")
    for scan, is_there_more in (
        (family.scan(b""), True),
        (family.scan_prefix(b"k"), True),
        (family.scan(MIDDLE), False),
        (family.scan_prefix(MIDDLE), False),
    ):
        found = []
        with pytest.raises(RocksDBError, match=f"could not scan.*{name}"):
            found.extend(scan)
        assert bool(found) is is_there_more
    with pytest.raises(RocksDBError, match=f"could not scan.*{name}"):
        family.keys(b"", b"z", ROWS)
    store.close()


def test_a_kept_error_does_not_keep_the_database_open(tmp_path):
    path = written_store(tmp_path / "db")
    damage(path)
    store = RocksDBEngine(path)
    with pytest.raises(RocksDBError) as of_a_scan:
        list(store.column_family("a").scan(b""))
    with pytest.raises(RocksDBError) as of_a_prefix:
        list(store.column_family("a").scan_prefix(b"k"))
    with pytest.raises(RocksDBError) as of_keys:
        store.column_family("a").keys(b"", b"z", ROWS)
    store.close()
    RocksDBEngine(path).close()
    assert None not in [error.value.__traceback__ for error in (of_a_scan, of_a_prefix, of_keys)]


def test_the_end_of_an_undamaged_column_family_is_no_error(tmp_path):
    store = RocksDBEngine(written_store(tmp_path / "db"))
    family, empty = store.column_family("a"), store.column_family("b")
    assert sum(1 for _ in family.scan(b"")) == ROWS
    assert sum(1 for _ in family.scan_prefix(b"k1999")) == 10
    assert [list(family.scan(b"z")), list(family.scan_prefix(b"z"))] == [[], []]
    assert [list(empty.scan(b"")), list(empty.scan_prefix(b"k"))] == [[], []]
    # During the scan, the last entry is deleted and others are added.
    scan = family.scan(MIDDLE)
    started = next(scan)
    writer = SstWriter(str(tmp_path / "more.sst"))
    writer.write([(b"k19999", None), (b"l", b"more")])
    writer.finish()
    family.ingest(writer.path)
    assert [started, *scan][-1][0] == b"k19999"
    store.close()


KEYS = range(3000)
KEY = 1503
"""A key in the middle of the files. RocksDB reads the ends of a file into memory when it is ingested."""

ACCESSES = {
    "value": (VALUE, lambda state: state.value(), KEY),
    "list": (LIST, lambda state: state.get(), [0]),
    "map entry": (MAP, lambda state: state.get("key"), KEY),
    "map": (MAP, lambda state: dict(state.items()), {"key": KEY, "offset-0": 0}),
    "emptiness of a map": (MAP, lambda state: state.is_empty(), False),
}


@pytest.mark.parametrize("access", list(ACCESSES))
def test_damage_in_the_local_database_is_an_error_of_every_access_and_the_next_attempt_restores(tmp_path, access):
    harness = BackendHarness(str(tmp_path))
    backend = harness.open(RocksDBStateBackend(), local="local")
    fill(harness, backend, KEYS)
    handle = harness.snapshot(backend).handle
    backend.close()
    # The store of files may share them with the local database by hard links, which must not be damaged.
    kept = {file.path: pathlib.Path(harness.store_path(file.path)).read_bytes() for file in handle.files}
    damage(os.path.join(harness.directory, "local", "local", "db"), 0.05, 0.6)
    for path, data in kept.items():
        os.unlink(harness.store_path(path))
        pathlib.Path(harness.store_path(path)).write_bytes(data)
    backend = harness.open(RocksDBStateBackend(), handle, local="local")
    assert backend.is_local
    descriptor, read, expected = ACCESSES[access]
    harness.at(backend, KEY)
    state = backend.get_state(descriptor)
    with pytest.raises(RocksDBError, match=r"\.sst"):
        read(state)
    with pytest.raises(RocksDBError, match=r"\.sst"):
        harness.export(backend)
    backend.close()
    restored = harness.open(RocksDBStateBackend(), handle, local="local")
    assert not restored.is_local
    harness.at(restored, KEY)
    assert read(restored.get_state(descriptor)) == expected
    harness.close()


def test_iterating_a_large_map_stops_at_damage_with_an_error(tmp_path):
    harness = BackendHarness(str(tmp_path))
    legs = MapStateDescriptor("legs", int, leg_v1())
    backend = harness.open(RocksDBStateBackend(), local="local")
    harness.at(backend, 1)
    backend.get_state(legs).put_all({number: LegV1(f"airport {number * 7919}", number) for number in range(20_000)})
    handle = harness.snapshot(backend).handle
    backend.close()
    damage(os.path.join(harness.directory, "local", "local", "db"))
    backend = harness.open(RocksDBStateBackend(), handle, local="local")
    harness.at(backend, 1)
    met = []
    with pytest.raises(RocksDBError, match=r"\.sst"):
        met.extend(backend.get_state(legs).items())
    assert 0 < len(met) < 20_000
    harness.close()


@pytest.mark.parametrize("only_read", [None, ["a"]])
@pytest.mark.parametrize("content", [None, "garbage", '{"raw_mode": false, "prefix_extractors": {}}'])
def test_the_configuration_file_of_the_library_does_not_change_how_entries_are_read(tmp_path, content, only_read):
    path = written_store(tmp_path / "db")
    configuration = pathlib.Path(path, "rocksdict-config.json")
    if content is None:
        configuration.unlink()
    else:
        configuration.write_text(content)
    store = RocksDBEngine(path, only_read=only_read)
    assert len(store.column_family("a").get(MIDDLE)) == 100
    assert sum(1 for _ in store.column_family("a").scan(b"")) == ROWS
    store.close()


OPEN = """
import sys
from statebackend.state.rocksdb.engine import RocksDBError, RocksDBEngine
try:
    RocksDBEngine(sys.argv[1]).close()
    print("opened")
except RocksDBError as error:
    print("rejected", error)
"""


def test_another_process_is_rejected_by_name_while_a_store_is_open(tmp_path):
    path = str(tmp_path / "db")
    store = RocksDBEngine(path)

    def outcome_in_another_process():
        return subprocess.run([sys.executable, "-c", OPEN, path], capture_output=True, text=True, cwd=ROOT).stdout

    assert outcome_in_another_process().startswith(f"rejected RocksDB could not open at {path}")
    store.close()
    assert outcome_in_another_process() == "opened\n"


# Each of these has a pitfall: mixed-up bounds, single-use batches, snapshots whose iterators see later writes, expiry
# at any compaction, wrong type stubs, or a follower of a writer.
TRAPPED_NAMES = {
    "set_iterate_lower_bound",
    "set_iterate_upper_bound",
    "WriteBatch",
    "Snapshot",
    "snapshot",
    "secondary",
    "with_ttl",
    "WriteOptions",
    "disable_wal",
    "ReadOptions",
    "Checkpoint",
    "delete_range",
}


def test_only_one_module_writes_with_the_library_and_unsafe_parts_are_unused():
    importing = set()
    for package in PACKAGES:
        sources = list((ROOT / package).rglob("*.py"))
        assert sources, f"there is no package {package}"
        for path in sources:
            source = path.read_text(encoding="utf-8")
            if "rocksdict" not in source:
                continue
            for node in ast.walk(ast.parse(source)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                if any(name.split(".")[0] == "rocksdict" for name in names):
                    importing.add(path.relative_to(ROOT).as_posix())
    # The second one only reads databases that Flink or Spark wrote.
    engine, reader = "statebackend/state/rocksdb/engine.py", "statebackend/savepoint/foreign/rocksdb_files.py"
    assert importing == {engine, reader}
    tree = ast.parse((ROOT / "statebackend/state/rocksdb/engine.py").read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not used & TRAPPED_NAMES
