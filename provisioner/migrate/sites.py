"""One site of TARDIS as a site file of ours: names, quota, machine types, and the options of its kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from provisioner.migrate.controller import header
from provisioner.migrate.elsewhere import OtherSite
from provisioner.migrate.htcondor import HTCondorSite, ReadFile
from provisioner.migrate.openstack import OpenStackSite
from provisioner.migrate.section import Section
from provisioner.migrate.shapes import MachineType, drone_type, machine_types, our_name
from provisioner.migrate.slurm import SlurmSite
from provisioner.migrate.told import Told
from provisioner.migrate.written import Block, wanted
from provisioner.model import SitePolicy

FAKE = "FakeSite"
_MOST_DRONES = 1_000_000
_AGE = (
    "TARDIS drains a drone that has been available for so long. Here a drone leaves when idle (`policy.idle_timeout`),"
    " and one with a `walltime` takes no job that would not end in time: write `walltime` if the site ends drones"
)
_HEARTBEAT = "drones are not looked at one by one: each tick looks at all of a site at once (`policy.interval`)"


class Site:
    """One entry of ``Sites`` with its section, and the file that it becomes."""

    def __init__(self, entry: Section, section: Section, name: str, adapter: Told) -> None:
        self.entry, self.section, self.name = entry, section, name
        self.adapter, self.kind = adapter, adapter.text or ""
        self.file = f"site_configs/{name}.yaml"
        self.machines: list[MachineType] = []

    def text(self, source: str, installed: Collection[str], read_file: ReadFile) -> str:
        """The site file."""
        block = Block()
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

    def _types_and_options(self, read_file: ReadFile) -> tuple[Block, Block, tuple[str, ...]]:
        section, types = self.section, Block()
        self.machines = machine_types(section, self.file)
        given, sizes = section.below("MachineTypeConfiguration"), section.below("MachineMetaData")
        site: HTCondorSite | OpenStackSite | SlurmSite | OtherSite
        match self.kind:
            case "HTCondor":
                site = HTCondorSite(section, self.file, self.name, read_file)
            case "Slurm":
                site = SlurmSite(section, self.file)
            case "OpenStack":
                site = OpenStackSite(section, self.file, self.name)
            case _:
                site = OtherSite(section, self.file, self.kind)
        for machine in self.machines:
            own = given.below(machine.theirs)
            if isinstance(site, HTCondorSite):
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
        if isinstance(site, HTCondorSite):
            site.take_commands()
        if not self.machines:
            types.put("unnamed", wanted("a drone type: gpus, cpus, memory, disk"))
        return types, site.options(), site.policy() if isinstance(site, HTCondorSite) else ()

    # -------------------------------------------------------------------------------------------------------- limits

    def _quota(self) -> float | None:
        """Cores; None for no limit, or none that can be read."""
        told = self.entry.peek("quota")
        return told.number if told is not None and told.number is not None and told.number > 0 else None

    def _cap(self, machine: MachineType, shape: Block) -> None:
        quota = self._quota()
        if len(self.machines) > 1 and quota is not None and machine.cores:
            shape.put("max_drones", _drones(quota, machine.cores))

    def _limits(self) -> Block:
        block, at = Block(), f"{self.file}: limits.max_drones"
        quota, told, key = self._quota(), self.entry.take("quota"), self.entry.name("quota")
        cores = [m.cores for m in self.machines if m.cores]
        line = told.line if told is not None else self.entry.line
        if told is not None and quota is None and (told.number is None or told.number == 0) and not _is_infinite(told):
            block.put("max_drones", wanted("most drones at one time"))
            self.entry.notes.needed(line, key, at, "this quota cannot be read: write how many drones may be there")
        elif quota is None:
            block.put("max_drones", SitePolicy(self.name).max_drones, "the default; TARDIS had no limit")
            self.entry.notes.changed(line, key, at, "no limit in TARDIS; here there always is one")
        elif not cores:
            block.put("max_drones", wanted("most drones at one time"))
            self.entry.notes.needed(line, key, at, f"{quota:g} cores, but no type says how many it has: write drones")
        else:
            most = _drones(quota, min(cores))
            block.put("max_drones", most, f"{quota:g} cores, {min(cores)} each")
            self.entry.notes.changed(line, key, at, _quota_words(quota, cores, most))
        self.entry.drop({"drone_minimum_lifetime": _AGE, "drone_heartbeat_interval": _HEARTBEAT})
        self.entry.drop_rest("TARDIS knows no such key of a site")
        return block


def _is_infinite(told: Told) -> bool:
    return not told.tag and isinstance(told.value, float) and told.value == float("inf")


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
