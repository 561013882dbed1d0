"""The local runtime: jobs in this process, without a JVM, for tests and small jobs."""

from statebackend.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
