"""MIG layouts: the instances that a GPU can be divided into, and the commands that do it.

Profiles, placements and sizes are those of NVIDIA's MIG User Guide, section "Supported MIG
Profiles".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class MigProfile(NamedTuple):
    """A kind of GPU instance: its compute slices, its memory slices, and the memory slices that it can begin at."""

    compute: int
    memory: int
    starts: tuple[int, ...]


_SEVENTHS = {
    "1g": MigProfile(1, 1, (0, 1, 2, 3, 4, 5, 6)),
    "1g double": MigProfile(1, 2, (0, 2, 4, 6)),
    "2g": MigProfile(2, 2, (0, 2, 4)),
    "3g": MigProfile(3, 4, (0, 4)),
    "4g": MigProfile(4, 4, (0,)),
    "7g": MigProfile(7, 8, (0,)),
}
_QUARTERS = {
    "1g": MigProfile(1, 1, (0, 1, 2, 3)),
    "2g": MigProfile(2, 2, (0, 2)),
    "4g": MigProfile(4, 4, (0,)),
}
_SIZES_GB = {
    "A100-40": (5, 10, 10, 20, 20, 40),
    "A100-80": (10, 20, 20, 40, 40, 80),
    "H100-80": (10, 20, 20, 40, 40, 80),
    "H100-94": (12, 24, 24, 47, 47, 94),
    "H100-96": (12, 24, 24, 48, 48, 96),
    "H200-141": (18, 35, 35, 71, 71, 141),
    "A30-24": (6, 12, 24),
}
"""Memory in the names of these profiles, by model, in GB."""
PROFILES = {
    model: {
        f"{kind.split()[0]}.{gb}gb": profile
        for (kind, profile), gb in zip(
            (_QUARTERS if model == "A30-24" else _SEVENTHS).items(), sizes, strict=True
        )
    }
    for model, sizes in _SIZES_GB.items()
}
"""Profiles by model and name; the last one is the whole GPU."""
GPU_NAMES = {
    "A100-40": "A100.*40GB",
    "A100-80": "A100.*80GB",
    "H100-80": "H100 (80GB|PCIe)",
    "H100-94": "H100( NVL)?$",
    "H100-96": "GH200 (120|480)GB|H100.* 96GB|H20$",
    "H200-141": "H200( NVL)?$",
    "A30-24": "A30$",
}
"""Name of the GPU in ``nvidia-smi``, without ``NVIDIA``: an extended regular expression by model."""


def with_media(model: str) -> tuple[str, ...]:
    """Return the profiles with the media engines, of which a GPU has one."""
    smallest, second = list(PROFILES[model])[:2]
    return (f"{smallest}+me", f"{second}+me") if model == "A30-24" else (f"{smallest}+me",)


def mistake(model: str, layout: Sequence[str]) -> str:
    """Return the reason why a GPU of this model cannot have these instances, or "" if it can."""
    profiles = PROFILES[model]
    whole = [*profiles.values()][-1]
    plain = [name.removesuffix("+me") for name in layout]
    for name in layout:
        if name not in (known := (*profiles, *with_media(model))):
            return f"{model} has no MIG profile `{name}`: choose from {', '.join(known)}"
    if sum(name.endswith("+me") for name in layout) > 1:
        return "a GPU has one instance with `+me`: write it once"
    if (compute := sum(profiles[name].compute for name in plain)) > whole.compute:
        return f"{compute} compute slices, and a GPU has {whole.compute}: leave instances out"
    if (memory := sum(profiles[name].memory for name in plain)) > whole.memory:
        return f"{memory} memory slices, and a GPU has {whole.memory}: leave instances out"
    if not _placed(
        sorted((profiles[name] for name in plain), key=lambda each: -each.memory), frozenset()
    ):
        return "the instances cannot be placed: a profile begins only at certain memory slices; choose others"
    return ""


def _placed(rest: Sequence[MigProfile], taken: frozenset[int]) -> bool:
    """Return True if there is a place for each of these profiles beside the memory slices that are taken."""
    if not rest:
        return True
    places = (frozenset(range(start, start + rest[0].memory)) for start in rest[0].starts)
    return any(_placed(rest[1:], taken | place) for place in places if not place & taken)


def memory_gb(name: str) -> int:
    """Return the memory of an instance by the name of its profile."""
    found = re.fullmatch(r"\dg\.(\d+)gb(\+me)?", name)
    return int(found[1]) if found else 0


def counted(layout: Iterable[str]) -> str:
    """Return a layout in words: ``3g.20gb, 2 of 1g.5gb``."""
    return ", ".join(name if n == 1 else f"{n} of {name}" for name, n in Counter(layout).items())


def commands(model: str, layout: Sequence[str], nodes: Sequence[str]) -> str:
    """Return the arm of the script's ``case`` with which root divides all GPUs of this model on these nodes."""
    largest = sorted(layout, key=lambda name: -PROFILES[model][name.removesuffix("+me")].memory)
    listed = "nvidia-smi --query-gpu=index,name --format=csv,noheader"
    # names: the short one and the full one
    arm = "|".join(rf"{pattern}\ *|*\ {pattern}" for pattern in nodes)
    return f"""\
# ---- {model}: {counted(layout)} on each GPU
{arm})
    gpus=$({listed} | sed -En 's/, (.* )?({GPU_NAMES[model]}).*//p')
    if [ -z "$gpus" ]; then
        echo 'no GPU named {GPU_NAMES[model]} ({model}): correct `gpu_model` in `mig`. This node has:' >&2
        nvidia-smi -L >&2
        exit 1
    fi
    for gpu in $gpus; do
        nvidia-smi -i "$gpu" -mig 1
        nvidia-smi mig -i "$gpu" -dci || true     # there may be no instance yet
        nvidia-smi mig -i "$gpu" -dgi || true
        nvidia-smi mig -i "$gpu" -cgi {",".join(largest)} -C
    done
    nvidia-smi -L ;;
"""


HEAD = """\
#!/bin/sh
# MIG layout for drones at site {site}: `provisioner render mig --site {site}`. Run it as root on each node.
#
# - Nothing may run on these GPUs: drain the node first, and stop what holds them open (nvidia-persistenced, dcgm,
#   monitoring). Each change of a layout ends all work on the GPU.
# - The mode may need a reset (`nvidia-smi -i N --gpu-reset`) or, in a virtual machine, a reboot. A100 keeps it over a
#   reboot, H100 does not. Neither keeps the instances: run this at each boot, before the batch system starts.
# - With MIG on and one instance of all slices (7g) a GPU is 9 % slower: turn MIG on only to divide GPUs.
# - Back: `nvidia-smi mig -dci; nvidia-smi mig -dgi; nvidia-smi -mig 0`.
set -e

# The short name and the full one: the first layout applies that has a pattern for either.
names="$(hostname -s) $(hostname -f 2>/dev/null || hostname)"
case $names in
"""
TAIL = """\
*)
    echo "no entry for this host ($names): name it under \\`nodes\\` in \\`mig\\`, and render the script again" >&2
    exit 1 ;;
esac
"""


def script(site: str, layouts: Iterable[tuple[str, Sequence[str], Sequence[str]]]) -> str:
    """Return the administrator's script for layouts: model, names of profiles, patterns of nodes."""
    return HEAD.format(site=site) + "\n".join(commands(*layout) for layout in layouts) + TAIL
