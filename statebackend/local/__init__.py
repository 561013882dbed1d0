"""The local runtime: jobs in one Python process, without a JVM, for tests and small jobs.

Each part is one object or file, created once per run and passed on whole:

| part                               | what it has                                                                    |
|------------------------------------|--------------------------------------------------------------------------------|
| `environment`                      | the program and its settings; checks, start, leadership                        |
| `graph`                            | operators with their inputs, keys and states; how unions convert records       |
| `job_parts`                        | the checked program, and what all parts of its run share                       |
| `run`                              | one execution: clock, epochs, steps; then LocalJob for metrics and savepoints  |
| `job_network`                      | subtasks, channels, and the stateless steps between them                       |
| `network`                          | the moves: a state machine without clock, thread, file or state                |
| `subtask`                          | the operators, over the subtask that both runtimes share                       |
| `source`, `source_reading`         | watermarks and positions of sources; how a run reads them to their ends        |
| `checkpoints`                      | carries out the actions of the coordinator; what happens at barriers           |
| `channel_state`, `channel_restore` | in-flight elements as bytes and files, and back to channels of any parallelism |
| `network_watermarks`               | event time by node, as a checkpoint stores it                                  |
| `sinks`                            | results by checkpoint; the two phases of `RecordSink`                          |

A record passes: source feed, `LocalSource`, `Chain`, `Channel`, `OperatorSubtask`, `LocalSubtask`, `Chain`, `Channel`,
`OutputSubtask`, `LocalSinks`, sink. A checkpoint passes: coordinator, mail, `SourceSubtask`, barrier,
`ChannelBarriers`, `LocalSubtask`, `SnapshotWork`, mail, coordinator, store, sinks.

One thread makes all moves. Other threads only write snapshots, and their results return as mails. What both runtimes
do is in `statebackend.streaming`; the checkpoint protocol is in `statebackend.checkpoint`, as tables.
"""

from statebackend.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
