"""Size budgets of the packages, checked by `make lint`.

Sizes are counted in tokens, because lines can be made dense. A package may exceed its budget by
2 %. A budget is raised only in a commit that adds a capability and says what a reader need not
read any more. After code has become smaller or simpler, ``python -m tests.budget --lower`` writes
the new numbers to ``tests/budgets.json``.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import sys
import token
import tokenize
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from radon.complexity import cc_visit

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("budgets.json")
CACHE = ROOT / "var" / "sizes.json"
"""Sizes of files by the digest of their text: to count all takes 6 s, with it a tenth of a second."""
SLACK = 1.02
DENSITY = 8.5
"""Tokens a line that the product may always have."""
MOST_COMPLEX = 20
"""Cyclomatic complexity that a new function may have."""

_LAYOUT = {
    token.NEWLINE,
    token.NL,
    token.INDENT,
    token.DEDENT,
    token.COMMENT,
    token.ENCODING,
    token.ENDMARKER,
}


class Size(NamedTuple):
    """Size of source code without comments and docstrings."""

    tokens: int
    lines: int


def size(source: str) -> Size:
    """Return the tokens of Python source, and the lines that they are on."""
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            documentation.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    tokens = 0
    lines: set[int] = set()
    for found in tokenize.generate_tokens(io.StringIO(source).readline):
        if found.type not in _LAYOUT and found.start[0] not in documentation:
            tokens += 1
            lines.update(range(found.start[0], found.end[0] + 1))
    return Size(tokens, len(lines))


def sizes(files: Collection[Path]) -> dict[Path, Size]:
    """Return the size of each file."""
    known = json.loads(CACHE.read_text()) if CACHE.exists() else {}
    digests = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    now = {
        digest: known.get(digest) or list(size(path.read_text()))
        for path, digest in digests.items()
    }
    if now != known:
        CACHE.parent.mkdir(exist_ok=True)
        unfinished = CACHE.with_name(f"{CACHE.name}.{os.getpid()}")  # others may read it
        unfinished.write_text(json.dumps(now))
        unfinished.replace(CACHE)
    return {path: Size(*now[digest]) for path, digest in digests.items()}


def packages() -> dict[str, list[Path]]:
    """Return the files of each package, of the product and of the tests."""
    found: dict[str, list[Path]] = {"tests": sorted((ROOT / "tests").rglob("*.py"))}
    for path in product():
        folder = path.relative_to(ROOT).parts[:-1]
        name = "/".join(folder[: 3 if folder[:2] == ("adapters", "htcondor") else 2])
        found.setdefault(name, []).append(path)
    return found


def product() -> Iterator[Path]:
    """Yield the files of the product."""
    for top in ("provisioner", "adapters"):
        yield from sorted((ROOT / top).rglob("*.py"))


def complex_functions() -> dict[str, int]:
    """Return the product's functions above the usual complexity, as radon counts it."""
    found = {}
    for path in product():
        for block in cc_visit(path.read_text()):
            if block.letter in "FM" and block.complexity > MOST_COMPLEX:
                found[f"{path.relative_to(ROOT)}:{block.fullname}"] = block.complexity
    return found


def measure() -> dict[str, Any]:
    """Return the present numbers in the form of the file."""
    files = packages()
    size_of = sizes([path for paths in files.values() for path in paths])
    found = {name: [size_of[path] for path in paths] for name, paths in files.items()}
    code = [one for name, all_of_it in found.items() if name != "tests" for one in all_of_it]
    density = sum(one.tokens for one in code) / sum(one.lines for one in code)
    return {
        "tokens": {name: sum(one.tokens for one in some) for name, some in found.items()},
        "tokens_per_line": round(density, 2),
        "complexity": complex_functions(),
    }


def exceeded() -> list[str]:
    """Return a line for each budget that is exceeded."""
    budget, now = json.loads(FILE.read_text()), measure()
    problems = []
    for name, tokens in now["tokens"].items():
        most = budget["tokens"].get(name, 0)
        if tokens > most * SLACK:
            problems.append(f"{name}: {tokens} tokens exceed its budget of {most} by over 2 %")
    if now["tokens_per_line"] > budget["tokens_per_line"] + 0.02:
        problems.append(
            f"the product has {now['tokens_per_line']} tokens a line;"
            f" {budget['tokens_per_line']} are allowed"
        )
    for name, complexity in now["complexity"].items():
        most = budget["complexity"].get(name, MOST_COMPLEX)
        if complexity > most:
            problems.append(f"{name}: complexity {complexity}; at most {most} is allowed")
    return problems


def lower() -> None:
    """Rewrite the budgets to what the code measures now, where that is less."""
    budget, now = json.loads(FILE.read_text()), measure()
    for key in ("tokens", "complexity"):
        now[key] = {
            name: min(value, budget[key].get(name, value))
            for name, value in sorted(now[key].items())
        }
    now["tokens_per_line"] = max(DENSITY, min(now["tokens_per_line"], budget["tokens_per_line"]))
    FILE.write_text(json.dumps(now, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--lower"]:
        lower()
    elif problems := exceeded():
        sys.exit("\n".join(problems))
