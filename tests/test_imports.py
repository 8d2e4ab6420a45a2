"""The import contracts hold, and each of them would notice if it did not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over the packages in ``tree``, which it must find before the installed ones."""
    program = f"import sys; sys.path[:0] = [{str(tree)!r}]; from importlinter import cli; cli.lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--config", str(tree / "pyproject.toml"), "--no-cache"],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages, to break."""
    for package in ("provisioner", "adapters"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold_and_are_not_vacuous(tree: Path) -> None:
    done = lint(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
    # Each line is one slip; all at once, for building the graph is what takes the time.
    slips = {
        "provisioner/planner/__init__.py": "import time\n",
        "provisioner/model.py": "import provisioner.store\n",
        "provisioner/interfaces.py": "import adapters\n",
        "adapters/local/__init__.py": "import provisioner.controller\nimport adapters.embedded\n",
    }
    for name, slip in slips.items():
        path = tree / name
        path.write_text(path.read_text() + slip)
    broken = lint(tree)
    assert broken.returncode != 0
    verdicts = re.findall(r" (KEPT|BROKEN)\b", broken.stdout)
    assert verdicts == ["BROKEN"] * 5, broken.stdout


def test_the_core_is_free_of_built_in_side_effects() -> None:
    """What needs no import cannot be caught by a contract on imports: open, print, input, hash of a random seed."""
    import ast

    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.func.id}"
        for path in sorted((ROOT / "provisioner" / "planner").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id
        in {"open", "print", "input", "hash", "id", "eval", "exec", "__import__", "globals"}
    ]
    assert calls == []
