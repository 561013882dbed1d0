"""One small Spark session for all tests that need a real one.

Tests that take the fixture `spark` are marked `spark` (`pytestmark = pytest.mark.spark`), so that
`pytest -m "not spark"` runs everything else without a JVM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two local cores, two shuffle partitions, the time zone UTC, and no web interface.

    Its workers run on this interpreter and can import the repository's packages. Tests may change its
    configuration only through `streamjobs.spark.session.configured`, which puts the old values back.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    (scratch / "java").mkdir()
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests of streamjobs")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={scratch / 'java'}")
        .config("spark.executorEnv.PYTHONPATH", str(REPOSITORY))
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
