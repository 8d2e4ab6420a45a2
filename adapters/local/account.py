"""Drones under an account of their own: what the site does as that account, by ``sudo``.

The controller's account needs one rule: ``provisioner ALL=(gpu-drones) NOPASSWD: ALL``. It then can
do nothing as root.
"""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Mapping
from pathlib import Path

from provisioner.drone import archive
from provisioner.values import frozen

_SUDO_LIMIT_S = 10.0
_TAGGED = Path(__file__).parents[1] / "shared" / "tagged.sh"
_UNPACK = 'umask 077 && mkdir "$1" && exec tar -xf - -C "$1"'


class DroneAccountError(OSError):
    """A command could not be run as the drones' account; the message has the reason and the repair."""


@frozen
class DroneAccount:
    """The account that drones run under."""

    name: str

    def command(self, *words: str) -> list[str]:
        """Return a command line that runs ``words`` as this account."""
        return ["sudo", "-n", "-H", "-u", self.name, "--", *words]

    def run(self, *words: str, data: bytes = b"") -> None:
        """Run a command as this account. Raises :class:`DroneAccountError`."""
        try:
            done = subprocess.run(
                self.command(*words), input=data, capture_output=True, timeout=_SUDO_LIMIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DroneAccountError(
                f"nothing can be run as {self.name}: {error}. Install sudo"
            ) from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
            raise DroneAccountError(f"`{words[0]}` as {self.name} failed: {said}")

    def check(self, root: Path) -> str:
        """Return why no drone could run under this account in ``root``, with the repair; empty if one could."""
        try:
            pwd.getpwnam(self.name)
        except KeyError:
            return f"there is no account {self.name}. Create it: useradd --system {self.name}"
        try:
            self.run("true")
        except DroneAccountError as error:
            return f"{error}. Allow it in sudoers: `CONTROLLER ALL=({self.name}) NOPASSWD: ALL`"
        try:
            self.run("test", "-x", f"{root}/.")
        except DroneAccountError:
            return f"{self.name} cannot enter {root}. Let it pass through that directory and those above it"
        return ""

    def unpack(self, directory: Path, files: Mapping[str, bytes]) -> None:
        """Make a directory of this account, which nobody else can enter, with ``files`` in it."""
        self.run("sh", "-c", _UNPACK, "sh", str(directory), data=archive(files))

    def empty(self, directory: Path) -> None:
        """Remove everything in a directory of this account."""
        self.run("find", str(directory), "-mindepth", "1", "-delete")

    def kill(self, drone_id: str) -> None:
        """Kill the processes of a drone that run under this account. Raises :class:`DroneAccountError` if some stay."""
        self.run("sh", "-s", drone_id, data=_TAGGED.read_bytes() + b'\nkill_tagged "$1"\n')
