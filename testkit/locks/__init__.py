"""The lock of a job's state in a test: `statebackend_pytest` has the fixture ``statebackend_lock``, which pytest finds.

    def test_state_can_follow_the_program(statebackend_lock):
        statebackend_lock("flights.job:build", "state.lock")

Nothing is judged here: a lock is compared by `streamjobs.command_line`, as on a terminal.
"""
