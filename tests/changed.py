"""Runs the unit tests of what changed (`make check`): files that are not committed or not on main."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
FOLDERS = {
    "overlay": ("htcondor_overlay",),
    "site": ("htcondor_site",),
    "shared": ("shared_commands", "adapter_tests"),
    "answers": ("cli", "web"),
    "drone": (
        "test_drone_checks.py",
        "test_gpu_health.py",
        "test_gpu_monitor.py",
        "test_job_wrapper.py",
        "test_mps.py",
    ),
    "benchmarks": ("test_bench_gpu.py", "test_deciding.py", "test_mutants.py"),
    "docs": ("test_docs.py",),
    "templates": ("test_site_template.py",),
    ".github": ("test_workflows.py", "test_public_face.py"),
    "requirements": ("test_public_face.py",),
    "changes.d": ("test_changelog.py",),
    "labs": (),
    "live": (),
}
"""Tests of folders that are not named like them."""
ALWAYS = ("test_style.py", "test_imports.py")
WITH_TESTS = (
    "provisioner",
    "adapters",
    "tests",
    "templates",
    ".github",
    "requirements",
    "changes.d",
)
WITHOUT_CODE = {".md", ".json", ".svg", ".txt", ".yaml", ".yml", ""}


def tests_of(path: Path) -> list[Path] | None:
    """Return the test files and folders to run after ``path`` changed; None stands for all of them."""
    inside = path.relative_to(ROOT)
    top, *folders = inside.parent.parts or [""]
    if top == "tests" and path.name.startswith("test_"):
        return [path] if path.exists() else []
    if top == "docs" or (inside.suffix in WITHOUT_CODE and top not in WITH_TESTS):
        return [TESTS / "test_docs.py"]
    for folder in reversed([top, *folders]):
        found = [TESTS / name for name in FOLDERS.get(folder, (folder,))]
        if folder in FOLDERS or found[0].is_dir():
            return found
    return None


def selected(paths: Iterable[Path]) -> list[Path]:
    """Return the tests of all these files, or all tests where one of them is used everywhere."""
    found: set[Path] = set()
    for path in paths:
        tests = tests_of(path)
        if tests is None:
            return [TESTS]
        found.update(tests)
    return sorted(found | {TESTS / name for name in ALWAYS}) if found else [TESTS]


def changed() -> list[Path]:
    """Return the files that differ from main, and those that git does not know yet."""
    base = next(
        (b for name in ("origin/main", "main") if (b := _git("merge-base", "HEAD", name))), ["HEAD"]
    )
    return [
        ROOT / name
        for name in [
            *_git("diff", "--name-only", base[0]),
            *_git("ls-files", "--others", "--exclude-standard"),
        ]
    ]


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def main() -> int:
    """Run the tests, side by side, without daemons and without the slow ones."""
    tests = [str(path.relative_to(ROOT)) for path in selected(changed())]
    print("unit tests of what changed:", *tests, flush=True)
    words = ["-q", "-n", "2", "--dist", "loadgroup", "-m", "not live and not slow and not matrix"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words, *tests], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
