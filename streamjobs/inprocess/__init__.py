"""Jobs in this process, without a JVM: the same graph, the same rows and the same state, for tests and for debugging.

A rim around `streamjobs.runtime`: elements in, lists out. What is decided there is not decided again here.
"""

from streamjobs.inprocess.environment import LocalStreamEnvironment
from streamjobs.inprocess.job import LocalJob

__all__ = ["LocalJob", "LocalStreamEnvironment"]
