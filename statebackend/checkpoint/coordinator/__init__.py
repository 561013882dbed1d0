"""The checkpoint coordinator as state machines without clock, thread or file."""
