"""The documented list of log events equals the events in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGGING_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})


def _names_in(source: str) -> Iterator[str]:
    """Yield the literal event names of all log calls in ``source``."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not call.args:
            continue
        function = call.func
        logs = isinstance(function, ast.Name) and function.id in ("tell", "_read", "_stored")
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            logs |= function.value.id == "log" and function.attr in LOGGING_METHODS
        if isinstance(function, ast.Attribute):
            logs |= function.attr in ("event", "_event")
        if logs:
            constants = (each for each in ast.walk(call.args[0]) if isinstance(each, ast.Constant))
            yield from (each.value for each in constants if isinstance(each.value, str))


def test_the_list_of_log_events_is_complete() -> None:
    sources = [ROOT / "provisioner" / "app.py", *(ROOT / "provisioner" / "controller").glob("*.py")]
    sources += (ROOT / "adapters").rglob("*.py")
    logged = {name for path in sources for name in _names_in(path.read_text())}
    page = (ROOT / "docs" / "reference" / "log-events.md").read_text()
    documented = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert sorted(documented) == sorted(logged)
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+", name) for name in logged)
