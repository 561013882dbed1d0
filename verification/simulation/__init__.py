"""Proof by simulation: whole jobs under faults, each schedule made by a seed, and compared with a model behind it.

    python -m verification.simulation --schedules 1000 --seed 1     schedules 1, 2, ... 1000
    python -m verification.simulation --replay 77                   the steps of schedule 77

A schedule is data: a graph, its input, its parallelism in each life of the job, and the faults, each with the number of
the step at which it strikes. Nothing in a run comes from elsewhere: names that the product draws by chance, and its
clock, are the schedule's too, and there is no thread. So a schedule that fails fails again, and can be made shorter.

| room              | what is in it                                                                                |
|-------------------|----------------------------------------------------------------------------------------------|
| `verification.simulation.host` | the machine: a storage that loses, tears and fails, processes that die, clocks;
ZooKeeper     |
| `verification.simulation.cluster` | tasks, channels and messages around the tables of barriers and of the coordinator
           |
| `verification.simulation.jobs` | jobs as users write them, on the runtime of this process
         |
| `verification.simulation.graphs` | random job graphs as data, their programs, and a model of each
        |
| `verification.simulation.upgrades` | random chains of versions of stored types, and a model of what each value
becomes        |

docs/simulation.md says what is promised after each schedule, and which planted defects are found by it.
"""
