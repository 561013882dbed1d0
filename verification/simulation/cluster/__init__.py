"""Tasks, channels and messages around the tables of `statebackend.checkpoint`, in every mode of barriers.

What is simulated here is what stands around these tables in any runtime: what travels, who hears of it and when. What
is decided comes from the product: `statebackend.checkpoint.barriers` says which channels stand still and what is
captured, `statebackend.checkpoint.coordinator` which checkpoints are begun and complete, `statebackend.checkpoint`
what is durable.

A task counts: what it has received on each channel, what it has sent, how far it has read. So whether a checkpoint is a
consistent cut can be seen in it, channel by channel: what was sent before the barrier is what was received before it,
and behind that what is on its way, in its order.
"""
