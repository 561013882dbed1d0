"""The Spark runtime: environment, sinks, epochs. The only package that imports pyspark."""

from statebackend.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
