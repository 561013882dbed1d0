"""Random chains of five versions of a schema, beside a model in plain Python.

Each version changes the types of the stored records. The job is restored from the version before, on the other backend
and with another parallelism. The model says what every stored value must be afterwards, or that the change must be
rejected.
"""
