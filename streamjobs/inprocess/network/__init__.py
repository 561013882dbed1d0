"""A job as a network of subtasks and channels, in which records, time and barriers travel in one order.

    source subtasks  ->  channels  ->  operator subtasks  ->  channels  ->  the output subtask, which all sinks are

A channel is bounded and leads from one subtask to another. What travels on it, in order, are the `elements`: batches of
records, watermarks, statuses, barriers and the end of input. A subtask moves by taking one element from one channel; it
may move when something lies there and there is room behind it. Who of those that may moves next is the scheduler's
choice, so a run is a sequence of choices and nothing else: there is no thread and no clock here, and what a user's
function or a state backend does is behind the protocols `OperatorWork` and `SourceWork`.
"""
