"""POJOs: records in the layout of Flink's PojoSerializer, with subclasses; and what their snapshots hold.

What may change about a POJO is judged in `typeserializers.evolution`.
"""
