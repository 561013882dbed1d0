"""Which request for a checkpoint is begun, who acknowledges it, what becomes of it: without clock, thread or file.

Events in, decisions out. What is not in a transition table is an error that changes nothing. Nothing here stores a
checkpoint, or knows what makes an epoch.
"""
