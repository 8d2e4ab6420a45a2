"""Options of a Slurm site from TARDIS's Slurm adapter: partition, walltime, ``SubmitOptions``, executor."""

from __future__ import annotations

import re

from provisioner.migrate.executors import put_executor
from provisioner.migrate.htcondor import COMMON
from provisioner.migrate.machine_types import MachineType, slurm_walltime_s
from provisioner.migrate.report import KeyReader
from provisioner.migrate.yaml11 import YamlValue
from provisioner.migrate.yaml_writer import QuotedText, YamlBlock, placeholder

_LONG = {
    "A": "account",
    "C": "constraint",
    "G": "gpus",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "D": "chdir",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}
_OURS = {
    "job-name",
    "output",
    "error",
    "time",
    "time-min",
    "deadline",
    "begin",
    "nodes",
    "ntasks",
    "cpus-per-task",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "tmp",
    "gpus-per-socket",
    "cpus-per-gpu",
    "ntasks-per-node",
    "ntasks-per-gpu",
    "ntasks-per-core",
    "ntasks-per-socket",
    "tasks-per-node",
    "tres-per-task",
    "mincpus",
    "core-spec",
    "thread-spec",
    "overcommit",
    "jobid",
    "workdir",
    "array",
    "parsable",
    "wrap",
    "input",
    "chdir",
    "export",
    "export-file",
    "get-user-env",
    "open-mode",
    "uid",
    "gid",
    "test-only",
    "wait",
    "signal",
    "requeue",
    "no-requeue",
    "hold",
    "dependency",
    "kill-on-invalid-dep",
    "cluster",
    "clusters",
    "help",
    "usage",
    "version",
    "quiet",
    "verbose",
}
"""Options of ``sbatch`` that follow from the drone type or define a drone. The site refuses them."""
_NAMED = ("partition", "account", "qos", "reservation", "constraint", "gres")
"""Options with a key of their own; the others go under ``submit``."""
_GPUS = {"gpus", "gpus-per-node", "gpus-per-task", "gres"}
_FROM_THE_SITE = "TARDIS's `Partition` says where drones go"
_GPU = re.compile(r"(?:gpu:?)?(?:([A-Za-z][\w.-]*):?)?(\d{1,4})?")
_PILOT = "TARDIS starts your pilot script; here our drone script runs: what yours prepares has to be there on the node"


