"""Where the files of drones are kept on the host that the tools run on: what they take along, what they leave.

The same places as :class:`adapters.htcondor.site.shelves.Shelves` has, reached by commands.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from adapters.htcondor.site.cluster import Submission
from adapters.htcondor.site.shelves import KEPT_S
from adapters.shared.commands import files
from adapters.shared.commands.runner import Runner
from provisioner.interfaces import UnavailableError
from provisioner.model import DroneId, FaultKind

_ENTRY = re.compile(r"(inputs|outputs)/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,150}")

_LAY_OUT = """\
set -eu
umask 077
cd -- "$1"
touch "inputs/$2"
mkdir -p outputs
while read -r drone; do mkdir -p "outputs/$drone"; done
pwd
"""
_WITHOUT_OUTPUT = """\
set -eu
umask 077
mkdir -p -- "$1/outputs"
cd -- "$1/outputs"
while read -r drone; do
    mkdir -p "$drone"
    [ -n "$(ls -A "$drone")" ] || echo "$drone"
done
"""
_OLD = 'cd -- "$1" 2>/dev/null || exit 0; exec find . -mindepth 2 -maxdepth 2 -type d -mmin "+$2"'


class ToolShelves:
    """``inputs/<digest>/`` and ``outputs/<drone id>/`` below ``root``; mode 0700, files 0600."""

    def __init__(self, runner: Runner, root: str, deadline_s: float) -> None:
        self._runner, self._root, self._deadline_s = runner, root, deadline_s

    async def lay_out(self, batch: Submission) -> tuple[str, str]:
        """Put the files of ``batch`` there, make a directory for each drone; the absolute paths of the files and of
        the directories. ValueError for names that cannot be."""
        inputs = f"{self._root}/inputs/{batch.digest}"
        scripts = [name for name in batch.files if name.endswith(".sh")]
        await files.put(self._runner, inputs, batch.files, executable=scripts, deadline_s=self._deadline_s)
        lines = await self._script(_LAY_OUT, [batch.digest], (row[0] for row in batch.rows))
        root = lines[-1] if lines else ""
        if not root.startswith("/"):
            raise UnavailableError(f"{self._root}: no place for files there", FaultKind.CONFIG)
        return f"{root}/inputs/{batch.digest}", f"{root}/outputs"

    async def without_output(self, drones: Collection[DroneId]) -> Collection[DroneId]:
        """Those of ``drones`` that have left nothing yet; each has a directory then."""
        if not drones:
            return ()
        empty = set(await self._script(_WITHOUT_OUTPUT, [], drones))
        return [drone_id for drone_id in drones if drone_id in empty]

    async def tidy(self, inputs_in_use: Collection[str], drones: Collection[DroneId]) -> None:
        """Remove what is neither in use nor listed, once it is old."""
        needed = {*(f"inputs/{name}" for name in inputs_in_use), *(f"outputs/{each}" for each in drones)}
        for line in await self._script(_OLD, [str(round(KEPT_S / 60))], ()):
            entry = line.removeprefix("./")
            if _ENTRY.fullmatch(entry) and entry not in needed:
                await files.remove(self._runner, f"{self._root}/{entry}", deadline_s=self._deadline_s)

    async def _script(self, script: str, words: Iterable[str], lines: Iterable[str]) -> list[str]:
        done = await self._runner.run(
            ["sh", "-c", script, "shelves", self._root, *words],
            stdin="".join(f"{line}\n" for line in lines).encode(),
            deadline_s=self._deadline_s,
        )
        if done.code:
            raise UnavailableError(f"{self._root}: {done.said}")
        return done.out.decode(errors="replace").splitlines()
