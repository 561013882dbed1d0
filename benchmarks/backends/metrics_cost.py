"""The loop of `value_access` with metrics enabled, compared with the same loop without metrics.

Without metrics, users get the state object of the backend itself, so there is no cost. With metrics, each read and each
write costs one more call, and short accesses show it most.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.backends.measuring import compared
from benchmarks.backends.setting import Setting
from benchmarks.backends.value_access import ValueLoop
from benchmarks.result import Result
from statebackend import StateMetricsConfig

INTERVALS = (100, 1)


def state_metrics(setting: Setting) -> Iterator[Result]:
    """Yield the results for existing keys, each four times per epoch, with 1 in 100 accesses timed and with all."""
    records = setting.shuffled_records(setting.count(25_000), 4)
    for backend, name in (("heap", "heap"), ("rocksdb", "RocksDB")):
        for interval in INTERVALS:
            metrics = StateMetricsConfig(latency_sample_interval=interval)
            with ValueLoop(setting, backend, records) as off, ValueLoop(setting, backend, records, metrics) as on:
                timed = "all timed" if interval == 1 else f"1 in {interval} timed"
                title = f"{name} value read-modify-write with metrics, {timed}"
                yield from compared(setting, title, "entries/s", on, {"metrics off": off})
                for loop in (off, on):
                    loop.check()
