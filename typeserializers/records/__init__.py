"""Records: attrs classes, dataclasses and NamedTuples, field by field; what makes a class one, and its snapshot.

What may change about a record is judged in `typeserializers.evolution`.
"""
