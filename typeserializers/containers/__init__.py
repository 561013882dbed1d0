"""Serializers that hold others: lists, maps, sets, tuples, rows, arrays, optionals, unions, TTL values."""
