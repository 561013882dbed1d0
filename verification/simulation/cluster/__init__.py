"""Tasks, channels and messages around the tables of `statebackend.checkpoint`, in every mode of barriers.

The simulation replaces the parts that a runtime adds to these tables: transport and order of messages. The decisions
are the product's: `statebackend.checkpoint.barriers` blocks channels and captures records,
`statebackend.checkpoint.coordinator` starts and completes checkpoints, `statebackend.checkpoint` stores them.

A task counts the records that it has received and sent on each channel, and its position in its source. So a checkpoint
can be checked to be a consistent cut, channel by channel: the records sent before the barrier are those received before
it and the stored records in flight, in order.
"""
