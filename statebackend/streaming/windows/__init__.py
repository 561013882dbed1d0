"""What a user says of windows: assigners, triggers, evictors and window functions."""
