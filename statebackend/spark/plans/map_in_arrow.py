"""``DataFrame.mapInArrow`` without pandas.

PySpark's own method fails without pandas, although neither driver nor workers use it. This module creates the same plan
node.

PySpark makes about forty JVM calls to create a function, most of them the same each time. An `ArrowMap` makes those
once, then three per epoch. For that it calls Spark's internal constructors (of PySpark 4.1 to 4.3). It tries them when
it is created, and falls back to PySpark's way if they differ.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from statebackend.spark.columns import column_named, sequence_of

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, function: ArrowFunction, schema: StructType) -> DataFrame:
    """Apply ``function`` to the Arrow batches of every partition; it must yield batches of exactly ``schema``."""
    return _mapped(frame, _made_by_pyspark(schema, list(map(column_named, frame.columns)))(function))


class ArrowMap:
    """`map_in_arrow` for many frames of the same columns, each with its own function that yields ``schema``.

    The pickled functions must be small: Spark does not broadcast them.
    """

    def __init__(self, spark: SparkSession, schema: StructType, columns: Sequence[Column]) -> None:
        self.is_direct = True
        """Whether Spark's internal constructors create the functions."""
        self._expression: Callable[[ArrowFunction], Any]
        try:
            self._expression = _DirectFunctions(spark.sparkContext, schema, columns).expression
            self._expression(_unchanged)
        except (Py4JError, AttributeError, TypeError):
            self.is_direct = False
            self._expression = _made_by_pyspark(schema, columns)

    def apply(self, frame: DataFrame, function: ArrowFunction) -> DataFrame:
        """Return the frame of the batches that the function yields."""
        return _mapped(frame, self._expression(function))


def _mapped(frame: DataFrame, expression: Any) -> DataFrame:
    return DataFrame(frame._jdf.mapInArrow(expression, False, None), frame.sparkSession)


def _made_by_pyspark(schema: StructType, columns: Sequence[Column]) -> Callable[[ArrowFunction], Any]:
    """Return PySpark's way to create the JVM's column of a function over these columns."""

    def expression(function: ArrowFunction) -> Any:
        of_columns: Any = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
        return of_columns(*columns)._jc

    return expression


class _DirectFunctions:
    """Creates the JVM's column of a function with Spark's internal constructors; common arguments are created once."""

    def __init__(self, context: Any, schema: StructType, columns: Sequence[Column]) -> None:
        self._context = context
        self._schema = schema
        self._type: Any = context._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
        self._environment = context._jvm.java.util.HashMap()
        for key, value in context.environment.items():
            self._environment.put(key, value)
        self._inputs = sequence_of(context, columns)
        # Spark 4.3 added arguments for expressions that are equivalent to the function.
        template = UserDefinedFunction(_unchanged, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
        nothing = _JavaList(context)
        self._no_expressions = [nothing.of([])] * 2 if hasattr(template, "transpiled") else []
        self._includes, self._broadcasts = _JavaList(context), _JavaList(context)
        self._new_function = context._jvm.SimplePythonFunction
        self._new_user_function = context._jvm.org.apache.spark.sql.execution.python.UserDefinedPythonFunction

    def expression(self, function: ArrowFunction) -> Any:
        """Return the JVM's column of the function."""
        context = self._context
        command: bytes = cloudpickle.dumps((function, self._schema))  # type: ignore[no-untyped-call]
        broadcasts = [broadcast._jbroadcast for broadcast in context._pickled_broadcast_vars]
        context._pickled_broadcast_vars.clear()
        wrapped = self._new_function(
            bytearray(command),
            self._environment,
            self._includes.of(context._python_includes),
            context.pythonExec,
            context.pythonVer,
            self._broadcasts.of(broadcasts),
            context._javaAccumulator,
        )
        user_function = self._new_user_function(
            "run", wrapped, self._type, PythonEvalType.SQL_MAP_ARROW_ITER_UDF, True, *self._no_expressions
        )
        return user_function.apply(self._inputs)


class _JavaList:
    """The Java list of a Python list, created again when its elements change."""

    def __init__(self, context: Any) -> None:
        self._new_list = context._jvm.java.util.ArrayList
        self._elements: list[Any] | None = None
        self._list: Any = None

    def of(self, elements: Sequence[Any]) -> Any:
        """Return the Java list of these elements."""
        if self._elements is None or not _are_same(self._elements, elements):
            self._list = self._new_list()
            for element in elements:
                self._list.add(element)
            self._elements = list(elements)
        return self._list


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    # Comparing objects of the JVM by equality would call the JVM.
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches
