"""Values of an Avro schema in Avro's own encoding: parsed schemas, bounds and checks around a library.

The library reads and writes; everything about it that must not be trusted is checked here first. What may change about
a schema is judged in `typeserializers.evolution`.
"""
