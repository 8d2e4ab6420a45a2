"""One site of TARDIS as a site file: name, quota, machine types, and the options of its kind."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from provisioner.migrate.controller import header
from provisioner.migrate.executors import put_executor
from provisioner.migrate.htcondor import COMMON, HTCondorSiteImport, ReadFile
from provisioner.migrate.machine_types import MachineType, drone_type, machine_types, moab_walltime_s, our_name
from provisioner.migrate.openstack import OpenStackSiteImport
from provisioner.migrate.report import KeyReader
from provisioner.migrate.slurm import SlurmSiteImport
from provisioner.migrate.yaml11 import YamlValue
from provisioner.migrate.yaml_writer import YamlBlock, placeholder
from provisioner.model import SitePolicy

_SECRET = re.compile(r"pass|secret|token|api_?key|totp|credential|private", re.IGNORECASE)
_LOGIN_IN_URL = re.compile(r"//[^/@\s]*@")


class UnsupportedSiteImport:
    """Import of a site of another kind: its options become comments, without secrets."""

    def __init__(self, section: KeyReader, ours: str, adapter: str) -> None:
        self.section, self.notes, self.ours, self.adapter = section, section.notes, f"{ours}: options", adapter
        self.remarks: list[str] = []

    def machine(self, machine: MachineType, given: KeyReader, ours: str) -> None:
        setting = given.take("Walltime")
        seconds = moab_walltime_s(setting.text) if setting is not None and setting.text else None
        if setting is not None and seconds is not None:
            machine.walltime_s = seconds
            self.notes.converted(setting.line, given.name("Walltime"), f"{ours}: types.{machine.ours}.walltime")
        elif setting is not None:
            self.notes.needed(setting.line, given.name("Walltime"), f"{ours}: types.{machine.ours}", "write `walltime`")
        self._keep(given, f"types.{machine.ours}.")

    def options(self) -> YamlBlock:
        self.section.drop(COMMON)
        block = YamlBlock()
        if self.section.peek("executor") is not None:
            put_executor(self.section, block, self.ours)
        self._keep(self.section, "")
        for remark in self.remarks:
            block.remark(remark)
        return block

    def _keep(self, given: KeyReader, path: str) -> None:
        for key, setting in given.left():
            if _SECRET.search(key):
                self.remarks.append(f"{path}{key}: (a secret: not copied)")
                self.notes.dropped(setting.line, given.name(key), "a secret: not copied; keep it in a file of its own")
                continue
            self.remarks += [_LOGIN_IN_URL.sub("//", line) for line in _lines(f"{path}{key}", setting)]
            self.notes.dropped(
                setting.line, given.name(key), "kept as a remark under `options`, for an adapter to come"
            )


def _lines(path: str, setting: YamlValue) -> Iterator[str]:
    """Yield each plain value below ``setting`` with its path; secrets without their value."""
    if _SECRET.search(path.rpartition(".")[2]):
        yield f"{path}: (a secret: not copied)"
    elif isinstance(setting.value, dict):
        for key, below in setting.value.items():
            yield from _lines(f"{path}.{key}", below)
    elif isinstance(setting.value, list):
        for n, below in enumerate(setting.value):
            yield from _lines(f"{path}[{n}]", below)
    else:
        value = "" if setting.value is None else setting.value
        yield f"{path}: {value} {setting.tag}".strip()


FAKE = "FakeSite"
_MOST_DRONES = 1_000_000
_AGE = (
    "TARDIS drains a drone that has been available for so long. Here a drone leaves when idle (`policy.idle_timeout`),"
    " and one with a `walltime` takes no job that would not end in time: write `walltime` if the site ends drones"
)
_HEARTBEAT = "drones are not looked at one by one: each tick looks at all of a site at once (`policy.interval`)"


class SiteImport:
    """Import of one entry of ``Sites`` with its section."""

    def __init__(self, entry: KeyReader, section: KeyReader, name: str, adapter: YamlValue) -> None:
        self.entry, self.section, self.name = entry, section, name
        self.adapter, self.kind = adapter, adapter.text or ""
        self.file = f"site_configs/{name}.yaml"
        self.machines: list[MachineType] = []

    def text(self, source: str, installed: Collection[str], read_file: ReadFile) -> str:
        """Return the text of the site file."""
        block = YamlBlock()
        block.remark("yaml-language-server: $schema=../docs/reference/site.schema.json")
        block.remark("")
        for line in header(f"Site {self.name}, from {source}"):
            block.remark(line)
        block.space()
        block.put("site", self.name)
        block.put("adapter", self._adapter(installed))
        types, options, remarks = self._types_and_options(read_file)
        limits = self._limits()
        block.space()
        block.put("limits", limits)
        if remarks:
            block.space()
        for remark in remarks:
            block.remark(remark)
        block.space()
        block.put("types", types)
        block.space()
        block.put("options", options)
        return str(block)

    def _adapter(self, installed: Collection[str]) -> str:
        ours = our_name(self.kind, ())
        at = f"{self.file}: adapter"
        if ours in installed:
            self.entry.notes.converted(self.adapter.line, self.entry.name("adapter"), at)
        else:
            self.entry.notes.needed(
                self.adapter.line,
                self.entry.name("adapter"),
                at,
                f"no site adapter `{ours}` is installed: keep the file for the time when there is one, and take it"
                " out of `sites` until then; or write one (docs/how-to/add-a-site.md)",
            )
        return ours

    def _types_and_options(self, read_file: ReadFile) -> tuple[YamlBlock, YamlBlock, tuple[str, ...]]:
        section, types = self.section, YamlBlock()
        self.machines = machine_types(section, self.file)
        given, sizes = section.below("MachineTypeConfiguration"), section.below("MachineMetaData")
        site: HTCondorSiteImport | OpenStackSiteImport | SlurmSiteImport | UnsupportedSiteImport
        match self.kind:
            case "HTCondor":
                site = HTCondorSiteImport(section, self.file, self.name, read_file)
            case "Slurm":
                site = SlurmSiteImport(section, self.file)
            case "OpenStack":
                site = OpenStackSiteImport(section, self.file, self.name)
            case _:
                site = UnsupportedSiteImport(section, self.file, self.kind)
        for machine in self.machines:
            own = given.below(machine.theirs)
            if isinstance(site, HTCondorSiteImport):
                site.machine(machine, own)
            else:
                site.machine(machine, own, self.file)
            shape = drone_type(
                machine,
                sizes.below(machine.theirs),
                self.file,
                decimal=self.kind == "Kubernetes",
                hidden_gpus=self.kind == "OpenStack",
            )
            self._cap(machine, shape)
            types.put(machine.ours, shape)
        for left in (given, sizes):
            left.drop_rest("not in MachineTypes, so TARDIS does not use it: left out")
        if isinstance(site, HTCondorSiteImport):
            site.take_commands()
        if not self.machines:
            types.put("unnamed", placeholder("a drone type: gpus, cpus, memory, disk"))
        return types, site.options(), site.policy() if isinstance(site, HTCondorSiteImport) else ()

    # -------------------------------------------------------------------------------------------------------- limits

    def _quota(self) -> float | None:
        """Return the quota in cores; None if there is no limit or it cannot be read."""
        setting = self.entry.peek("quota")
        return setting.number if setting is not None and setting.number is not None and setting.number > 0 else None

    def _cap(self, machine: MachineType, shape: YamlBlock) -> None:
        quota = self._quota()
        if len(self.machines) > 1 and quota is not None and machine.cores:
            shape.put("max_drones", _drones(quota, machine.cores))

    def _limits(self) -> YamlBlock:
        block, at = YamlBlock(), f"{self.file}: limits.max_drones"
        quota, setting, key = self._quota(), self.entry.take("quota"), self.entry.name("quota")
        cores = [m.cores for m in self.machines if m.cores]
        line = self.entry.line_of(setting)
        if (
            setting is not None
            and quota is None
            and (setting.number is None or setting.number == 0)
            and not _is_infinite(setting)
        ):
            block.put("max_drones", placeholder("most drones at one time"))
            self.entry.notes.needed(line, key, at, "this quota cannot be read: write how many drones may be there")
        elif quota is None:
            block.put("max_drones", SitePolicy(self.name).max_drones, "the default; TARDIS had no limit")
            self.entry.notes.changed(line, key, at, "no limit in TARDIS; here there always is one")
        elif not cores:
            block.put("max_drones", placeholder("most drones at one time"))
            self.entry.notes.needed(line, key, at, f"{quota:g} cores, but no type says how many it has: write drones")
        else:
            most = _drones(quota, min(cores))
            block.put("max_drones", most, f"{quota:g} cores, {min(cores)} each")
            self.entry.notes.changed(line, key, at, _quota_words(quota, cores, most))
        self.entry.drop({"drone_minimum_lifetime": _AGE, "drone_heartbeat_interval": _HEARTBEAT})
        self.entry.drop_rest("TARDIS knows no such key of a site")
        return block


def _is_infinite(setting: YamlValue) -> bool:
    return not setting.tag and isinstance(setting.value, float) and setting.value == float("inf")


def _drones(quota: float, cores: int) -> int:
    return min(max(int(quota // cores), 1), _MOST_DRONES)


def _quota_words(quota: float, cores: Sequence[int], most: int) -> str:
    small = min(cores)
    text = f"{quota:g} cores are at most {_count(most)} of {small} cores"
    if quota < small:
        text = f"{quota:g} cores are less than one drone of {small}: one may start, as with TARDIS"
    elif quota % small:
        text += "; TARDIS would start one more and exceed the quota"
    if len(set(cores)) > 1:
        text += (
            "; each type has its own `max_drones` too, and a mix of them may have more cores than the quota: lower them"
            " if that matters"
        )
    return f"limits count drones (and `max_gpus` GPUs), not cores: {text}"


def _count(number: int) -> str:
    return f"{number} drone{'' if number == 1 else 's'}"
