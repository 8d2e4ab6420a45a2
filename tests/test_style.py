"""The names and the language of the product: one class per name, one value per constant, plain English.

STYLE.md has the rules.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests import budget

ROOT = Path(__file__).parents[1]
PRODUCT = sorted([*(ROOT / "provisioner").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")])

TEXTS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**/*.md",
    "site_configs/**/*.yaml",
    "provisioner/**/*.html",
    "provisioner/**/*.js",
    "provisioner/**/*.y*ml",
)
"""Files that people read, beside the string literals of the product."""
EXCEPTIONS = {"docs": 5, "adapters": 1}
"""Phrases in a folder that STYLE.md replaces. The numbers only go down; HTCondor says "our session id"."""


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


def plain_words() -> re.Pattern[str]:
    """Return a pattern of the phrases in the first column of the table "Plain words"."""
    table = (ROOT / "STYLE.md").read_text().partition("| instead of | write |")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    phrases = [phrase for row in rows for phrase in re.findall("`(.+?)`", row.split("|")[1])]
    assert len(phrases) > 50
    words = "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in phrases)
    return re.compile(rf"(?<![\w.`])({words})\b", re.IGNORECASE)


def prose() -> Iterator[tuple[str, str]]:
    """Yield the docs, templates and string literals that people read, each with its file.

    Docstrings are left to the references: those of options, reasons and verbs are printed there.
    """
    for pattern in TEXTS:
        for path in ROOT.glob(pattern):
            text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
            yield str(path.relative_to(ROOT)), text
    for path, tree in trees():
        nodes = tuple(ast.walk(tree))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and " " in node.value
                and id(node) not in docstrings
            ):
                yield str(path.relative_to(ROOT)), node.value


def test_texts_have_plain_words() -> None:
    found = defaultdict(list)
    pattern = plain_words()
    for file, text in prose():
        for match in pattern.finditer(text):
            begin = max(0, match.start() - 30)
            phrase = text[begin : match.end() + 30].replace("\n", " ")
            found[file.partition("/")[0]].append(f"{file}: {phrase}")
    wrong = [
        line
        for folder, lines in found.items()
        if len(lines) > EXCEPTIONS.get(folder, 0)
        for line in lines
    ]
    assert not wrong, "\n".join(wrong)


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
