"""What was in flight when barriers overtook it: as durable bytes, and back into the channels of another run.

`subtask_capture`, in the network, is what the channels of a subtask add to a checkpoint. `channel_state_bytes` makes
bytes of it, by the forms of records that the inputs of operators have (`record_forms`), and `channel_state_parts` the
parts of the subtask's state, with their files. `channel_redistribution` leads from the channels of a former run to
those of this one, whatever its parallelism, and `channel_restore` into them, in front of everything else.
"""
