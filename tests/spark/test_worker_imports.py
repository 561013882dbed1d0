"""The modules that every worker imports do not load rarely used modules."""

import subprocess
import sys


def test_a_worker_without_parquet_files_does_not_load_parquet() -> None:
    program = "import sys, statebackend.spark.tasks.epoch_task; sys.exit('pyarrow.parquet' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
