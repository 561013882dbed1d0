"""Making state known to a Spark session as the format ``statebackend``."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from streamjobs.spark.session import check_spark_version, ensure_python_interpreter
from streamjobs.spark.state_tables.state_table_source import StateTableSource
from streamjobs.spark.tasks.program_modules import ProgramModules

__all__ = ["register_state_tables"]

_PUSH_FILTERS: Final = "spark.sql.python.filterPushdown.enabled"


def register_state_tables(spark: SparkSession) -> None:
    """Lets this session read state: ``spark.read.format("statebackend").load(path)``.

    The serializers that the program has defined until then go along to the tasks; registering once more replaces them.
    Turns on that Spark tells Python sources the filters of a query, which looking up keys needs. Raises
    `UnsupportedSparkVersionError` for a Spark that is too old.
    """
    check_spark_version(spark)
    ensure_python_interpreter(spark)
    spark.conf.set(_PUSH_FILTERS, "true")
    # Spark takes a class and no object, so what goes along is of a class that is made for it.
    source = type("StateTableSource", (StateTableSource,), {"program": ProgramModules.of_this_process()})
    spark.dataSource.register(source)