class SlurmSiteImport:
    """Import of one site, type by type."""

    def __init__(self, section: KeyReader, ours: str) -> None:
        self.section, self.notes, self.ours = section, section.notes, f"{ours}: options"
        self.per_type: dict[str, dict[str, str | bool]] = {}
        self.taken: list[tuple[MachineType, int, str, str, str, bool]] = []
        """Imported options: type, line, key, name, message, and whether it needs you."""

    def machine(self, machine: MachineType, given: KeyReader, ours: str) -> None:
        """Import the options of ``sbatch`` for one type."""
        written = self.per_type.setdefault(machine.ours, {})
        self._walltime(machine, given, f"{ours}: types.{machine.ours}.walltime")
        setting, key = given.take("Partition"), given.name("Partition")
        if setting is not None and setting.text:
            written["partition"] = setting.text
            self.taken.append((machine, setting.line, key, "partition", "", False))
        else:
            written["partition"] = placeholder("partition")
            line = given.line_of(setting)
            self.taken.append((machine, line, key, "partition", "write the partition", True))
        options = given.below("SubmitOptions")
        for form in ("short", "long"):
            form_section = options.below(form)
            for theirs, value in form_section.left():
                name = _LONG.get(theirs, "") if form == "short" else theirs
                self._option(machine, name, value, form_section.name(theirs), f"{ours}: types.{machine.ours}.gpus")
        options.drop_rest("`sbatch` gets `short` and `long` options only")
        given.drop(
            {
                "StartupCommand": _PILOT,
                "StatusOptions": "jobs are found by our own tag, not by options of `squeue`",
                "TerminateOptions": "jobs are cancelled by their number alone",
            }
        )
        given.drop_rest("TARDIS's Slurm adapter has no such option")

    def _walltime(self, machine: MachineType, given: KeyReader, ours: str) -> None:
        setting = given.take("Walltime")
        machine.walltime_s = slurm_walltime_s(setting.text) if setting is not None and setting.text else None
        if setting is not None and machine.walltime_s is not None:
            self.notes.converted(
                setting.line,
                given.name("Walltime"),
                ours,
                f"`--time={setting.text}`; a drone takes no job near its end",
            )
        else:
            line = given.line_of(setting)
            self.notes.needed(line, given.name("Walltime"), ours, "write how long a drone may run, as `24h`")

    def _option(self, machine: MachineType, name: str, value: YamlValue, key: str, at: str) -> None:
        text = (value.text or "") if value.value is not None else ""
        if not name or not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", name) or (value.value is not None and not text):
            self.notes.dropped(value.line, key, "this option of `sbatch` is not known here: write its long form")
        elif name in _OURS:
            self.notes.dropped(value.line, key, f"the provisioner sets `--{name}` itself")
        elif name == "partition":
            self.notes.dropped(value.line, key, _FROM_THE_SITE)
        elif name in (*_NAMED, *_GPUS) and not text:
            self.notes.dropped(value.line, key, f"`--{name}` says nothing without a value")
        elif name in _GPUS:
            self._gpus(machine, name, text, value.line, key, at)
        elif name not in _NAMED and (meant := _short_for(name)):
            self.notes.needed(value.line, key, self.ours, f"`sbatch` takes it for `--{meant}`: write that, by its name")
        else:
            self.per_type[machine.ours][name] = text or True
            self.taken.append((machine, value.line, key, name, "", False))

    def _gpus(self, machine: MachineType, name: str, text: str, line: int, key: str, at: str) -> None:
        """Import ``gres: gpu:a100:2,mic:1`` or ``gpus: a100:2``: the number defines the drone type, the name stays."""
        parts = text.split(",")
        ours = [p for p in parts if name != "gres" or re.match(r"gpu(:|$)", p.strip())]
        rest = [p.strip() for p in parts if p not in ours]
        found = _GPU.fullmatch(ours[0].strip()) if len(ours) == 1 else None
        if ours and found is None:
            self.notes.needed(line, key, at, f"`--{name}={text}`: write `gpus` of the drone type")
        elif found is not None:
            machine.gpus, machine.gpu_model, machine.gpu_key = int(found[2] or 1), found[1] or "", key
            self.notes.converted(line, key, at, "the GPUs are those of the drone type")
            if found[1]:
                self.per_type[machine.ours]["gres"] = f"gpu:{found[1]}"
                self.taken.append((machine, line, key, "gres", "which GPUs; how many is said by the drone type", False))
        if rest:
            self.notes.dropped(line, key, f"`--gres={','.join(rest)}`: drones ask for no generic resource but GPUs")

    def options(self) -> YamlBlock:
        """Return everything under ``options``."""
        block = YamlBlock()
        put_executor(self.section, block, self.ours)
        first, *others = list(self.per_type.values()) or [{}]
        common = {k: v for k, v in first.items() if k != "gres" and all(other.get(k) == v for other in others)}
        for machine, line, key, name, text, needs_you in self.taken:
            at = self.ours if name in common else f"{self.ours}.types.{machine.ours}"
            note = self.notes.needed if needs_you else self.notes.converted
            note(line, key, f"{at}.{name}" if name in _NAMED else f"{at}.submit.{name}", text)
        _put(block, common)
        special = YamlBlock()
        for name, written in self.per_type.items():
            one = YamlBlock()
            _put(one, {k: v for k, v in written.items() if k not in common})
            if one.keys:
                special.put(name, one)
        if special.keys:
            block.put("types", special)
        self.section.drop({"StartupCommand": _PILOT, **COMMON})
        self.section.drop_rest("TARDIS's Slurm adapter has no such option")
        return block


def _short_for(name: str) -> str:
    """Return the option that ``sbatch`` takes a shortened name for; "" if it is none of ours."""
    return next((ours for ours in (*sorted(_OURS | _GPUS), *_NAMED) if ours.startswith(name)), "")


def _put(block: YamlBlock, written: dict[str, str | bool]) -> None:
    """Write options with a key of their own by name, all others under ``submit``."""
    submit = YamlBlock()
    for name, value in written.items():
        if name in _NAMED:
            block.put(name, value)
        else:
            submit.put(name, QuotedText(value) if isinstance(value, str) else value)
    if submit.keys:
        block.put("submit", submit)
