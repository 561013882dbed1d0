"""Time-to-live of keyed state apart from its handles: for whoever looks at rows, or at restored state.

`expiry` is how long the entries of a state live; `row_filter` leaves expired ones out of what is written whole;
`expiry_sweep` finds expired entries that nobody reads any more; `time_to_live_change` is what a restore makes of state
that gets a time-to-live, or loses it. The handles and the stored form are with the kinds of state; what a descriptor
carries is in `statebackend.api.time_to_live`. Nothing here knows a store.
"""
