"""Serializers whose bytes say nothing of their content: pickles, serializers persisted whole, those only Java reads.

Each is chosen explicitly; nothing ever falls back to this room.
"""
