"""The checkpoint coordinator as state machines without clocks, threads or files."""
