"""Keyed and operator state: descriptors, state kinds, the keyed backend, TTL, queues, the canonical form.

This package does not depend on streams, jobs or Spark.
"""
