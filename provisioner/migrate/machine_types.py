"""Machine types of TARDIS as drone types: names, sizes, GPUs, walltimes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from provisioner.config.units import NAME_PATTERN, format_duration, format_size
from provisioner.migrate.report import KeyReader
from provisioner.migrate.yaml11 import YamlValue
from provisioner.migrate.yaml_writer import YamlBlock, placeholder

_MAX_CPUS = 100_000
_MAX_SIZE_MIB = 1024**3


@dataclass(slots=True)
class MachineType:
    """One of ``MachineTypes``, with what is known about it."""

    theirs: str
    ours: str
    line: int
    cores: int | None = None
    gpus: int = 0
    gpu_key: str = ""
    """The key with the number of GPUs; empty if there is none."""
    gpu_model: str = ""
    """The name in the site's scheduler, not that of the driver."""
    vram_mib: int = 0
    walltime_s: float | None = None
    numbers: dict[str, str] = field(default_factory=dict)
    """Values that TARDIS substitutes in a submit template."""


def our_name(theirs: str, taken: Sequence[str]) -> str:
    """Return a DNS label similar to ``theirs`` that is not in ``taken``."""
    base = re.sub(r"[^a-z0-9]+", "-", theirs.lower()).strip("-")[:60].strip("-") or "unnamed"
    assert re.fullmatch(NAME_PATTERN[1:-1], base)
    name, n = base, 2
    while name in taken:
        name, n = f"{base[:58].strip('-')}-{n}", n + 1
    return name


def renamed(theirs: str, ours: str) -> str:
    """Return the message about a new name; empty if it is the old one."""
    return "" if ours == theirs else f"`{theirs}` is called `{ours}` here: names are DNS labels"


def machine_types(section: KeyReader, ours: str) -> list[MachineType]:
    """Return the types that TARDIS uses."""
    setting = section.take("MachineTypes")
    found: list[MachineType] = []
    for one in setting.items if setting is not None else []:
        name = one.text
        if name is None:
            section.notes.needed(one.line, section.name("MachineTypes"), f"{ours}: types", "a name is wanted here")
        elif name not in [t.theirs for t in found]:
            made = MachineType(name, our_name(name, [t.ours for t in found]), one.line)
            found.append(made)
            key = f"{section.name('MachineTypes')}.{name}"
            section.notes.converted(one.line, key, f"{ours}: types.{made.ours}", renamed(name, made.ours))
    if not found:
        section.needed("MachineTypes", f"{ours}: types", "no machine type: write one")
    return found


def template_numbers(sizes: KeyReader) -> dict[str, str]:
    """Return the values that TARDIS substitutes in a submit template."""
    settings = {"Cores": 1, "Memory": 1024, "Disk": 1024 * 1024}
    found = {name: setting.number for name in settings if (setting := sizes.peek(name)) is not None}
    return {name: f"{number * settings[name]:g}" for name, number in found.items() if number}


def drone_type(machine: MachineType, sizes: KeyReader, ours: str, *, hidden_gpus: bool) -> YamlBlock:
    """Return the drone type of ``machine``, whose GPUs are known already.

    ``hidden_gpus``: TARDIS's configuration does not tell its GPUs.
    """
    at = f"{ours}: types.{machine.ours}"
    block = YamlBlock()
    _put_gpus(machine, block, sizes, at, hidden=hidden_gpus)
    remedy = "a whole number of cores is wanted"
    what = "CPU cores of one drone"
    machine.cores = sizes.put(
        block, "Cores", f"{at}.cpus", lambda value: value.whole(_MAX_CPUS), what=what, remedy=remedy
    )
    for theirs, key in (("Memory", "memory"), ("Disk", "disk")):
        setting = sizes.take(theirs)
        size_mib = _size_mib(setting)
        if size_mib:
            block.put(key, format_size(size_mib))
            sizes.converted(theirs, f"{at}.{key}", f"{format_size(size_mib)} of each drone")
        else:
            block.put(key, placeholder(f"{key} of one drone, as 20 GiB"))
            sizes.needed(theirs, f"{at}.{key}", f"write it, as `{key}: 20 GiB`")
    sizes.drop_rest("TARDIS knows Cores, Memory and Disk; write further attributes of the slot under `ad`")
    if machine.walltime_s is not None:
        block.put("walltime", format_duration(machine.walltime_s))
    return block


def _size_mib(setting: YamlValue | None) -> int:
    """Return GiB in MiB, rounded up; 0 if it is not a valid number."""
    number = setting.number if setting is not None else None
    if number is None or number <= 0 or number > _MAX_SIZE_MIB / 1024:
        return 0
    return max(math.ceil(number * 1024), 1)


def _put_gpus(machine: MachineType, block: YamlBlock, sizes: KeyReader, at: str, *, hidden: bool) -> None:
    notes = sizes.notes
    if not machine.gpus:
        block.put("gpus", placeholder("GPUs of one drone, 0 for a CPU drone") if hidden else 0)
        if hidden:
            remedy = "write their number, 0 for a CPU drone; with GPUs also `vram` and `capability`"
            text = f"only the flavour shows whether it has GPUs: {remedy}"
            notes.needed(machine.line, sizes.path, f"{at}.gpus", text)
        else:
            remedy = "a CPU drone. If it has some, write `gpus`, `vram` and `capability`"
            text = f"TARDIS does not know GPUs and nothing here asks for one: {remedy}"
            notes.changed(machine.line, sizes.path, f"{at}.gpus", text)
        return
    block.put("gpus", machine.gpus)
    if machine.vram_mib:
        block.put("vram", format_size(machine.vram_mib))
    else:
        block.put("vram", placeholder("memory of each GPU, as 40 GiB"))
        notes.needed(machine.line, machine.gpu_key, f"{at}.vram", "jobs ask for GPUs by memory: write it, as `40 GiB`")
    block.put("capability", placeholder("CUDA compute capability, as 8.0"))
    site_model = f"; the site says {machine.gpu_model}" if machine.gpu_model else ""
    block.remark(f"gpu_model: A100-SXM4-40GB     # as `nvidia-smi` names it{site_model}")
    block.remark('driver: "12.4"                # newest CUDA version of the driver')
    text = (
        "jobs ask for GPUs by capability, of which TARDIS knows nothing: write it; and `gpu_model` if jobs ask for it"
    )
    notes.needed(machine.line, machine.gpu_key, f"{at}.capability", text)


_SLURM_TIME = re.compile(r"(?:(\d{1,5})-)?(\d{1,7}(?::\d{1,7}){0,2})")


def slurm_walltime_s(text: str) -> float | None:
    """Return Slurm's ``--time`` (M, M:S, H:M:S, D-H, D-H:M, D-H:M:S) in seconds; None for anything else, and for 0."""
    parts = _SLURM_TIME.fullmatch(text.strip())
    if parts is None:
        return None
    numbers = [int(number) for number in parts[2].split(":")]
    unit_s = 3600 if parts[1] is not None or len(numbers) == 3 else 60
    seconds = int(parts[1] or 0) * 86400
    for number in numbers:
        seconds += number * unit_s
        unit_s //= 60
    return float(seconds) or None
