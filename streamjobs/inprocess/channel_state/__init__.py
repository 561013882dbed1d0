"""What was in flight when barriers overtook it: as durable bytes, and back into the channels of another run.

subtask_capture     what a subtask's channels add to a checkpoint     (in the network)
channel_state_bytes <-> bytes, by the forms of records that the inputs of operators have (record_forms)
channel_state_parts <-> the parts ``input_channels`` and ``output_channels`` of the subtask's state, and their files
redistribution      from the channels of the former run to those of this one, whatever its parallelism
channel_restore     into the channels, in front of everything else
"""
