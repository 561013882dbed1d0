"""Writes the golden files of single formats. The code of version 0.1 has written them once.

    scripts/environment/run.sh python -m tests.golden.formats.write_formats

It rejects an existing file, because released files are never rewritten. A later version of a format gets its own file.
SST files of RocksDB contain the name of the host that wrote them, so run it on a host with a neutral name:
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
