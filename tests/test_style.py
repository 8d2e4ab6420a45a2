"""The names and the language of the product: one class per name, one value per constant, plain English.

STYLE.md has the rules.
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

PHRASES = (
    r"\bis there already\b",
    r"\bcomes? of\b",
    r"\bnobody knows\b",
    r"\b(he|his|him)\b",
    r"\bwhoever\b",
    r"\bseams?\b",
    r"\ba drone goes\b|\bdrones go\b",
    r"\bstands? (before|for so long)\b",
    r"\bfor nothing\b",
    r"\bwithout a word\b",
    r"\beats? jobs\b|\bate jobs\b",
    r"\bit said last\b|\bown words?\b|\bnot a word\b",
    r"\bfor ever\b|\bin vain\b|\blive on\b",
    r"\bdoes not get on\b|\blet (it|them) go\b|\bsettles first\b|\btaken care of\b",
)
"""Phrases that STYLE.md forbids in messages, ``--help`` and docs."""


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
    assert not twice


def test_a_constant_has_one_value_in_the_product() -> None:
    values = defaultdict(set)
    for _, tree in trees():
        for node in tree.body:
            target = (
                node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            )
            if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z0-9_]+", target.id):
                value = getattr(node, "value", None)
                values[target.id].add(ast.unparse(value) if value else "")
    several = {name: found for name, found in values.items() if len(found) > 1}
    assert not several


def test_docstrings_do_not_begin_with_a_question_word() -> None:
    """Docstrings of attributes count, too: those of options are in the reference."""
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                text = node.value.value.strip()
                if re.match(r"(What|Who|Whose|Whether|Which|How|Where|Those|Of)\b", text):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text.splitlines()[0]}")
    assert not found, "\n".join(found[:50])


@functools.cache
def prose() -> tuple[tuple[str, str], ...]:
    """Return the docs, and the string literals of the product that are read by people."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        found.append((str(page.relative_to(ROOT)), text))
    for path, tree in trees():
        found.extend(
            (f"{path.relative_to(ROOT)}:{node.lineno}", node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        )
    return tuple(found)


@pytest.mark.parametrize("phrase", PHRASES)
def test_no_text_has_a_phrase_that_the_style_guide_forbids(phrase: str) -> None:
    found = [
        f"{place}: {text[:100]!r}"
        for place, text in prose()
        for _ in re.finditer(phrase, text, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


WRAPPED = ("decisions", "explanation", "how-to", "internals", "tutorial")
"""Folders of pages written by hand: those of the reference have a line for each entry."""
UNWRAPPED = {"CHANGELOG.md", "architecture.md", "h200.md"}
LONGEST_LINE = 120


def test_documents_are_wrapped() -> None:
    """Tables, blocks and lines of one link or picture may be longer."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
    pages += [page for folder in WRAPPED for page in (ROOT / "docs" / folder).glob("*.md")]
    assert len(pages) > 60
    long = []
    for page in pages:
        prose = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for line in prose.splitlines():
            exempt = page.name in UNWRAPPED or re.match(r" *(\||!?\[[^]]*\]\S+$)", line)
            if len(line) > LONGEST_LINE and not exempt:
                long.append(f"{page.relative_to(ROOT)}: {line[:60]}")
    assert not long, "\n".join(long)


def test_packages_stay_within_their_budgets() -> None:
    assert not budget.exceeded()
