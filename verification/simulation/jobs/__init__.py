"""Jobs as users write them, on the local runtime and the simulated machine.

The job uses the public interface, and the operators, backends, serializers, watermarks, barriers and checkpoints are
the product's. Simulated are the machine, the choice of the next move, messages, and the ends of the job: sources that
are read again from a stored position, and a transactional sink.
"""
