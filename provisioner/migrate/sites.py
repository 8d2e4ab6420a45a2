"""One site of TARDIS as a site file: name, quota, machine types, and the options of its kind."""

from __future__ import annotations

from collections.abc import Collection

from provisioner.formatting import count
from provisioner.migrate.controller import put_header
from provisioner.migrate.htcondor import HTCondorOptionsImport, ReadFile
from provisioner.migrate.machine_types import MachineType, drone_type, machine_types, our_name, template_numbers
from provisioner.migrate.openstack import OpenStackOptionsImport
from provisioner.migrate.report import KeyReader
from provisioner.migrate.site_options import OptionsImport
from provisioner.migrate.slurm import SlurmOptionsImport
from provisioner.migrate.yaml11 import YamlValue
from provisioner.migrate.yaml_writer import YamlBlock, placeholder
from provisioner.model import SitePolicy


class UnsupportedOptionsImport(OptionsImport):
    """Import of a site of another kind: nothing of its options is copied."""

    def machine(self, machine: MachineType, given: KeyReader) -> None:
        given.drop_rest(_UNSUPPORTED)

    def site_options(self, block: YamlBlock) -> None:
        self.section.drop_rest(_UNSUPPORTED)


_UNSUPPORTED = "an option of an adapter that there is none of here: not copied"
SIMULATED = "FakeSite"
_MAX_DRONES = 1_000_000
"""Most drones that a limit may allow."""
_LIFETIME = (
    "TARDIS drains a drone that has been available for so long. Here a drone leaves when idle (`policy.idle_timeout`),"
    " and one with a `walltime` takes no job that would not end in time: write `walltime` if the site ends drones"
)
_HEARTBEAT = "drones are not polled one by one: each tick polls all drones of a site (`policy.interval`)"


class SiteImport:
    """Import of one entry of ``Sites`` with its section."""

    def __init__(self, entry: KeyReader, section: KeyReader, name: str, kind: str) -> None:
        self.entry, self.section, self.name, self.kind = entry, section, name, kind
        self.file = f"site_configs/{name}.yaml"
        self.machines: list[MachineType] = []

    def text(self, source: str, installed: Collection[str], read_file: ReadFile) -> str:
        """Return the text of the site file."""
        block = YamlBlock()
        put_header(block, "../docs/reference/site.schema.json", f"Site {self.name}, from {source}")
        block.put("site", self.name)
        block.put("adapter", self._adapter(installed))
        options = self._options_import(read_file)
        types = self._types(options)
        written = options.written()
        block.space()
        block.put("limits", self._limits())
        if options.remarks:
            block.space()
        for remark in options.remarks:
            block.remark(remark)
        for key, value in (("types", types), ("options", written)):
            block.space()
            block.put(key, value)
        return str(block)

    def _adapter(self, installed: Collection[str]) -> str:
        ours, at = our_name(self.kind, ()), f"{self.file}: adapter"
        if ours in installed:
            self.entry.converted("adapter", at)
        else:
            remedy = (
                "keep the file for the time when there is one, and take it out of `sites` until then; or write one"
                " (docs/how-to/add-a-site.md)"
            )
            self.entry.needed("adapter", at, f"no site adapter `{ours}` is installed: {remedy}")
        return ours

    def _options_import(self, read_file: ReadFile) -> OptionsImport:
        match self.kind:
            case "HTCondor":
                return HTCondorOptionsImport(self.section, self.file, self.name, read_file)
            case "Slurm":
                return SlurmOptionsImport(self.section, self.file, self.name)
            case "OpenStack":
                return OpenStackOptionsImport(self.section, self.file, self.name)
            case _:
                return UnsupportedOptionsImport(self.section, self.file, self.name)

    def _types(self, options: OptionsImport) -> YamlBlock:
        types = YamlBlock()
        self.machines = machine_types(self.section, self.file)
        given, sizes = self.section.below("MachineTypeConfiguration"), self.section.below("MachineMetaData")
        quota = self._quota()
        for machine in self.machines:
            own = sizes.below(machine.theirs)
            machine.numbers = template_numbers(own)
            options.machine(machine, given.below(machine.theirs))
            shape = drone_type(machine, own, self.file, hidden_gpus=self.kind == "OpenStack")
            if len(self.machines) > 1 and quota is not None and machine.cores:
                shape.put("max_drones", drones_in(quota, machine.cores))
            types.put(machine.ours, shape)
        for left in (given, sizes):
            left.drop_rest("not in MachineTypes, so TARDIS does not use it: left out")
        if not self.machines:
            types.put("unnamed", placeholder("a drone type: gpus, cpus, memory, disk"))
        return types

    # -------------------------------------------------------------------------------------------------------- limits

    def _quota(self) -> float | None:
        """Return the quota in cores; None if there is no limit or it cannot be read."""
        setting = self.entry.peek("quota")
        return setting.number if setting is not None and setting.number is not None and setting.number > 0 else None

    def _limits(self) -> YamlBlock:
        block, at = YamlBlock(), f"{self.file}: limits.max_drones"
        quota, setting = self._quota(), self.entry.take("quota")
        cores = [machine.cores for machine in self.machines if machine.cores]
        if setting is not None and quota is None and not setting.number and not _is_infinite(setting):
            block.put("max_drones", placeholder("most drones at one time"))
            self.entry.needed("quota", at, "this quota cannot be read: write how many drones may be there")
        elif quota is None:
            block.put("max_drones", SitePolicy(self.name).max_drones, "the default; TARDIS had no limit")
            self.entry.changed("quota", at, "no limit in TARDIS; here there always is one")
        elif not cores:
            block.put("max_drones", placeholder("most drones at one time"))
            self.entry.needed(
                "quota", at, f"{quota:g} cores, but the size of no type is known: write a number of drones"
            )
        else:
            most = drones_in(quota, min(cores))
            block.put("max_drones", most, f"{quota:g} cores, {min(cores)} each")
            text = f"limits count drones, not cores: {quota:g} cores are at most {count(most, 'drone')} of {min(cores)}"
            if len(set(cores)) > 1:
                text += "; each type has its own `max_drones` too, and a mix of them may have more cores than the quota"
            self.entry.changed("quota", at, text)
        self.entry.drop({"drone_minimum_lifetime": _LIFETIME, "drone_heartbeat_interval": _HEARTBEAT})
        self.entry.drop_rest("TARDIS knows no such key of a site")
        return block


def _is_infinite(setting: YamlValue) -> bool:
    return not setting.tag and isinstance(setting.value, float) and setting.value == float("inf")


def drones_in(quota: float, cores: int) -> int:
    """Return how many drones of ``cores`` a limit in cores allows: at least one."""
    return min(max(int(quota // cores), 1), _MAX_DRONES)
