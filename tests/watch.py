"""Runs the unit tests of a package whenever one of its files changes (`make watch`)."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
POLL_INTERVAL_S = 0.5
FOLDERS = {"overlay": "htcondor_overlay", "site": "htcondor_site", "shared": "shared_commands"}
"""Tests of packages that are not named like them."""


def changed_at() -> dict[Path, float]:
    """Return the modification time of each Python file."""
    folders = ("provisioner", "adapters", "tests")
    return {
        path: path.stat().st_mtime for folder in folders for path in (ROOT / folder).rglob("*.py")
    }


def tests_of(path: Path) -> Path:
    """Return the test file or folder to run after ``path`` changed."""
    top, *folders = path.relative_to(ROOT).parent.parts
    if top == "tests":
        return path if path.name.startswith("test_") else path.parent
    found = [ROOT / "tests" / FOLDERS.get(folder, folder) for folder in reversed(folders)]
    return next((folder for folder in found if folder.is_dir()), ROOT / "tests" / "planner")


def main() -> None:
    """Poll the files until interrupted."""
    before = changed_at()
    print("waiting for a change; Ctrl-C ends", flush=True)
    while True:
        time.sleep(POLL_INTERVAL_S)
        now = changed_at()
        targets = sorted({str(tests_of(path)) for path in now if now[path] != before.get(path)})
        before = now
        if targets:
            words = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-m",
                "not live and not slow",
                *targets,
            ]
            subprocess.run(words, cwd=ROOT, check=False)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
