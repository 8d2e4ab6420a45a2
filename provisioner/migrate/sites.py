"""One site of TARDIS as a site file: quota, machine types, options by type, and executors as our transports.

The sites of the kinds that TARDIS knows derive from :class:`SiteImport`, which copies no options.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from provisioner.config.units import NAME_PATTERN, format_size
from provisioner.formatting import count
from provisioner.migrate.controller import put_header
from provisioner.migrate.source import CHANGED, CONVERTED, NEEDED, KeyReader, YamlValue
from provisioner.migrate.yaml_writer import Scalar, YamlBlock, placeholder
from provisioner.model import SitePolicy
from provisioner.values import define, factory

Option = Scalar | Sequence[Scalar] | Mapping[str, Scalar]
ReadFile = Callable[[str], str | None]
"""Returns the text of a file that the configuration names; None if it cannot be read."""

_UNSUPPORTED = "an option of an adapter that there is none of here: not copied"
_NO_TICK = (
    "there is no such cache: each tick polls once (`policy.interval`, `timeouts.view_max_age`)"
)
_COMMON_KEYS = {
    "max_age": _NO_TICK,
    "StatusUpdate": _NO_TICK,
    "bulk_size": "drones of one type are submitted at once; at most `limits.max_starts_per_tick`",
    "bulk_delay": "calls are not collected: each tick makes one",
}
"""Keys of a site's section that several adapters of TARDIS share, with the reason why they are not needed."""
_ENTRY_KEYS = {
    "drone_minimum_lifetime": "TARDIS drains a drone that has been available for so long. Here a drone leaves when idle"
    " (`policy.idle_timeout`), and one with a `walltime` takes no job that would not end in time: write `walltime` if"
    " the site ends drones",
    "drone_heartbeat_interval": "drones are not polled one by one: each tick polls all drones of a site"
    " (`policy.interval`)",
}
_MAX_DRONES = 1_000_000
_MAX_CPUS = 100_000
_MAX_SIZE_MIB = 1024**3


def our_name(theirs: str, taken: Sequence[str] = ()) -> str:
    """Return a DNS label similar to ``theirs`` that is not in ``taken``."""
    base = re.sub(r"[^a-z0-9]+", "-", theirs.lower()).strip("-")[:60].strip("-") or "unnamed"
    assert re.fullmatch(NAME_PATTERN[1:-1], base)
    name = base
    n = 2
    while name in taken:
        name = f"{base[:58].strip('-')}-{n}"
        n += 1
    return name


def renamed(theirs: str, ours: str) -> str:
    """Return the message about a new name; empty if it is the old one."""
    return "" if ours == theirs else f"`{theirs}` is called `{ours}` here: names are DNS labels"


