"""The example on the simulator's page runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "simulator.md"


def test_the_example_of_the_page_runs() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    known: dict[str, object] = {}
    exec(compile(example, str(PAGE), "exec"), known)
    assert "outcome" in known
