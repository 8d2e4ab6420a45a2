"""The import contracts hold, and each of them would notice if it did not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest
from typer.main import get_command

from provisioner.answers import QUESTIONS
from provisioner.cli.__main__ import OWN_VERBS, VERBS, LazyVerbs, app

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
        "provisioner/web/pages.py": "import provisioner.cli.options\n",
        "adapters/local/__init__.py": "import provisioner.controller\nimport adapters.embedded\n",
    }
    for name, slip in slips.items():
        path = tree / name
        path.write_text(path.read_text() + slip)
    broken = lint(tree)
    assert broken.returncode != 0
    verdicts = re.findall(r" (KEPT|BROKEN)\b", broken.stdout)
    assert verdicts == ["BROKEN"] * 6, broken.stdout


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


@pytest.mark.parametrize("package", ["answers", "cli", "web"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    """Imports for type checking and those inside of functions count."""
    graph = grimp.build_graph("provisioner", exclude_type_checking_imports=False)
    inside = {name for name in graph.modules if name.startswith(f"provisioner.{package}.")}
    below = {name: graph.find_modules_directly_imported_by(name) & inside for name in inside}
    while free := {name for name, needs in below.items() if not needs}:
        below = {name: needs - free for name, needs in below.items() if name not in free}
    assert not below, "what is left imports itself"


LIGHT = [["--help"], *([verb, "--help"] for verb in VERBS)]
HEAVY = ("provisioner.config.models", "provisioner.planner", "provisioner.simulator", "structlog")
"""Packages that no help needs: each takes a tenth of a second."""


@pytest.mark.parametrize("words", LIGHT, ids=lambda words: words[0])
def test_a_help_imports_few_modules(words: list[str]) -> None:
    program = (
        f"import sys; from provisioner.cli.__main__ import run_verb; run_verb({words!r}); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    modules = done.stderr.split()
    assert not [name for name in modules if name.startswith(HEAVY)]
    own = [name for name in modules if name.startswith("provisioner")]
    assert len(own) <= (12 if words == ["--help"] else 55), own


def test_the_help_has_the_first_line_of_each_verb() -> None:
    group = get_command(app)
    assert isinstance(group, LazyVerbs)
    firsts = {verb: group.get_command(None, verb).help.split("\n\n")[0] for verb in VERBS}
    assert {verb: " ".join(first.split()) for verb, first in firsts.items()} == VERBS
    assert VERBS.keys() == {words.partition(" ")[0] for words in QUESTIONS} | OWN_VERBS.keys()
