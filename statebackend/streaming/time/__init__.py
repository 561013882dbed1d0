"""Event time and processing time as tables: timestamps, watermarks, timers. No clock, job or Spark."""
