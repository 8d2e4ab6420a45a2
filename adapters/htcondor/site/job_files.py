"""Files of drones on the host that submits them: their input and what they leave."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable

from adapters.htcondor.site.submission import SubmitDescription
from adapters.shared.commands import files
from adapters.shared.commands.runner import Runner
from provisioner.interfaces import RejectedError, UnavailableError
from provisioner.model import DroneId, FaultKind

_KEPT_MIN = 60
"""Unneeded files are removed once nobody has touched them for so many minutes. A submit under way may still need
younger ones, and a person may want to read what a drone has left."""
_CLEANUP_INTERVAL_S = 600.0
"""Each poll asks for a cleanup, and each cleanup costs a command."""
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


class JobFiles:
    """``inputs/<digest>/`` and ``outputs/<drone id>/`` below ``root``, with mode 0700 and files of mode 0600.

    ``root`` is an absolute path, or a path below the home of the account that ``runner`` runs commands as.
    """

    def __init__(self, root: str, deadline_s: float) -> None:
        self._root, self._deadline_s = root, deadline_s
        self._cleaned_at = -_CLEANUP_INTERVAL_S

    async def lay_out(self, runner: Runner, batch: SubmitDescription) -> str:
        """Write the files of ``batch``, make a directory for each drone, and return the macros that name the places.

        Raise RejectedError for a file name that cannot be used.
        """
        inputs = f"{self._root}/inputs/{batch.digest}"
        scripts = [name for name in batch.files if name.endswith(".sh")]
        try:
            await files.put(runner, inputs, batch.files, executable=scripts, deadline_s=self._deadline_s)
        except ValueError as error:
            raise RejectedError(str(error), FaultKind.CONFIG) from None
        lines = await self._run(runner, _LAY_OUT, [batch.digest], batch.drone_ids)
        root = lines[-1] if lines else ""
        if not root.startswith("/"):
            raise UnavailableError(f"{self._root}: no place for files there", FaultKind.CONFIG)
        return f"inputs = {root}/inputs/{batch.digest}\noutputs = {root}/outputs\n"

    async def without_output(self, runner: Runner, drones: Collection[DroneId]) -> Collection[DroneId]:
        """Return the drones that have left nothing yet, after making a directory for each of them."""
        if not drones:
            return ()
        empty = set(await self._run(runner, _WITHOUT_OUTPUT, [], drones))
        return [drone_id for drone_id in drones if drone_id in empty]

    async def clean_up(self, runner: Runner, inputs_in_use: Collection[str], drones: Collection[DroneId]) -> None:
        """Remove old files that are neither in use nor of a listed drone, at most every ten minutes."""
        if time.monotonic() - self._cleaned_at < _CLEANUP_INTERVAL_S:
            return
        needed = {*(f"inputs/{name}" for name in inputs_in_use), *(f"outputs/{each}" for each in drones)}
        for line in await self._run(runner, _OLD, [str(_KEPT_MIN)], ()):
            entry = line.removeprefix("./")
            if _ENTRY.fullmatch(entry) and entry not in needed:
                await files.remove(runner, f"{self._root}/{entry}", deadline_s=self._deadline_s)
        self._cleaned_at = time.monotonic()

    async def _run(self, runner: Runner, script: str, words: Iterable[str], lines: Iterable[str]) -> list[str]:
        done = await runner.run(
            ["sh", "-c", script, "job-files", self._root, *words],
            stdin="".join(f"{line}\n" for line in lines).encode(),
            deadline_s=self._deadline_s,
        )
        if done.code:
            raise UnavailableError(f"{self._root}: {done.said}")
        return done.out.decode(errors="replace").splitlines()
