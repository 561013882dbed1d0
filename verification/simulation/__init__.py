"""Deterministic simulation: whole jobs under faults, each made by a seed and compared with a model.

    python -m verification.simulation --schedules 1000 --seed 1     schedules 1, 2, ... 1000
    python -m verification.simulation --replay 77                   the steps of schedule 77

A schedule is data: a graph, its input, its parallelism in each run of the job, and the faults, each with the step at
which it happens. The schedule also decides the random names and the clock of the product, and there are no threads. So
a failing schedule fails again, and can be shortened.

| Package    | Contents                                                                                 |
|------------|------------------------------------------------------------------------------------------|
| `host`     | the machine: storage that loses and tears writes, processes that die, clocks, ZooKeeper  |
| `cluster`  | tasks, channels and messages around the tables of barriers and of the coordinator        |
| `jobs`     | jobs as users write them, on the local runtime                                           |
| `graphs`   | random job graphs as data, their programs, and a model of each                           |
| `upgrades` | random chains of versions of stored types, and a model of each value                     |

docs/simulation.md lists the promises that are checked after each schedule, and which planted defects are found.
"""
