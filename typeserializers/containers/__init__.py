"""Serializers that hold others: lists, maps, sets, tuples, rows, arrays, optional values, and one of several types.

Records, whose fields have names, are in rooms of their own.
"""
