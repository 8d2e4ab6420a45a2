"""Two ordinary accounts on this host, of which one may become the other by ``sudo``; the host's files stay as they are.

They exist in a mount namespace of the command that is run there. It needs root, as namespaces of a test do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

CONTROLLER, CONTROLLER_ID = "lab-controller", 64801
DRONES, DRONES_ID = "lab-drones", 64802
_ENTER = """
for file in passwd group shadow sudoers; do mount --bind "$1/$file" "/etc/$file" || exit 99; done
shift
exec setpriv --reuid={uid} --regid={uid} --clear-groups "$@"
"""


def run_as_controller(work: Path, command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
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
        ["unshare", "--mount", "sh", "-c", _ENTER.format(uid=CONTROLLER_ID), "enter", str(etc), *command],
        text=True,
        capture_output=True,
        timeout=120,
        env={**os.environ, "HOME": str(work), "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )
