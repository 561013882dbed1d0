"""Event time and processing time as pure parts: timestamps, durations, watermarks, timers.

Every protocol here is a table: an event and the state say what comes out and what the state is then. Nothing reads a
clock, a file or a socket, and nothing knows a job, a runtime or Spark; whoever drives a part passes the time in.
The room lies below `streamjobs.api`, whose classes are made of these parts, and imports nothing of it.
"""
