"""What a user writes a job with: functions, streams, sinks, the graph, key types.

Nothing here runs anything.
"""
