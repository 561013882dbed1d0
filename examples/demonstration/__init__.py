"""Shared parts of the demonstrations: output, driver processes, a Spark session, and comparison of results."""
