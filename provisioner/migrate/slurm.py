"""Options of a Slurm site from TARDIS's Slurm adapter: partition, walltime, ``SubmitOptions``, executor."""

from __future__ import annotations

import re

from provisioner.durations import format_duration
from provisioner.migrate.sites import MachineType, SiteImport, put_executor
from provisioner.migrate.source import KeyReader, YamlValue
from provisioner.migrate.yaml_writer import QuotedText, YamlBlock, placeholder

_SHORT_OPTIONS = (
    "A=account C=constraint G=gpus J=job-name L=licenses M=clusters N=nodes D=chdir c=cpus-per-task d=dependency "
    "e=error m=distribution n=ntasks o=output p=partition q=qos t=time w=nodelist x=exclude"
)
_LONG_NAMES = dict(pair.split("=") for pair in _SHORT_OPTIONS.split())
_RESERVED_NAMES = (
    "job-name output error time time-min deadline begin nodes ntasks cpus-per-task mem mem-per-cpu mem-per-gpu tmp "
    "gpus-per-socket cpus-per-gpu ntasks-per-node ntasks-per-gpu ntasks-per-core ntasks-per-socket tasks-per-node "
    "tres-per-task mincpus core-spec thread-spec overcommit jobid workdir array parsable wrap input chdir export "
    "export-file get-user-env open-mode uid gid test-only wait signal requeue no-requeue hold dependency "
    "kill-on-invalid-dep cluster clusters help usage version quiet verbose"
)
_RESERVED_OPTIONS = set(_RESERVED_NAMES.split())
"""Options of ``sbatch`` that follow from the drone type or define a drone. The site refuses them."""
_NAMED = ("partition", "account", "qos", "reservation", "constraint", "gres")
"""Options with a key of their own; the others go under ``submit``."""
_GPU_OPTIONS = {"gpus", "gpus-per-node", "gpus-per-task", "gres"}
_ALL_OPTIONS = (*sorted(_RESERVED_OPTIONS | _GPU_OPTIONS), *_NAMED)
"""Options for which ``sbatch`` also takes a shortened name."""
_GPU = re.compile(r"(?:gpu:?)?(?:([A-Za-z][\w.-]*):?)?(\d{1,4})?")
_STARTUP = (
    "TARDIS starts your pilot script; here the drone script runs: what yours prepares has to "
    "be there on the node"
)


class SlurmSiteImport(SiteImport):
    """Import of one Slurm site: the options of ``sbatch`` by type."""

    def machine(self, machine: MachineType, given: KeyReader) -> None:
        setting = given.take("Walltime")
        at = f"{self.file}: types.{machine.ours}.walltime"
        walltime_s = slurm_walltime_s(setting.text) if setting.text else None
        if walltime_s is not None:
            machine.walltime = format_duration(walltime_s)
            given.converted(
                "Walltime", at, f"`--time={setting.text}`; a drone takes no job near its end"
            )
        else:
            machine.walltime = placeholder("longest run of a drone, as 24h")
            given.needed("Walltime", at, "write how long a drone may run, as `24h`")
        partition = given.take("Partition")
        if partition.text:
            given.converted("Partition", self.put(machine, partition.text, "partition"))
        else:
            place = self.put(machine, placeholder("partition"), "partition")
            given.needed("Partition", place, "write the partition")
        options = given.below("SubmitOptions")
        for form in ("short", "long"):
            section = options.below(form)
            for theirs, value in section.left():
                name = _LONG_NAMES.get(theirs, "") if form == "short" else theirs
                self._option(machine, section, theirs, name, value)
        options.drop_rest("`sbatch` gets `short` and `long` options only")
        given.drop(
            {
                "StartupCommand": _STARTUP,
                "StatusOptions": "jobs are found by the controller's tag, not by options of `squeue`",
                "TerminateOptions": "jobs are cancelled by their number alone",
            }
        )
        given.drop_rest("TARDIS's Slurm adapter has no such option")

    def _option(
        self, machine: MachineType, given: KeyReader, theirs: str, name: str, value: YamlValue
    ) -> None:
        text = (value.text or "") if value.value is not None else ""
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", name) or (
            value.value is not None and not text
        ):
            given.dropped(theirs, "this option of `sbatch` is not known here: write its long form")
        elif name in _RESERVED_OPTIONS:
            given.dropped(theirs, f"the provisioner sets `--{name}` itself")
        elif name == "partition":
            given.dropped(theirs, "TARDIS's `Partition` names the partition")
        elif name in {*_NAMED, *_GPU_OPTIONS} and not text:
            given.dropped(theirs, f"`--{name}` has no effect without a value")
        elif name in _GPU_OPTIONS:
            self._gpus(machine, given, theirs, name, text)
        elif name in _NAMED:
            given.converted(theirs, self.put(machine, text, name))
        elif meant := next((option for option in _ALL_OPTIONS if option.startswith(name)), ""):
            given.needed(
                theirs, self.ours, f"`sbatch` takes it for `--{meant}`: write that, by its name"
            )
        else:
            given.converted(
                theirs, self.put(machine, QuotedText(text) if text else True, "submit", name)
            )

    def _gpus(
        self, machine: MachineType, given: KeyReader, theirs: str, name: str, text: str
    ) -> None:
        """Import ``gres: gpu:a100:2,mic:1`` or ``gpus: a100:2``: the number defines the drone type, the name stays."""
        at = f"{self.file}: types.{machine.ours}.gpus"
        parts = text.split(",")
        gpus = [part for part in parts if name != "gres" or re.match(r"gpu(:|$)", part.strip())]
        others = [part.strip() for part in parts if part not in gpus]
        found = _GPU.fullmatch(gpus[0].strip()) if len(gpus) == 1 else None
        if gpus and found is None:
            given.needed(theirs, at, f"`--{name}={text}`: write `gpus` of the drone type")
        elif found is not None:
            machine.gpus, machine.gpu_model, machine.gpu_key = (
                int(found[2] or 1),
                found[1] or "",
                given.name(theirs),
            )
            given.converted(theirs, at, "the GPUs are those of the drone type")
            if found[1]:
                place = self.put(machine, f"gpu:{found[1]}", "gres")
                given.converted(
                    theirs, place, "the model of the GPUs; the drone type has their number"
                )
        if others:
            given.dropped(
                theirs, f"`--gres={','.join(others)}`: drones ask for no generic resource but GPUs"
            )

    def site_options(self, block: YamlBlock) -> None:
        put_executor(self.section, block, self.ours)
        self.section.drop({"StartupCommand": _STARTUP})


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
