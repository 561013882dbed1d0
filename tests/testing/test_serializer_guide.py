"""The serializer in docs/writing-a-serializer.md passes the contract suite that the page names."""

from __future__ import annotations

import re
from pathlib import Path

# Names are registered for the whole process, so other tests must not use those of the guide.
_PAGE = Path(__file__).parents[2] / "docs" / "writing-a-serializer.md"
_GUIDE = _PAGE.read_text().replace('"my.', '"tests.serializer_guide.')
_BLOCKS = re.findall(r"^```python\n(.*?)^```", _GUIDE, re.DOTALL | re.MULTILINE)

# Executed in this module, where pytest finds the test class.
for _name in ("class PointSerializer(", "class TestPointSerializer("):
    (_block,) = (block for block in _BLOCKS if _name in block)
    exec(_block)
