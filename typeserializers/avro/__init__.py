"""Values of an Avro schema in Avro's own encoding: bounds, checks and schema resolution around a library.

The library reads and writes; everything about it that must not be trusted is checked here first.
"""
