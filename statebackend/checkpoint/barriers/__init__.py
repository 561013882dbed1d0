"""Barrier handling in the channels of a task, as transition tables: tracker, aligner, unaligner, alternating."""
