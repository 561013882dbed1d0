"""Writes the golden files of single formats. They are written once, by the code of version 0.1.

    scripts/environment/run.sh python -m tests.golden.formats.write_formats

It rejects a file that exists: what a release wrote is never written again. A later version of a format gets a file of
its own. SST files of RocksDB name the host that wrote them. Run it where the host has a neutral name:
`unshare --uts sh -c 'hostname localhost && ...'`.
"""

from __future__ import annotations

import hashlib

from tests.golden_formats.golden_formats import FILES, GOLDEN
from tests.golden_formats.golden_states import STATES, write_state


def main() -> None:
    """Write each file and each directory of state that does not exist."""
    for one in FILES:
        with (GOLDEN / one.name).open("xb") as file:
            file.write(one.encode(one.content))
    for name in STATES:
        write_state(name, GOLDEN / name)
    files = sorted(path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(GOLDEN)}\n" for path in files]
    (GOLDEN / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    main()
