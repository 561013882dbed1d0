"""The API of windows: assigners, triggers, evictors and window functions."""
