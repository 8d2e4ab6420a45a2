"""Where the files of drones are kept on the submitter's host: what they take along, what they leave."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from adapters.htcondor.site.cluster import Submission
from provisioner.model import DroneId

KEPT_S = 3600.0
"""Untouched for so long, files that nobody needs any more are removed: a submit under way may still need younger ones,
and a person may want to read what a drone has left."""


class Shelves:
    """``inputs/<digest>/`` and ``outputs/<drone id>/`` below a site's own directory; mode 0700, files 0600."""

    def __init__(self, root: Path) -> None:
        self.inputs, self.outputs = root / "inputs", root / "outputs"

    def lay_out(self, batch: Submission) -> Path:
        """Write the files of ``batch``, make a directory for each drone; the directory of the files. OSError."""
        for shelf in (self.inputs, self.outputs):
            shelf.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self.inputs / batch.digest
        if target.is_dir():
            os.utime(target)
        else:
            self._write(batch, target)
        for row in batch.rows:
            (self.outputs / row[0]).mkdir(mode=0o700, exist_ok=True)
        return target

    def _write(self, batch: Submission, target: Path) -> None:
        """Complete or not there: made aside, then named."""
        aside = Path(tempfile.mkdtemp(prefix=f".{batch.digest}.", dir=self.inputs))
        for name, content in batch.files.items():
            file = aside / name
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700 if name.endswith(".sh") else 0o600)
            with open(descriptor, "wb") as out:
                out.write(content)
        try:
            aside.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            shutil.rmtree(aside, ignore_errors=True)  # somebody was quicker with the same content

    def has_output(self, drone_id: DroneId) -> bool:
        return any(self._entries(self.outputs / drone_id))

    def tidy(self, inputs_in_use: Collection[str], drones: Collection[DroneId]) -> None:
        """Remove what is neither in use nor listed, once it is old."""
        old = time.time() - KEPT_S
        for shelf, needed in ((self.inputs, set(inputs_in_use)), (self.outputs, set(map(str, drones)))):
            for entry in self._entries(shelf):
                if entry.name not in needed and entry.stat(follow_symlinks=False).st_mtime < old:
                    shutil.rmtree(entry.path, ignore_errors=True)

    def _entries(self, directory: Path) -> Iterable[os.DirEntry[str]]:
        try:
            with os.scandir(directory) as found:
                return list(found)
        except FileNotFoundError:
            return []
