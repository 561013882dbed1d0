"""Serializers of single values: numbers, text, bytes, enums, UUIDs, and Flink's mutable value types.

No serializer here holds another one; those are in `typeserializers.containers`.
"""
