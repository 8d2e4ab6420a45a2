"""A pytest plugin for `mutants`: write down which tests run which lines of the product, and how long each test takes.

python -m pytest -p benchmarks.touched --touched FILE ...
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import coverage
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with the file to write."""
    parser.addoption("--touched", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Begin to trace, before any module of the product is imported."""
    config.pluginmanager.register(
        Touched(config.rootpath / "provisioner", config.getoption("--touched"))
    )


class Touched:
    """Lines by the test that runs them. Those that a fixture runs belong to all tests of the file."""

    def __init__(self, code: Path, to: Path) -> None:
        self.code, self.to = code, to
        self.seconds: dict[str, float] = defaultdict(float)
        self.coverage = coverage.Coverage(data_file=None, include=[f"{code}/*"])
        self.coverage.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.coverage.switch_context(item.nodeid.partition("::")[0])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self.coverage.switch_context(item.nodeid.partition("[")[0])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self.coverage.switch_context(item.nodeid.partition("::")[0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("[")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        data = self.coverage.get_data()
        lines = {
            str(Path(file).relative_to(self.code)): data.contexts_by_lineno(file)
            for file in data.measured_files()
        }
        self.to.write_text(json.dumps({"seconds": self.seconds, "lines": lines}))
