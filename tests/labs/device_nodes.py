"""A /dev of a test's own: device nodes as on a node with GPUs, in a user and mount namespace, without root.

The nodes are /dev/zero under other names, so that each can be opened where nothing forbids it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

GPU_NODES = (
    *("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "kfd", "dri/card0", "dri/renderD128"),
    *(f"nvidia-caps/nvidia-cap{minor}" for minor in (1, 12, 13, 21, 22)),
)
"""Two NVIDIA GPUs, what all of them share, an AMD GPU, and two MIG instances of the first GPU."""

_KEPT = ("null", "zero", "full", "random", "urandom", "tty")

_SET_UP = """
set -e
dev=$1 uid=$2 gid=$3
shift 3
mount -t tmpfs -o mode=755 none "$dev"
for node in {kept}; do : >"$dev/$node"; mount --bind "/dev/$node" "$dev/$node"; done
ln -s /proc/self/fd "$dev/fd"
mkdir -m 1777 "$dev/shm"
mkdir "$dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 none "$dev/pts"
ln -s pts/ptmx "$dev/ptmx"
mkdir "$dev/dri" "$dev/nvidia-caps"
for node in {nodes}; do : >"$dev/$node"; mount --bind /dev/zero "$dev/$node"; done
for node in {closed}; do mount -o remount,bind,nodev,nosuid,noexec "$dev/$node"; done
mount --rbind "$dev" /dev
{more}
exec unshare --user --map-user="$uid" --map-group="$gid" -- "$@"
"""


def with_device_nodes(
    root: Path,
    uid: int,
    gid: int,
    *,
    nodes: Iterable[str] = GPU_NODES,
    closed: Iterable[str] = (),
    binds: Mapping[Path, str] = {},
    namespaces: bool = True,
) -> Sequence[str]:
    """Return the beginning of a command that runs the rest of it with these nodes in /dev, as ``uid`` and ``gid``.

    ``root``: an empty directory. ``closed``: nodes that cannot be opened, as by a site's device
    filter. ``binds``: a file or directory to be seen elsewhere. ``namespaces=False``: the kernel
    refuses further user namespaces.
    """
    more = [f"mount --bind {shlex.quote(str(path))} {where}" for path, where in binds.items()]
    if not namespaces:
        more.append("echo 1 >/proc/sys/user/max_user_namespaces")  # for the one that follows
    text = _SET_UP.format(
        kept=" ".join(_KEPT), nodes=" ".join(nodes), closed=" ".join(closed), more="\n".join(more)
    )
    return ("unshare", "-Urm", "sh", "-c", text, "devices", str(root), str(uid), str(gid))


def nvidia_smi(mig: bool = False) -> str:
    """Return a program that answers ``nvidia-smi -L`` and ``-q`` for two GPUs that HTCondor simulates.

    ``mig``: for one GPU with the two MIG instances that HTCondor simulates.
    """
    uuids = [f"GPU-{first}-4445-5667-899a-abbccddeeff0" for first in ("a0223334", "b1223334")]
    listing, details = "", ""
    for index, uuid in enumerate(uuids[: 1 if mig else 2]):
        listing += f"GPU {index}: NVIDIA A100-SXM4-40GB (UUID: {uuid})\n"
        details += f"\nGPU 00000000:{index + 1:02d}:00.0\n    Product Name                          : NVIDIA A100\n"
        for device, instance in enumerate((1, 2) if mig else ()):
            listing += f"  MIG 3g.20gb     Device  {device}: (UUID: MIG-{uuid}/{device}/0)\n"
            details += (
                f"    MIG Device\n        Index                             : {device}\n"
                f"        GPU Instance ID                   : {instance}\n"
                "        Compute Instance ID               : 0\n"
            )
        details += f"    GPU UUID                              : {uuid}\n"
        details += (
            f"    Minor Number                          : {index}\n    Processes              "
            "               : None\n"
        )
    return f"#!/bin/sh\ncase $1 in -L) cat <<'L'\n{listing}L\n;; -q) cat <<'Q'\n{details}Q\n;; *) exit 1 ;; esac\n"


MIG_MINORS = (
    "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi2/access 21\n"
    "gpu0/gi2/ci0/access 22\n"
)
"""Content of /proc/driver/nvidia-caps/mig-minors for these instances."""
