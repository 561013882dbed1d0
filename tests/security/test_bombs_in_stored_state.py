"""Small files that claim to be large: every reader rejects them without using that memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forged_savepoints import ENTRIES, ForgedMetadata, savepoint_of_shops

from statebackend import Savepoint

pytestmark = pytest.mark.slow

# Far above the needs of these files even on a slow machine, and far below the sizes that they claim.
_ADDRESS_SPACE_BYTES = 6 << 30
_RESIDENT_BYTES = 1 << 30
_TIMEOUT_S = 900

_PROGRAM = """
from typing import Any
from statebackend import SplitListStateDescriptor, ValueStateDescriptor
from statebackend import KeyedProcessFunction
from statebackend.local import LocalStreamEnvironment


class Sell(KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self.sales = context.get_state(ValueStateDescriptor("sales", int))
        self.seen = context.operator_state.get_list_state(SplitListStateDescriptor("seen", int))

    def process_element(self, value: Any, context: Any) -> Any:
        self.sales.update((self.sales.value() or 0) + 1)
        yield value.shop, self.sales.value(), len(list(self.seen.get()))


def build(job_dir: str = "job", restored: list = [], parallelism: int = 2) -> Any:
    environment = LocalStreamEnvironment(job_dir=job_dir, parallelism=parallelism, max_parallelism=8)
    rows = environment.from_elements([("shop 1",), ("shop 2",)], "shop string").key_by("shop")
    sold = rows.process(Sell(), uid="shops", schema="shop string, sales bigint, seen bigint")
    sold.sink_to(restored.append, uid="sold")
    return environment


def plan(savepoint: Any) -> Any:
    from statebackend.savepoint.rewrite import Plan

    return Plan().keep_keys("shops", lambda shop: shop != "shop 3").keep_elements("shops", "seen", lambda one: one != 3)
"""

_CHILD = """
import contextlib, importlib.metadata, io, json, resource, sys

limit, commands = int(sys.argv[1]), json.loads(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
[command] = importlib.metadata.entry_points(group="console_scripts", name="statebackend")
run = command.load()
ends = {}
for name, arguments in commands.items():
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            if name.startswith("restore"):
                import shops_program
                shops_program.build(*arguments[1:2], parallelism=arguments[2]).execute(from_savepoint=arguments[0])
                status = 0
            else:
                sys.argv = ["statebackend", *arguments]
                status = run()
        except SystemExit as end:
            status = end.code
        except Exception as error:
            status = f"{type(error).__module__}.{type(error).__name__}: {error}"
    ends[name] = [status, out.getvalue()[-1000:]]
# Unlike ru_maxrss, this does not count the process that started this one.
with open("/proc/self/status") as lines:
    [peak] = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
print(json.dumps({"ends": ends, "resident_bytes": peak * 1024}))
"""


def commands_on(directory: Path, forged: Path, good: Path) -> dict[str, list[Any]]:
    """Every command that reads a savepoint, and restores at the same and another parallelism."""
    bad, job = str(forged), ["--job", "shops_program:build"]
    plan = ["--plan", str(directory / "shops_program.py")]
    restored = [bad, str(directory / f"job of {forged.name}")]
    return {
        "inspect": ["inspect", bad],
        "schema": ["schema", bad],
        "du": ["du", bad],
        "report": ["report", bad, str(directory / "page.html")],
        "show": ["show", bad, "shops", "sales"],
        "show elements": ["show", bad, "shops", "seen"],
        "diff": ["diff", str(good), bad, "--entries"],
        "export": ["export", bad, "shops", "sales", str(directory / "sales.csv"), "--to", "csv"],
        "export elements": ["export", bad, "shops", "seen", str(directory / "seen.csv"), "--to", "csv"],
        "check": ["check", bad, *job],
        "rewrite": ["rewrite", bad, str(directory / "rewritten"), *plan],
        "migrate": ["migrate", bad, str(directory / "migrated"), *job],
        "restore": [*restored, 1],
        "restore at another parallelism": [f"{restored[0]}", f"{restored[1]} again", 3],
    }


KEYED = ["show", "diff", "export", "rewrite", "migrate", "restore", "restore at another parallelism"]
ELEMENTS = ["show elements", "diff", "export elements", "rewrite", "restore", "restore at another parallelism"]
EVERY = list(commands_on(Path(), Path(), Path()))


def _number(value: int) -> bytes:
    encoded, rest = bytearray(), value << 1
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


def _parquet(savepoint: Path, part: str, columns: dict[str, pa.Array], **options: Any) -> bytes:
    """A file with the schema of the files of that part, and one row group."""
    [file] = ForgedMetadata(savepoint).subtasks()[0][part]["files"]
    schema = pq.read_schema(savepoint / file["path"])
    table = pa.table([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)
    target = pa.BufferOutputStream()
    with pq.ParquetWriter(target, schema, compression="zstd", **options) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
    return target.getvalue().to_pybytes()


def _keyed_columns(rows: int, value: bytes) -> dict[str, pa.Array]:
    return {
        "key_group": pa.repeat(pa.scalar(0, pa.int32()), rows),
        "key": pa.repeat(pa.scalar(b"\x07shop 1"), rows),
        "namespace": pa.repeat(pa.scalar(b"\0"), rows),
        "user_key": pa.nulls(rows, pa.binary()),
        "value": pa.repeat(pa.scalar(value), rows),
    }


def many_rows(savepoint: Path) -> None:
    forged = ForgedMetadata(savepoint)
    forged.replace_files(savepoint, "keyed", _parquet(savepoint, "keyed", _keyed_columns(3_000_000, bytes(8))))
    forged.write()


def one_value_in_many_rows(savepoint: Path) -> None:
    forged = ForgedMetadata(savepoint)
    content = _parquet(savepoint, "keyed", _keyed_columns(60_000, bytes(10_000)))
    forged.replace_files(savepoint, "keyed", content)
    forged.write()


def pages_that_decompress_to_much_more(savepoint: Path) -> None:
    forged = ForgedMetadata(savepoint)
    content = _parquet(savepoint, "keyed", _keyed_columns(60_000, bytes(10_000)), use_dictionary=False)
    forged.replace_files(savepoint, "keyed", content)
    forged.write()


def values_that_repeat_the_one_before(savepoint: Path) -> None:
    forged = ForgedMetadata(savepoint)
    options = {"use_dictionary": False, "column_encoding": {"value": "DELTA_BYTE_ARRAY"}}
    forged.replace_files(
        savepoint, "keyed", _parquet(savepoint, "keyed", _keyed_columns(60_000, bytes(10_000)), **options)
    )
    forged.write()


def one_element_in_many_rows(savepoint: Path) -> None:
    forged = ForgedMetadata(savepoint)
    rows = 60_000
    columns = {"key": pa.nulls(rows, pa.binary()), "value": pa.repeat(pa.scalar(bytes(10_000)), rows)}
    forged.replace_files(savepoint, "operator", _parquet(savepoint, "operator", columns))
    for subtask in forged.subtasks():
        subtask["operator"]["meta"] = _with_slices(subtask["operator"]["meta"], [(0, rows)])
    forged.write()


def overlapping_slices(savepoint: Path) -> None:
    forged = ForgedMetadata(savepoint)
    for subtask in forged.subtasks():
        subtask["operator"]["meta"] = _with_slices(subtask["operator"]["meta"], [(0, 1000)] * 20_000)
    forged.write()


def a_slice_that_is_longer_than_its_file(savepoint: Path) -> None:
    forged = ForgedMetadata(savepoint)
    for subtask in forged.subtasks():
        subtask["operator"]["meta"] = _with_slices(subtask["operator"]["meta"], [(0, 1 << 40)])
    forged.write()


def _with_slices(meta: bytes, slices: list[tuple[int, int]]) -> bytes:
    """Replace the slices in the meta of a state, which has one part, one slice and no digest."""
    end = len(meta) - 4
    assert meta[end:] == bytes(4)
    encoded = b"".join(bytes(4) + start.to_bytes(8, "big") + stop.to_bytes(8, "big") for start, stop in slices)
    return meta[: end - 24] + len(slices).to_bytes(4, "big") + encoded + bytes(4)


def many_subtasks(savepoint: Path) -> None:
    forged = ForgedMetadata(savepoint)
    forged.record["operators"][0]["subtasks"] = [dict.fromkeys(forged.subtasks()[0])]
    _repeat_item(forged, b"\x02" + bytes(5), bytes(4))


def many_files(savepoint: Path) -> None:
    forged = ForgedMetadata(savepoint)
    forged.subtasks()[0]["keyed"]["files"] = [{"path": "", "size_bytes": 0, "checksum": ""}]
    _repeat_item(forged, b"\x02" + bytes(4), bytes(3))


def _repeat_item(forged: ForgedMetadata, array: bytes, item: bytes) -> None:
    """Replace this array of one item with one that claims 30 million items."""
    content = forged.encoded_record()
    assert content.count(array) == 1
    count = 30_000_000
    forged.write(content.replace(array, _number(count) + item * count + b"\0"))


BOMBS: list[tuple[Callable[[Path], None], list[str]]] = [
    (many_rows, ["inspect", *KEYED]),
    (one_value_in_many_rows, KEYED),
    (pages_that_decompress_to_much_more, KEYED),
    (values_that_repeat_the_one_before, KEYED),
    (one_element_in_many_rows, ELEMENTS),
    (overlapping_slices, ["inspect", "check", "migrate", *ELEMENTS]),
    (a_slice_that_is_longer_than_its_file, ["inspect", "check", "migrate", *ELEMENTS]),
    (many_subtasks, EVERY),
    (many_files, EVERY),
]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "shops_program.py").write_text(_PROGRAM)
    return savepoint_of_shops(tmp_path / "good")


def ends_of(directory: Path, commands: dict[str, list[Any]]) -> dict[str, Any]:
    paths = os.pathsep.join([str(directory), *filter(None, sys.path)])
    ended = subprocess.run(
        [sys.executable, "-c", _CHILD, str(_ADDRESS_SPACE_BYTES), json.dumps(commands)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    answer = json.loads(ended.stdout.splitlines()[-1])
    assert answer["resident_bytes"] < _RESIDENT_BYTES
    ends: dict[str, Any] = answer["ends"]
    return ends


def test_a_valid_savepoint_is_read_by_every_command(good: Path) -> None:
    forged = ForgedMetadata(good)
    forged.write()
    assert {entry.key: entry.value for entry in Savepoint.open(good).read("shops", "sales")} == dict(ENTRIES)
    ends = ends_of(good.parent, commands_on(good.parent, good, good))
    assert {name: status for name, (status, _) in ends.items() if status} == {}


@pytest.mark.extended_after(2)
@pytest.mark.parametrize(("forge", "rejecting"), BOMBS, ids=[forge.__name__ for forge, _ in BOMBS])
def test_a_bomb_is_rejected_within_the_limits(good: Path, forge: Callable[[Path], None], rejecting: list[str]) -> None:
    forged = savepoint_of_shops(good.parent / "forged")
    forge(forged)
    ends = ends_of(good.parent, commands_on(good.parent, forged, good))
    for name in rejecting:
        status, output = ends[name]
        assert status, f"{name} accepted it: {output}"
    for name, (status, output) in ends.items():
        assert "MemoryError" not in f"{status} {output}", name
        assert "Traceback" not in output, name
