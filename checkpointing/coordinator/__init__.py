"""Who must acknowledge a checkpoint and what becomes of it: state machines without clock, thread or file.

Events in, decisions out. What is not in a transition table is an error that changes nothing. Nothing here stores a
checkpoint, or knows what makes an epoch.
"""
