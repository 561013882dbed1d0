"""A backend of another distribution, found by its entry point, passes the complete contract and runs jobs.

Its package is not on the path of the tests. The tests install it into a temporary directory, as its pyproject.toml
says. They do it without build tools, because these may need a network.
"""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import attrs
import pyarrow.parquet as pq
import pytest

from statebackend import (
    JobRestoreError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    RuntimeContext,
    Savepoint,
    StateBackend,
    ValueStateDescriptor,
)
from statebackend.cli.main import main
from statebackend.local import LocalStreamEnvironment
from statebackend.state.state_backend import known_state_backends, state_backend
from statebackend.testing.backends import StateBackendContract

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).parent
REPOSITORY = PROJECT.parents[1]


def install(target: Path) -> None:
    """Create the content of site-packages as an installer does: the package, and metadata with its entry points."""
    project: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    copytree(PROJECT / "src", target, dirs_exist_ok=True)
    information = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def site_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the distribution is installed."""
    target = tmp_path_factory.mktemp("site-packages")
    install(target)
    return target


@pytest.fixture(scope="module", autouse=True)
def _installed(site_packages: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site_packages))
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "sqlite_state"]:
        del sys.modules[name]


@functools.cache
def found_class() -> type[StateBackend]:
    """The class of the name; searching the installed distributions once is enough."""
    return type(state_backend("sqlite"))


@pytest.mark.extended
class TestSqliteStateBackend(StateBackendContract):
    def create_state_backend(self) -> StateBackend:
        return found_class()()


def test_the_backend_is_found_among_the_installed_ones() -> None:
    assert "sqlite" in known_state_backends()
    backend = state_backend("sqlite")
    assert backend.name == "sqlite"
    assert type(backend).__module__ == "sqlite_state.state_store"


def test_a_new_process_finds_it_too(site_packages: Path) -> None:
    program = "from statebackend.state.state_backend import state_backend; print(state_backend('sqlite').name)"
    path = os.pathsep.join([str(site_packages), str(REPOSITORY)])
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout.strip()) == (0, "sqlite"), result.stderr


def test_it_uses_only_what_the_guide_names() -> None:
    guide = "".join((REPOSITORY / "docs" / page).read_text() for page in ("writing-a-backend.md", "backend-rules.md"))
    ours = {"migration", "snapshots", "statebackend", "typeserializers"}
    used = set()
    for path in sorted((PROJECT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not ours & {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in ours:
                assert not [alias.name for alias in node.names if alias.name.startswith("_")]
                used.add(node.module)
    assert used >= {"statebackend", "statebackend.state.state_store", "statebackend.state.entry_keys"}
    assert [module for module in sorted(used) if "." in module and f"`{module}" not in guide] == []


@attrs.frozen
class Sale:
    shop: str
    amount: int


class Ledger(KeyedProcessFunction[str, Sale, tuple[str, int, int, int]]):
    """Stores the turnover, all amounts, and the count of each amount."""

    def open(self, context: RuntimeContext) -> None:
        self.turnover = context.get_state(ValueStateDescriptor("turnover", int, 0))
        self.amounts = context.get_list_state(ListStateDescriptor("amounts", int))
        self.times = context.get_map_state(MapStateDescriptor("times", int, int))

    def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[tuple[str, int, int, int]]:
        self.turnover.update((self.turnover.value() or 0) + value.amount)
        self.amounts.add(value.amount)
        self.times.put(value.amount, (self.times.get(value.amount) or 0) + 1)
        yield value.shop, self.turnover.value() or 0, len(self.amounts.get()), self.times.get(value.amount) or 0


SALES = [Sale(shop, amount) for amount in (1, 2, 1) for shop in ("north", "south", "east")]
NEXT = [Sale("north", 1), Sale("west", 4)]


def run(
    backend: str, sales: list[Sale], directory: Path, savepoint: Path | None, **options: Any
) -> tuple[list[Any], Path]:
    """Run the job in its own directory; returns its output, and a savepoint."""
    environment = LocalStreamEnvironment(job_dir=directory, backend=backend, **options)
    rows: list[Any] = []
    stream = environment.from_elements(sales).key_by("shop").process(Ledger(), uid="ledger", schema=SCHEMA)
    stream.sink_to(rows)
    job = environment.execute("sales", from_savepoint=savepoint)
    target = directory.with_name(f"{directory.name}-savepoint")
    job.savepoint(target)
    environment.close()
    return rows, target


SCHEMA = "shop string, turnover bigint, sales bigint, times bigint"


def test_a_job_keeps_its_state_over_epochs(tmp_path: Path) -> None:
    one_epoch, _ = run("heap", SALES, tmp_path / "heap", None)
    rows, _ = run("sqlite", SALES, tmp_path / "sqlite", None, epoch_size=2, parallelism=2)
    assert sorted(rows) == sorted(one_epoch)


def test_a_savepoint_moves_from_rocksdb_and_back(tmp_path: Path) -> None:
    _, first = run("rocksdb", SALES, tmp_path / "first", None, parallelism=2)
    there, second = run("sqlite", NEXT, tmp_path / "second", first, parallelism=3)
    back, _ = run("rocksdb", NEXT, tmp_path / "third", second)
    assert sorted(there) == [("north", 5, 4, 3), ("west", 4, 1, 1)]
    assert sorted(back) == [("north", 6, 5, 4), ("west", 8, 2, 2)]


def test_checkpoints_in_its_native_format_are_readable_by_it_only(tmp_path: Path) -> None:
    run("sqlite", SALES, tmp_path / "job", None)
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job", backend="rocksdb")
    environment.from_elements(NEXT).key_by("shop").process(Ledger(), uid="ledger", schema=SCHEMA).sink_to([])
    with pytest.raises(JobRestoreError, match=r"'sqlite'.*'rocksdb'.*savepoint"):
        environment.execute("sales")


def described() -> LocalStreamEnvironment:
    environment = LocalStreamEnvironment()
    sales = environment.from_elements([], "shop string, amount bigint")
    sales.key_by("shop").process(Ledger(), uid="ledger", schema=SCHEMA).sink_to([])
    return environment


def test_its_checkpoints_are_checked_with_it_and_rejected_by_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("sqlite", SALES, tmp_path / "job", None)

    def check(*arguments: str) -> tuple[int, str]:
        status = main(["check", str(tmp_path / "job"), "--job", f"{__name__}:described", *arguments])
        return status, "".join(capsys.readouterr())

    assert check()[0] == check("--backend", "sqlite")[0] == 0
    status, reported = check("--backend", "rocksdb")
    assert status == 1
    assert "written by the backend 'sqlite' in its native format. The backend 'rocksdb' does not read it" in reported
    status, reported = check("--backend", "nobody")
    assert status == 3
    assert "there is no state backend 'nobody'; known are heap, rocksdb, sqlite" in reported


@pytest.mark.extended
def test_its_checkpoints_are_read_by_every_tool_and_its_name_reported_if_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = str(tmp_path / "job")
    _, savepoint = run("sqlite", SALES, tmp_path / "job", None, parallelism=2)
    assert Savepoint.open(job).operators["ledger"].parts[0].handle.backend == "sqlite"
    for state in ("turnover", "amounts", "times"):
        own, canonical = (Savepoint.open(path).read("ledger", state) for path in (job, savepoint))
        assert own.to_arrow() == canonical.to_arrow()
        assert list(own) == list(canonical)
        shops = own.to_arrow()["key"].unique().to_pylist()
        assert list(own) == [one for shop in shops for one in Savepoint.open(job).read("ledger", state, key=shop)]

    def reported(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    assert "turnover\tvalue\tkey str, value int64\t3\t" in reported("inspect", job, "--verify")
    assert reported("diff", job, str(savepoint), "--entries") == "no difference\n"
    assert "north\t4" in reported("show", job, "ledger", "turnover")
    assert ": 3 entries" in reported("export", job, "ledger", "turnover", "--to", "parquet", str(tmp_path / "out"))
    assert pq.read_table(tmp_path / "out").num_rows == 3
    assert "turnover" in reported("du", job)
    assert reported("gc", job).startswith("there are no unused files")
    # A process without the backend; output that needs no state is printed anyway.
    for command, status in ((["schema", job], 0), (["du", job], 0), (["show", job, "ledger", "turnover"], 3)):
        done = subprocess.run(
            [sys.executable, "-m", "statebackend", *command],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr
    assert "there is no state backend 'sqlite'; known are heap, rocksdb" in done.stderr
