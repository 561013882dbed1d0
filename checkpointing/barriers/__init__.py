"""What the input channels of one task do with barriers: pure tables, events in, actions out.

A barrier divides what belongs to a checkpoint from what does not. A handler is told what its channels deliver and says
when the task takes its snapshot, which channels stand still, and what is captured on its way. Neither clock nor channel
is here: times come with events, and whoever moves the elements carries out the actions.
"""
