"""What the channels of a task do with barriers, as transition tables: tracker, aligner, unaligner, alternating."""
