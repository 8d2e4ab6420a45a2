"""Size budgets of the packages, checked by `make lint`.

A package may grow above its budget only in a commit that raises the budget here and says why. After a package has
become smaller, its budget is lowered with ``python -m tests.budget --lower``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGETS = {
    "provisioner/*.py": (18, 4350),
    "adapters/*.py": (1, 1),
    "adapters/htcondor/*.py": (4, 666),
    "tests": (390, 63200),
    "provisioner/adapter_tests": (3, 756),
    "provisioner/cli": (19, 6282),
    "provisioner/config": (9, 2744),
    "provisioner/controller": (12, 2913),
    "provisioner/drone": (4, 1310),
    "provisioner/migrate": (9, 1602),
    "provisioner/monitoring": (4, 618),
    "provisioner/planner": (22, 6429),
    "provisioner/simulator": (16, 4400),
    "provisioner/store": (9, 2489),
    "provisioner/web": (13, 2475),
    "adapters/embedded": (4, 1131),
    "adapters/kubernetes": (11, 2185),
    "adapters/local": (6, 1150),
    "adapters/openstack": (12, 2920),
    "adapters/shared": (11, 1205),
    "adapters/slurm": (15, 4250),
    "adapters/htcondor/overlay": (13, 3215),
    "adapters/htcondor/site": (10, 2715),
}
"""Most Python files and most lines by package, comments and blank lines included."""


def measure(package: str) -> tuple[int, int]:
    """Return the number of Python files and of lines of a package, or of a pattern of files."""
    path = ROOT / package
    files = list(path.rglob("*.py")) if path.is_dir() else list(ROOT.glob(package))
    return len(files), sum(len(file.read_text().splitlines()) for file in files)


def packages() -> list[str]:
    """Return the packages that need a budget."""
    found = ["provisioner/*.py", "adapters/*.py", "adapters/htcondor/*.py", "tests"]
    for parent in ("provisioner", "adapters", "adapters/htcondor"):
        children = sorted(path for path in (ROOT / parent).iterdir() if (path / "__init__.py").exists())
        found += [str(child.relative_to(ROOT)) for child in children if child.name != "htcondor"]
    return found


def exceeded() -> list[str]:
    """Return a line for each package that exceeds its budget or has none."""
    problems = []
    for package in packages():
        files, lines = measure(package)
        if package not in BUDGETS:
            problems.append(f"{package}: no budget in tests/budget.py; it has {files} files and {lines} lines")
            continue
        most_files, most_lines = BUDGETS[package]
        if files > most_files:
            problems.append(f"{package}: {files} files exceed its budget of {most_files}")
        if lines > most_lines:
            problems.append(f"{package}: {lines} lines exceed its budget of {most_lines}")
    return problems


def lower() -> None:
    """Rewrite the budgets to what the packages measure now, where that is less."""
    now = {package: measure(package) for package in packages()}
    least = {p: tuple(map(min, BUDGETS.get(p, size), size)) for p, size in now.items()}
    table = "".join(f'    "{package}": ({files}, {lines}),\n' for package, (files, lines) in least.items())
    text = Path(__file__).read_text()
    Path(__file__).write_text(re.sub(r"(?<=BUDGETS = \{\n).*?(?=\}\n)", table, text, flags=re.DOTALL))


def main() -> int:
    """Print the packages that exceed their budgets; with ``--lower`` rewrite the budgets instead."""
    if "--lower" in sys.argv[1:]:
        lower()
        return 0
    problems = exceeded()
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
