"""Runs the unit tests of a package whenever one of its files changes (`make watch`)."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.changed import ROOT, selected

POLL_INTERVAL_S = 0.5


def changed_at() -> dict[Path, float]:
    """Return the modification time of each Python file."""
    folders = ("provisioner", "adapters", "tests")
    return {
        path: path.stat().st_mtime for folder in folders for path in (ROOT / folder).rglob("*.py")
    }


def main() -> None:
    """Poll the files until interrupted."""
    before = changed_at()
    print("waiting for a change; Ctrl-C ends", flush=True)
    while True:
        time.sleep(POLL_INTERVAL_S)
        now = changed_at()
        changed = [path for path in now if now[path] != before.get(path)]
        before = now
        if changed:
            words = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-m",
                "not live and not slow and not matrix",
                *map(str, selected(changed)),
            ]
            subprocess.run(words, cwd=ROOT, check=False)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
