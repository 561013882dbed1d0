"""Jobs in this process, without a JVM: the same chain and the same state, for tests and for debugging."""

from streamjobs.inprocess.environment import LocalStreamEnvironment
from streamjobs.inprocess.job import LocalJob

__all__ = ["LocalJob", "LocalStreamEnvironment"]
