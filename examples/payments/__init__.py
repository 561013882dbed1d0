"""Card payments from Kafka to a fraud detector, alerts in Delta Lake and balances in PostgreSQL, each exactly once.

`job` is the chain; `version_1` and `version_2` are the detector before and after its upgrade; `payments` makes the
input; `driver` runs version 1 as a process of its own; `expected` computes the results in plain Python; `demo` runs all
of it: `python -m examples.payments`.
"""
