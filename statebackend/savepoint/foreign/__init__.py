"""State that other engines wrote: Flink's savepoints and retained checkpoints, read without Java."""
