"""What a user imports to have state: descriptors, state handles as protocols, time-to-live, key groups, errors.

Nothing here stores anything.
"""
