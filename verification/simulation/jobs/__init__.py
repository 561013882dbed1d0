"""Jobs as users write them, on the runtime of this process, over the simulated machine.

The job is built with the interface of every job, and its operators, state backends, serializers, watermarks, barriers
and checkpoints are the product's. Simulated are the machine, who moves next, what becomes of messages, and the ends of
the job: sources that are read again from the place that a checkpoint has, and a transactional sink, whose output is
what came out before the barrier of the checkpoint that the job goes on from.
"""