def drones_in(quota: float, cores: int) -> int:
    """Return how many drones of ``cores`` a limit in cores allows: at least one."""
    return min(max(int(quota // cores), 1), _MAX_DRONES)


@define
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
    walltime: str = ""
    numbers: dict[str, str] = factory(dict)
    """Values that TARDIS substitutes in a submit template."""


class SiteImport:
    """Import of one entry of ``Sites`` with its section: type by type, then what is left of the section."""

    hidden_gpus = False
    """True if TARDIS's configuration cannot tell the GPUs of a type."""
    remarks: tuple[str, ...] = ()
    """Comments for the site file on what TARDIS cannot express."""

    def __init__(
        self, entry: KeyReader, section: KeyReader, name: str, kind: str, read_file: ReadFile
    ) -> None:
        self.entry = entry
        self.section = section
        self.name = name
        self.kind = kind
        self.read_file = read_file
        self.notes = section.notes
        self.file = f"site_configs/{name}.yaml"
        self.ours = f"{self.file}: options"
        self.machines: list[MachineType] = []
        self.types: dict[str, dict[str, Any]] = {}
        """Options by drone type."""

    def machine(self, machine: MachineType, given: KeyReader) -> None:
        given.drop_rest(_UNSUPPORTED)

    def site_options(self, block: YamlBlock) -> None:
        """Write what is left of the section."""
        self.section.drop_rest(_UNSUPPORTED)

    def put(self, machine: MachineType, value: Option, key: str, below: str = "") -> str:
        """Write an option of a type at ``key``, or at ``key.below``, and return its place in our files."""
        options = self.types.setdefault(machine.ours, {})
        if below:
            options.setdefault(key, {})[below] = value
        else:
            options[key] = value
        return ".".join(filter(None, (self.ours, "types", machine.ours, key, below)))

    def text(self, source: str, installed: Collection[str]) -> str:
        block = YamlBlock()
        put_header(block, "site", f"Site {self.name}, from {source}")
        block.put("site", self.name)
        adapter = our_name(self.kind)
        at = f"{self.file}: adapter"
        block.put("adapter", adapter)
        if adapter in installed:
            self.entry.converted("adapter", at)
        else:
            remedy = (
                "keep the file for the time when there is one, and take it out of `sites` until then; or write one"
                " (docs/how-to/add-a-site.md)"
            )
            self.entry.needed("adapter", at, f"no site adapter `{adapter}` is installed: {remedy}")
        types = self._types()
        options = YamlBlock()
        self.site_options(options)
        self.section.drop(_COMMON_KEYS)
        self.section.drop_rest("the adapter of TARDIS has no such option")
        if options_of := {name: given for name, given in self.types.items() if given}:
            options.put("types", options_of)
        block.space()
        block.put("limits", self._limits())
        if self.remarks:
            block.space()
        for remark in self.remarks:
            block.remark(remark)
        for key, value in (("types", types), ("options", options)):
            block.space()
            block.put(key, value)
        return str(block)

    def _quota(self) -> float | None:
        """Return the quota in cores; None if there is no limit or it cannot be read."""
        number = self.entry.peek("quota").number
        return number if number and number > 0 else None

    def _limits(self) -> YamlBlock:
        block = YamlBlock()
        at = f"{self.file}: limits.max_drones"
        quota = self._quota()
        setting = self.entry.take("quota")
        cores = [machine.cores for machine in self.machines if machine.cores]
        no_limit = not setting or setting.number or (not setting.tag and setting.value == math.inf)
        if quota is None and no_limit:
            block.put(
                "max_drones", SitePolicy(self.name).max_drones, "the default; TARDIS had no limit"
            )
            self.entry.changed("quota", at, "no limit in TARDIS; here there always is one")
        elif quota is None or not cores:
            block.put("max_drones", placeholder("most drones at one time"))
            text = "this quota cannot be read: write how many drones may be there"
            if quota is not None:
                text = (
                    f"{quota:g} cores, but the size of no type is known: write a number of drones"
                )
            self.entry.needed("quota", at, text)
        else:
            most = drones_in(quota, min(cores))
            block.put("max_drones", most, f"{quota:g} cores, {min(cores)} each")
            text = f"limits count drones, not cores: {quota:g} cores are at most {count(most, 'drone')} of {min(cores)}"
            if len(set(cores)) > 1:
                text += "; each type has its own `max_drones` too, and a mix of them may have more cores than the quota"
            self.entry.changed("quota", at, text)
        self.entry.drop(_ENTRY_KEYS)
        self.entry.drop_rest("TARDIS knows no such key of a site")
        return block

    def _types(self) -> YamlBlock:
        types = YamlBlock()
        at = f"{self.file}: types"
        setting = self.section.take("MachineTypes")
        key = self.section.name("MachineTypes")
        for one in setting.items:
            name = one.text
            if name is None:
                self.notes.add(NEEDED, one.line, key, "a name is wanted here", at)
            elif name not in [machine.theirs for machine in self.machines]:
                made = MachineType(
                    name, our_name(name, [machine.ours for machine in self.machines]), one.line
                )
                self.machines.append(made)
                self.notes.add(
                    CONVERTED,
                    one.line,
                    f"{key}.{name}",
                    renamed(name, made.ours),
                    f"{at}.{made.ours}",
                )
        if not self.machines:
            self.section.needed("MachineTypes", at, "no machine type: write one")
        given = self.section.below("MachineTypeConfiguration")
        sizes = self.section.below("MachineMetaData")
        quota = self._quota()
        for machine in self.machines:
            own = sizes.below(machine.theirs)
            for amount, unit in (("Cores", 1), ("Memory", 1024), ("Disk", 1024 * 1024)):
                if number := own.peek(amount).number:
                    machine.numbers[amount] = f"{number * unit:g}"
            self.machine(machine, given.below(machine.theirs))
            shape = self._drone_type(machine, own)
            if len(self.machines) > 1 and quota is not None and machine.cores:
                shape.put("max_drones", drones_in(quota, machine.cores))
            types.put(machine.ours, shape)
        for left in (given, sizes):
            left.drop_rest("not in MachineTypes, so TARDIS does not use it: left out")
        if not self.machines:
            types.put("unnamed", placeholder("a drone type: gpus, cpus, memory, disk"))
        return types

    def _drone_type(self, machine: MachineType, sizes: KeyReader) -> YamlBlock:
        at = f"{self.file}: types.{machine.ours}"
        block = YamlBlock()
        self._put_gpus(machine, block, sizes.path, at)
        remedy = "a whole number of cores is wanted"
        machine.cores = sizes.put(
            block,
            "Cores",
            f"{at}.cpus",
            lambda v: v.whole(_MAX_CPUS),
            what="CPU cores of one drone",
            remedy=remedy,
        )
        for theirs, key in (("Memory", "memory"), ("Disk", "disk")):
            gib = sizes.take(theirs).number
            if gib is not None and 0 < gib <= _MAX_SIZE_MIB / 1024:
                size = format_size(max(math.ceil(gib * 1024), 1))
                block.put(key, size)
                sizes.converted(theirs, f"{at}.{key}", f"{size} of each drone")
            else:
                block.put(key, placeholder(f"{key} of one drone, as 20 GiB"))
                sizes.needed(theirs, f"{at}.{key}", f"write it, as `{key}: 20 GiB`")
        sizes.drop_rest(
            "TARDIS knows Cores, Memory and Disk; write further attributes of the slot under `ad`"
        )
        if machine.walltime:
            block.put("walltime", machine.walltime)
        return block

    def _put_gpus(self, machine: MachineType, block: YamlBlock, key: str, at: str) -> None:
        notes = self.notes
        if not machine.gpus and self.hidden_gpus:
            block.put("gpus", placeholder("GPUs of one drone, 0 for a CPU drone"))
            remedy = "write their number, 0 for a CPU drone; with GPUs also `vram` and `capability`"
            notes.add(
                NEEDED,
                machine.line,
                key,
                f"only the flavour shows whether it has GPUs: {remedy}",
                f"{at}.gpus",
            )
            return
        block.put("gpus", machine.gpus)
        if not machine.gpus:
            remedy = "a CPU drone. If it has some, write `gpus`, `vram` and `capability`"
            text = f"TARDIS does not know GPUs and nothing here asks for one: {remedy}"
            notes.add(CHANGED, machine.line, key, text, f"{at}.gpus")
            return
        if machine.vram_mib:
            block.put("vram", format_size(machine.vram_mib))
        else:
            block.put("vram", placeholder("memory of each GPU, as 40 GiB"))
            text = "jobs ask for GPUs by memory: write it, as `40 GiB`"
            notes.add(NEEDED, machine.line, machine.gpu_key, text, f"{at}.vram")
        block.put("capability", placeholder("CUDA compute capability, as 8.0"))
        site_model = f"; the site says {machine.gpu_model}" if machine.gpu_model else ""
        block.remark(f"gpu_model: A100-SXM4-40GB     # as `nvidia-smi` names it{site_model}")
        block.remark('driver: "12.4"                # newest CUDA version of the driver')
        text = "jobs ask for GPUs by capability, of which TARDIS knows nothing: write it; and `gpu_model`"
        notes.add(
            NEEDED, machine.line, machine.gpu_key, f"{text} if jobs ask for it", f"{at}.capability"
        )


EXECUTORS = {"ShellExecutor", "SSHExecutor", "DupingSSHExecutor"}
_SECRET_OPTIONS = {
    "password": ("password", "a password is kept in a file of its own: write `{file: PATH}`"),
    "passphrase": ("passphrase", "a passphrase is kept in a file of its own: write `{file: PATH}`"),
    "mfa_config": (
        "totp",
        "the seed of the one-time codes is kept in a file of its own: write `{file: PATH}`. There is one seed, and the "
        "prompt is not asked for",
    ),
}
"""Secrets of an ssh login, which are named and never copied: our name, and what to do."""


def put_executor(section: KeyReader, options: YamlBlock, ours: str) -> None:
    """Take ``executor`` from a site's section and write ``transport`` and ``tools`` into its options at ``ours``."""
    setting = section.take("executor")
    if not setting:
        options.put("transport", "tools", "the site's tools, run on this host")
        return
    if setting.kind not in EXECUTORS:
        problem = (
            f"`{setting.tag or 'this'}` is no executor of TARDIS: say how the site's tools run"
        )
        section.needed("executor", f"{ours}.transport", problem)
        options.put("transport", placeholder("tools, with ssh if the site is elsewhere"))
        return
    options.put("transport", "tools")
    if setting.kind == "ShellExecutor":
        section.converted("executor", f"{ours}.transport", "the tools run on this host")
        return
    given = KeyReader(
        YamlValue(setting.value, setting.line), section.name("executor"), section.notes
    )
    ssh = YamlBlock()
    ours = f"{ours}.tools.ssh"
    _put_login(given, ssh, ours)
    if setting.kind == "DupingSSHExecutor":
        ssh.put("forced_command", "stdin")
        key = "wrapper" if given.take("wrapper") else ""
        given.converted(
            key,
            f"{ours}.forced_command",
            "the far end reads its command from its input, as with the wrapper",
        )
    else:
        given.converted("", ours, "the tools run over one ssh connection")
    given.drop_rest("an option of asyncssh: see `ssh` in the reference for the options here")
    options.put("tools", {"ssh": ssh})


def _put_login(given: KeyReader, block: YamlBlock, ours: str) -> None:
    for theirs, name in (("host", "host"), ("username", "user"), ("tunnel", "jump")):
        if name != "jump" or given.peek(theirs).text:
            what = f"{name} at the login node"
            given.put(
                block,
                theirs,
                f"{ours}.{name}",
                lambda value: value.text or None,
                what=what,
                remedy="write it",
            )
    if given.peek("port"):
        text = "the ssh port"
        given.put(
            block,
            "port",
            f"{ours}.port",
            lambda value: value.whole(65535),
            what="port",
            text=text,
            remedy=text,
        )
    has_credential = False
    if keys := given.take("client_keys"):
        has_credential = True
        first, *others = [one.text or "" for one in keys.items or [keys]]
        if first:
            block.put("key", first)
            more = f"; there is one key here: {len(others)} further left out" if others else ""
            given.converted("client_keys", f"{ours}.key", f"the private key{more}")
        else:
            block.put("key", placeholder("file of the private key"))
            given.needed("client_keys", f"{ours}.key", "name the file of the private key")
    known_hosts = given.take("known_hosts")
    if known_hosts.text:
        block.put("known_hosts", known_hosts.text)
        given.converted("known_hosts", f"{ours}.known_hosts")
    elif known_hosts:
        text = "TARDIS believed any host. Here the host must be in ~/.ssh/known_hosts, or in the file named here"
        given.changed("known_hosts", f"{ours}.known_hosts", text)
    for theirs, (name, remedy) in _SECRET_OPTIONS.items():
        if given.take(theirs):
            has_credential |= name != "passphrase"
            block.put(name, placeholder(f"{{file: PATH}} with the {name}"))
            given.needed(theirs, f"{ours}.{name}", remedy)
    if not has_credential:
        block.put("agent", True)
        text = "no key is named, so asyncssh tried those of ~/.ssh; here the ssh agent is asked: better name a `key`"
        given.changed("", f"{ours}.agent", text)
