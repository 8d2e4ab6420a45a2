"""Two ordinary accounts on this host, of which one may become the other by ``sudo``; the host's files stay as they are.

They exist in a mount namespace of the command that is run there. It needs root, as namespaces of a
test do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

CONTROLLER, CONTROLLER_ID = "lab-controller", 64801
DRONES, DRONES_ID = "lab-drones", 64802
_ENTER = """
for file in passwd group shadow sudoers; do mount --bind "$1/$file" "/etc/$file" || exit 99; done
shift
exec setpriv --reuid={uid} --regid={uid} --clear-groups "$@"
"""


def run_as_controller(
    work: Path, command: Sequence[str], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as the controller's account, for which ``sudo -u lab-drones`` needs no password."""
    if os.geteuid() != 0:
        pytest.skip("other accounts need root")
    if shutil.which("sudo") is None:
        pytest.skip("there is no sudo on this host")
    etc = work / "etc"
    etc.mkdir(mode=0o755)
    users = [(CONTROLLER, CONTROLLER_ID), (DRONES, DRONES_ID)]
    passwd = [f"{name}:x:{number}:{number}::/nonexistent:/bin/sh\n" for name, number in users]
    groups = [f"{name}:x:{number}:\n" for name, number in users]
    (etc / "passwd").write_text(Path("/etc/passwd").read_text() + "".join(passwd))
    (etc / "group").write_text(Path("/etc/group").read_text() + "".join(groups))
    (etc / "shadow").touch(mode=0o600)
    (etc / "shadow").write_text("".join(f"{name}:*:19000::::::\n" for name, _ in users))
    (etc / "sudoers").write_text(f"Defaults env_reset\n{CONTROLLER} ALL=({DRONES}) NOPASSWD: ALL\n")
    (etc / "sudoers").chmod(0o440)
    return subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            _ENTER.format(uid=CONTROLLER_ID),
            "enter",
            str(etc),
            *command,
        ],
        text=True,
        capture_output=True,
        timeout=120,
        env={**os.environ, "HOME": str(work), "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )


_HOLD = """
cp -a /etc "$1/etc" && mkdir "$1/lib" "$1/home" "$1/sysusers.d" || exit 99
mount --bind "$1/etc" /etc && mount --bind "$1/lib" /var/lib || exit 99
[ ! -d /usr/lib/sysusers.d ] || mount --bind "$1/sysusers.d" /usr/lib/sysusers.d || exit 99
case $2 in /root/*)  # no other account may pass root's home, where this Python is
    here="$1/root/${2#/root/}"
    mkdir -p "$here" && mount --bind "$2" "$here" && mount --rbind "$1/root" /root || exit 99 ;;
esac
echo ready
exec sleep 3600
"""


@dataclass(frozen=True)
class HostOfAccounts:
    """A mount namespace with an `/etc` and a `/var/lib` of its own, in which accounts can be made."""

    place: Path
    pid: int

    def words(self, account: str = "root") -> Sequence[str]:
        """Words before a command that is to run there, under an account; it is one process with the command."""
        enter = ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", f"--wd={os.getcwd()}"]
        if account == "root":
            return enter
        home = self.place / "home" / account
        become = ["setpriv", f"--reuid={account}", f"--regid={account}", "--init-groups"]
        return [*enter, *become, "env", f"HOME={home}", f"USER={account}", f"LOGNAME={account}"]

    def run(self, script: str, account: str = "root", cwd: Path | None = None) -> str:
        """Return what a script prints, all of whose commands have to succeed."""
        enter = [*self.words(account)]
        enter[2] = f"--wd={cwd or os.getcwd()}"
        done = subprocess.run(
            [*enter, "bash", "-ec", script], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def add(self, account: str) -> Path:
        """Make an ordinary account; return its home."""
        home = self.place / "home" / account
        self.run(f"useradd --create-home --home-dir {home} {account} && chmod 711 {home}")
        return home


@contextmanager
def host_of_accounts(place: Path) -> Iterator[HostOfAccounts]:
    """Make such a namespace below a directory that every account may pass. It goes with its last process."""
    if os.geteuid() != 0:
        pytest.skip("other accounts need root")
    if shutil.which("sudo") is None:
        pytest.skip("there is no sudo on this host")
    command = ["unshare", "--mount", "sh", "-c", _HOLD, "hold", str(place), sys.base_prefix]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "ready\n"
            yield HostOfAccounts(place, holder.pid)
        finally:
            holder.kill()
