"""Keyed and operator state: descriptors, state kinds, the keyed backend, TTL, queues, the canonical form.

No stream, job or Spark is known here.
"""
