"""Random chains of five versions of a schema, with a model in plain Python.

Each version changes the types of the stored records. The job is restored from the version before, on the other backend
and with another parallelism. The model computes every stored value afterwards, or that the change must be rejected.
"""
