"""Whether an interpreter has pyslurm, found out without loading it: that may end a process, and needs the cluster."""

from __future__ import annotations

import importlib.util
import subprocess

NEEDED = (
    "the native transport needs pyslurm: pip install 'gpu-drone-provisioner[slurm-native]' on a host of the cluster"
    " with a C compiler, Slurm's headers and libslurmfull.so, of the release of Slurm that this pyslurm is for"
)
_DEADLINE_S = 5.0
_QUESTION = (
    "import sys, importlib.util as u; print('old' if sys.version_info < (3, 11) else bool(u.find_spec('pyslurm')))"
)


def lack(python: str) -> str:
    """What the interpreter (this one, if none is named) lacks on this host; "" where nothing can be said against it."""
    if not python:
        return "" if importlib.util.find_spec("pyslurm") else NEEDED
    try:
        asked = [python, "-c", _QUESTION]
        said = subprocess.run(asked, cwd="/", capture_output=True, stdin=subprocess.DEVNULL, timeout=_DEADLINE_S)
    except subprocess.TimeoutExpired:
        return ""
    except OSError as error:
        return f"{python} cannot be started: {error.strerror or error}"
    match said.stdout.strip():
        case b"True":
            return ""
        case b"old":
            return f"{python} is older than Python 3.11"
        case b"False":
            return f"{python} has no pyslurm: {NEEDED}"
        case _:
            return f"{python} is no Python (exit status {said.returncode})"
