"""The walk of one waiting class, as the documentation shows it, exists in the code and is short."""

from __future__ import annotations

import importlib
import re
from operator import attrgetter
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "planner.md"
SECTION = PAGE.read_text().partition("## The walk of one waiting class\n")[2].partition("\n## ")[0]
STOPS = re.findall(r"^\| \d+ \| `([\w.]+)` \| `(\w+)` \|", SECTION, re.MULTILINE)
SIDE_ROADS = re.findall(r"`([A-Z]\w+\.\w+)` in `(\w+)`", SECTION)


def test_each_stop_of_the_walk_is_a_function_of_its_module() -> None:
    for name, module in (*STOPS, *SIDE_ROADS):
        package = "provisioner.planner" if module == "__init__" else f"provisioner.planner.{module}"
        function = attrgetter(name)(importlib.import_module(package))
        assert callable(function) and function.__module__ == package, name


def test_the_walk_is_short() -> None:
    numbers = re.findall(r"^\| (\d+) \|", SECTION, re.MULTILINE)
    assert [*map(int, numbers)] == [*range(1, len(STOPS) + 1)]
    assert 10 < len(STOPS) <= 20
    assert len({module for _, module in STOPS}) <= 7
    assert len(SIDE_ROADS) == 3
