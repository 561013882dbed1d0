"""Sources of a job on Spark: several as one stream, which they are, and how far Spark's own log says they are read.

No state and no plan of an operator here.
"""
