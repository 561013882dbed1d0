"""Small SST files with huge values in a job directory: every reader rejects them without using that memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rocksdict
from forged_savepoints import ForgedMetadata, checksum_of
from test_bombs_in_stored_state import ends_of

from statebackend import KeyedProcessFunction, ValueStateDescriptor
from statebackend.local import LocalStreamEnvironment

_PROGRAM = """
from typing import Any
from test_bombs_in_sst_files import environment_of


def build(job_dir: str, parallelism: int) -> Any:
    return environment_of(job_dir, parallelism)
"""
_ONE_GIBIBYTE = 1 << 30


class Remember(KeyedProcessFunction[Any, Any, Any]):
    """Stores one value."""

    def open(self, context: Any) -> None:
        self.kept = context.get_state(ValueStateDescriptor("kept", bytes))

    def process_element(self, value: Any, context: Any) -> Any:
        if self.kept.value() is None:
            self.kept.update(b"x")
        yield value.shop, len(self.kept.value())


def environment_of(job_dir: str, parallelism: int = 1) -> LocalStreamEnvironment:
    environment = LocalStreamEnvironment(job_dir=job_dir, backend="rocksdb", parallelism=parallelism, max_parallelism=8)
    rows = environment.from_elements([("shop 1",), ("shop 2",)], "shop string").key_by("shop")
    rows.process(Remember(), uid="shops", schema="shop string, size bigint").sink_to([], uid="sizes")
    return environment


def _options(compression: Any) -> Any:
    options = rocksdict.Options(raw_mode=True)
    options.set_compression_type(compression)
    return options


def _partitioned(options: Any) -> Any:
    table = rocksdict.BlockBasedOptions()
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    options.set_block_based_table_factory(table)
    return options


def with_zstd() -> Any:
    return _options(rocksdict.DBCompressionType.zstd())


def with_zstd_and_our_index() -> Any:
    return _partitioned(_options(rocksdict.DBCompressionType.zstd()))


def _forge(job_dir: Path, scratch: Path, options: Any) -> None:
    """Write the rows of the checkpoint again, with a value of one GiB of zeros in the first row."""
    [place] = job_dir.rglob("*.sst")
    copy = scratch / "copy.sst"
    shutil.copy(place, copy)
    rows = rocksdict.Rdict(str(scratch / "rows"), options=rocksdict.Options(raw_mode=True))
    rows.ingest_external_file([str(copy)])
    stored = list(rows.items())
    rows.close()
    forged = scratch / "forged.sst"
    writer = rocksdict.SstFileWriter(options)
    writer.open(str(forged))
    for index, (key, value) in enumerate(stored):
        writer[key] = value if index else _ONE_GIBIBYTE.to_bytes(4, "big") + bytes(_ONE_GIBIBYTE)
    writer.finish()
    content = forged.read_bytes()
    assert len(content) < 100_000
    place.write_bytes(content)
    [checkpoint] = (job_dir / "checkpoints").iterdir()
    metadata = ForgedMetadata(checkpoint)
    for subtask in metadata.subtasks():
        for file in subtask["keyed"]["files"]:
            file["size_bytes"], file["checksum"] = len(content), checksum_of(content)
    metadata.write()


@pytest.mark.parametrize("options", [with_zstd, with_zstd_and_our_index])
@pytest.mark.extended
def test_an_sst_file_that_decompresses_to_much_more_is_rejected(tmp_path: Path, options: Callable[[], Any]) -> None:
    job_dir = tmp_path / "job"
    environment_of(str(job_dir)).execute()
    (tmp_path / "shops_program.py").write_text(_PROGRAM)
    commands: dict[str, list[Any]] = {
        "inspect": ["inspect", str(job_dir)],
        "show": ["show", str(job_dir), "shops", "kept"],
        "restore": [None, str(job_dir), 1],
        "restore at another parallelism": [None, str(job_dir), 2],
    }
    assert [status for status, _ in ends_of(tmp_path, commands).values()] == [0] * 4
    shutil.rmtree(job_dir)
    environment_of(str(job_dir)).execute()
    _forge(job_dir, tmp_path, options())
    for name, (status, output) in ends_of(tmp_path, commands).items():
        assert "is not one that this backend writes" in f"{status} {output}", (name, status, output)
