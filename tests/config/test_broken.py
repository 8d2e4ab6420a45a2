"""Broken configurations, kept in ``broken/``: none is loaded, and each problem is one line.

The golden record ``messages`` has the problems of all of them, each with its line and its remedy.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.config import ConfigError, load

BROKEN = Path(__file__).parent / "broken"
CASES = sorted([*BROKEN.glob("*.yaml"), *BROKEN.glob("*/provisioner.yaml")])


@pytest.mark.parametrize("case", CASES, ids=lambda path: str(path.relative_to(BROKEN)))
def test_a_broken_configuration_is_never_loaded(case: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load(case)
    assert raised.value.problems
    assert str(raised.value).count("\n") == len(raised.value.problems) - 1
    for problem in raised.value.problems:
        assert problem.line >= 1 and problem.col >= 1
        if case.name.startswith("literal-secret"):
            assert "eyJ" in case.read_text() and "eyJ" not in str(problem), "a secret is never repeated"
