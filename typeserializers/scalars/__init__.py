"""Serializers of single values: numbers, text, bytes, enums, UUIDs and Flink's mutable value types."""
