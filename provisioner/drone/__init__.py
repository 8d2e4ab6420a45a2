"""Scripts that run on a worker node: POSIX shell, and Python where the node has it; no dependency of ours.

Handed out as bytes, because sites ship it.
"""

from __future__ import annotations

import io
import re
import shlex
import tarfile
from collections.abc import Collection, Mapping
from importlib import resources

from provisioner.model import NVIDIA, WHOLE_GPU, StartOrder

GPU_CHECK_EXITS = (71, 72)
"""Exit codes of a drone whose check of its GPUs failed or hung."""
_INCLUDE = re.compile(rb"^.*# @include (?P<name>[a-z_]+\.(sh|py))$", re.MULTILINE)
_COMMENT = re.compile(rb"^(?: *#(?!!| limit: ).*)?\n", re.MULTILINE)
"""A blank line, or a comment on a line of its own, unless it names an interpreter or the limit of a check."""
_DOCSTRING = re.compile(rb'^( *)"""(?:[^"]|"(?!""))*"""$', re.MULTILINE)


def script(name: str) -> bytes:
    """Return a drone's script, complete in one file: ``script("condor_drone.sh")``.

    A line that ends in ``# @include NAME`` is replaced by that file. Unreplaced it is a command
    that fails, so a script taken from the source tree as it is checks no GPU and therefore accepts
    no job. Blank lines, comments and docstrings are left out: some sites limit the size of what
    they ship.
    """
    text = without_comments(resources.files(__package__).joinpath(name).read_bytes())
    if name.endswith(".py"):
        text = _DOCSTRING.sub(rb'\1""', text)
    return _INCLUDE.sub(lambda found: script(found["name"].decode()).rstrip(b"\n"), text)


def without_comments(text: bytes) -> bytes:
    """Return a script without blank lines and without comments on lines of their own, also in here-documents."""
    return _COMMENT.sub(b"", text)


def exports(env: Mapping[str, str]) -> list[str]:
    """Return lines of a shell script that set these variables, whatever is in them."""
    return [f"export {name}={shlex.quote(value)}" for name, value in env.items()]


def archive(files: Mapping[str, bytes], executable: Collection[str] = ()) -> bytes:
    """Return a tar archive of private files that is equal for equal content: no times, no account names."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o700 if name in executable else 0o600
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def environment(order: StartOrder) -> Mapping[str, str]:
    """Return the environment that every drone gets, wherever it runs (``docs/internals/drone.md``).

    Its site adds ``DRONE_DIR`` and the GPUs of the drone; the overlay adds its part
    (:class:`provisioner.model.Bootstrap`).
    """
    kind = order.type
    published = [f"{name}={expression}" for name, expression in kind.published.items()]
    values: Mapping[str, object] = {
        "DRONE_ID": order.drone_id,
        "DRONE_SITE": kind.site,
        "DRONE_TYPE": kind.name,
        "DRONE_GPUS": -(-kind.gpu_milli // WHOLE_GPU),
        "DRONE_GPU_MILLI": kind.gpu_milli,
        "DRONE_CPUS": kind.cpus,
        "DRONE_MEMORY_MIB": kind.memory_mib,
        "DRONE_DISK_MIB": kind.disk_mib,
        "DRONE_VRAM_MIB": kind.vram_mib,
        "DRONE_SHARING": kind.sharing.value,
        "DRONE_SHARES": kind.shares,
        "DRONE_VRAM_POOL": "1" if kind.vram_pool else None,
        "DRONE_VENDOR": kind.vendor if kind.vendor != NVIDIA else None,
        "DRONE_TARGET": kind.gpu_target or None,
        "DRONE_DCGM_JOBS": kind.dcgm_jobs or None,
        "DRONE_AD": " ".join(published) or None,
        "DRONE_KEPT_CPUS": kind.kept_cpus,
        "DRONE_KEPT_MEMORY_MIB": kind.kept_memory_mib,
        "DRONE_KEPT_DISK_MIB": kind.kept_disk_mib,
        "DRONE_JOB_FILTER": order.job_filter,
        "DRONE_IDLE_S": round(order.idle_timeout_s),
        "DRONE_GRACE_S": round(order.grace_s),
        "DRONE_WALLTIME_S": int(kind.walltime_s),
        "DRONE_EPOCH": order.epoch or None,
    }
    return {name: str(value) for name, value in values.items() if value is not None}
