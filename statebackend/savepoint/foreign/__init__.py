"""Reads state of other engines: Flink's savepoints and retained checkpoints, without Java."""
