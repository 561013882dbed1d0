"""The loop of `value_access` with metrics on, beside itself with metrics off.

Off, a handle is the backend's own object, so there is nothing to measure: the code is the same. On, each read and each
write costs one more call; the shorter the access, the more that shows.
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
    """Keys that exist, each four times an epoch, with every hundredth access timed, and with every one."""
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
