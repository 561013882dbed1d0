"""The loop of `value_access` on state with time-to-live, compared with the same loop without; nothing expires.

With time-to-live, an entry is stored with the time of its last write, each read checks that time, and the incremental
cleanup checks a few further entries.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.backends.measuring import compared
from benchmarks.backends.setting import Setting
from benchmarks.backends.value_access import ValueLoop
from benchmarks.result import Result
from statebackend import StateTtlConfig, ValueStateDescriptor

_AN_HOUR_MS = 3_600_000

_CONFIGS = {
    "incremental clean-up": StateTtlConfig(_AN_HOUR_MS),
    "no clean-up": StateTtlConfig(_AN_HOUR_MS, incremental_cleanup=None),
}


def state_ttl(setting: Setting) -> Iterator[Result]:
    """Yield the results for existing keys, each four times per epoch, on both backends."""
    records = setting.shuffled_records(setting.count(25_000), 4)
    for backend, name in (("heap", "heap"), ("rocksdb", "RocksDB")):
        for title, config in _CONFIGS.items():
            descriptor = ValueStateDescriptor("count", int, ttl=config)
            with (
                ValueLoop(setting, backend, records) as without,
                ValueLoop(setting, backend, records, descriptor=descriptor) as with_ttl,
            ):
                line = f"{name} value read-modify-write with a time-to-live, {title}"
                yield from compared(setting, line, "entries/s", with_ttl, {"without": without})
                for loop in (without, with_ttl):
                    loop.check()
