"""Who must acknowledge a checkpoint and what becomes of it: state machines without clock, thread or file."""
