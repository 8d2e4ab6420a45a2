"""The names and the language of the product: one class per name, one value per constant, plain English.

STYLE.md has the rules. Where the product does not meet a rule yet, a limit here says how far it is; a limit may only
go down.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests import budget

ROOT = Path(__file__).parents[1]
PRODUCT = sorted([*(ROOT / "provisioner").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")])

DUPLICATE_CLASSES = 0
"""Class names that may still be used twice."""
DUPLICATE_CONSTANTS = 0
"""Names of constants that may still have two values."""
QUESTION_DOCSTRINGS = 0
"""Docstrings that may still begin with a question word."""
PHRASES = {
    r"\bis there already\b": 0,
    r"\bcomes? of\b": 0,
    r"\bnobody knows\b": 0,
    r"\b(he|his|him)\b": 0,
    r"\bwhoever\b": 0,
    r"\bseams?\b": 0,
    r"\ba drone goes\b|\bdrones go\b": 0,
    r"\bstands? (before|for so long)\b": 0,
    r"\bfor nothing\b": 0,
    r"\bwithout a word\b": 0,
}
"""Phrases of STYLE.md that messages, ``--help`` and docs may still contain, with how often."""


@functools.cache
def trees() -> tuple[tuple[Path, ast.Module], ...]:
    return tuple((path, ast.parse(path.read_text())) for path in PRODUCT)


def test_a_class_name_is_used_once_in_the_product() -> None:
    places = defaultdict(list)
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert len(twice) <= DUPLICATE_CLASSES, twice


def test_a_constant_has_one_value_in_the_product() -> None:
    values = defaultdict(set)
    for _, tree in trees():
        for node in tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z0-9_]+", target.id):
                values[target.id].add(ast.unparse(node.value) if node.value else "")
    several = {name: found for name, found in values.items() if len(found) > 1}
    assert len(several) <= DUPLICATE_CONSTANTS, several


def test_docstrings_do_not_begin_with_a_question_word() -> None:
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if re.match(r"(What|Who|Whose|Whether|Which|How|Of)\b", text):
                    found.append(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert len(found) <= QUESTION_DOCSTRINGS, "\n".join(found[:50])


@functools.cache
def prose() -> tuple[tuple[str, str], ...]:
    """Return the docs, and the string literals of the product that are read by people."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        found.append((str(page.relative_to(ROOT)), text))
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.value))
    return tuple(found)


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases_that_the_style_guide_forbids_become_fewer(phrase: str) -> None:
    found = [f"{place}: {text[:100]!r}" for place, text in prose() for _ in re.finditer(phrase, text, re.IGNORECASE)]
    assert len(found) <= PHRASES[phrase], "\n".join(found)


def test_packages_stay_within_their_budgets() -> None:
    assert not budget.exceeded()


def test_a_package_above_its_budget_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(budget.BUDGETS, "provisioner/planner", (1, 10))
    monkeypatch.delitem(budget.BUDGETS, "provisioner/store")
    assert [line.partition(":")[0] for line in budget.exceeded()] == ["provisioner/planner"] * 2 + ["provisioner/store"]
