"""Options of an HTCondor site from TARDIS's HTCondor adapter: submit template, ``SubmitOptions``, executor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Template

from provisioner.migrate.controller import address
from provisioner.migrate.sites import MachineType, ReadFile, SiteImport, put_executor
from provisioner.migrate.source import CHANGED, CONVERTED, DROPPED, NEEDED, ImportReport, KeyReader
from provisioner.migrate.yaml_writer import QuotedText, YamlBlock, placeholder
from provisioner.values import frozen

_COMMAND = re.compile(r"\s*((?:\+|[Mm][Yy]\.)?[A-Za-z_][A-Za-z0-9_.]*)\s*=(?!=)\s*(.*)", re.DOTALL)
_QUEUE = re.compile(r"\s*queue\b.*", re.IGNORECASE | re.DOTALL)
_MANY_LINES = re.compile(r"\s*[\w.+]+\s*@=\s*(\w+)\s*")


@frozen
class SubmitCommand:
    """One command of a submit file, continuation lines joined."""

    line: int
    name: str
    """As written, such as ``+IsBackfill`` or ``queue``; empty for a line that is not a command."""
    value: str

    @property
    def bare(self) -> str:
        return _bare(self.name)


def _bare(name: str) -> str:
    """Return a name in lower case, without the ``+`` or ``MY.`` of an attribute."""
    return re.sub(r"^(\+|my\.)", "", name.lower())


def commands(text: str) -> list[SubmitCommand]:
    """Return the commands of a template, in order. A multi-line value (``name @=end``) has an empty name."""
    found: list[SubmitCommand] = []
    pending = ""
    began = 0
    until = ""
    for number, line in enumerate(text.splitlines(), 1):
        if until:
            until = "" if line.strip() == until else until
            continue
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        began = began or number
        line = line.lstrip() if pending else line
        if line.rstrip().endswith("\\"):
            pending += line.rstrip()[:-1].rstrip() + " "
            continue
        many = _MANY_LINES.fullmatch(line)
        until = f"@{many[1]}" if many else ""
        found.append(_parsed(began, pending + line))
        pending = ""
        began = 0
    if pending.strip():
        found.append(_parsed(began, pending))
    return found


def _parsed(line: int, text: str) -> SubmitCommand:
    if _QUEUE.fullmatch(text):
        return SubmitCommand(line, "queue", text.strip())
    parts = _COMMAND.fullmatch(text)
    if parts is None:
        return SubmitCommand(line, "", text.strip())
    return SubmitCommand(line, parts[1], parts[2].strip())


def filled(value: str, numbers: Mapping[str, str]) -> tuple[str, str]:
    """Return ``value`` with TARDIS's variables substituted, and the first name that is not in ``numbers`` (or "").

    ``$$`` is how a template writes a single ``$``.
    """
    try:
        return Template(value).substitute(numbers), ""
    except KeyError as error:
        return value, str(error.args[0])
    except ValueError:
        return value, "$"


_FROM_TYPE = "it follows from the drone type"
_DRONE_FILES = "a drone brings its own"
_ONE_LIFE = "a drone is started once and never again"
_OWN_ENVIRONMENT = "drones get their own environment; write further variables under `options.env`"
_TARDIS_VARIABLES = {"Environment", "Arguments", "Uuid"}
"""Variables that TARDIS substitutes for its pilots, without use here."""
_RESERVED_BY_REASON = {
    _FROM_TYPE: "request_cpus request_memory request_disk request_gpus requestcpus requestmemory requestdisk "
    "requestgpus gpus_minimum_memory gpusminmemory",
    "write `walltime` for the drone type": "allowed_execute_duration allowedexecuteduration",
    _DRONE_FILES: "output error log input initialdir iwd remote_initialdir transfer_executable transfer_output_files "
    "transfer_output_remaps nice_user should_transfer_files when_to_transfer_output stream_output stream_error "
    "arguments args",
    _OWN_ENVIRONMENT: "environment env getenv",
    "write `options.lease`": "job_lease_duration jobleaseduration",
    "write `timeouts.grace`": "job_max_vacate_time jobmaxvacatetime kill_sig remove_kill_sig max_job_retirement_time "
    "maxjobretirementtime",
    "write `options.retain_finished`": "leave_in_queue leavejobinqueue",
    _ONE_LIFE: "periodic_remove periodicremove periodic_hold periodichold periodic_release periodicrelease "
    "periodic_vacate periodicvacate max_retries retry_until success_exit_code numjobstarts hold on_exit_remove "
    "onexitremove on_exit_hold onexithold checkpoint_exit_code want_graceful_removal wantgracefulremoval",
    "it is a statement, not a command": "include use if elif else endif inputs outputs queue",
    "drones are listed by it": "provisionercontroller drone_id droneid dronetype dronesite dronegraces droneinputs "
    "jobstatus clusterid procid",
    "`blocking` decides it": "provisionerusesreserve",
}
RESERVED = {name: reason for reason, names in _RESERVED_BY_REASON.items() for name in names.split()}
"""Submit commands and attributes, in lower case, that our site sets, with the reason why they are not imported."""
_IN_EVERY_TEMPLATE = re.compile(
    "queue|request_(cpus|memory|disk|gpus)|gpus_minimum_memory|log|output|error|arguments"
)
"""Commands of these that every template of TARDIS has, so that nothing is lost."""
_PILOT_SCRIPT = (
    "TARDIS starts your pilot script; here the drone script runs and starts HTCondor itself. What yours prepares (a"
    " container, mounts, a proxy) must be on the node already, or in `overlay.options.drone_config`"
)
_CHANGED = {
    **dict.fromkeys(("executable", "cmd"), _PILOT_SCRIPT),
    **dict.fromkeys(("environment", "env"), _OWN_ENVIRONMENT),
    "transfer_input_files": "drones take along what they need themselves; see `executable`",
}
_POLICY_REMARKS = (
    "blocking:                       # what each free GPU keeps for the drone that will take it",
    '  - {nodes: ["*"], cpus: 8, memory: 20 GiB}',
    "owner:                          # drones make room for the jobs that `options.owner` names",
    "  preempt_proactively: true",
)
_OWNER_REMARKS = (
    "owner:                        # whose jobs come first here, and where they wait",
    '  jobs: AcctGroup == "group_of_the_owner"',
    "  schedds: [submit.example.org]",
)


class HTCondorSiteImport(SiteImport):
    """Import of one HTCondor site: the template of each type, with its GPUs."""

    remarks = _POLICY_REMARKS

    def __init__(
        self, entry: KeyReader, section: KeyReader, name: str, kind: str, read_file: ReadFile
    ) -> None:
        super().__init__(entry, section, name, kind, read_file)
        self.places: dict[str, str] = {}
        """``collector`` and ``schedd`` from ``SubmitOptions`` of the first type."""

    def machine(self, machine: MachineType, given: KeyReader) -> None:
        setting = given.take("jdl")
        submit_options = given.below("SubmitOptions")
        given.drop_rest("TARDIS's HTCondor adapter has no such option")
        file = setting.text
        text = self.read_file(file) if file else None
        if file and text is not None:
            found = commands(text)
            given.converted("jdl", self.ours, f"{len(found)} commands read, reported one by one")
            for command in found:
                if command.bare in ("request_gpus", "requestgpus") and re.fullmatch(
                    r"\d{1,4}", command.value
                ):
                    machine.gpus = int(command.value)
                    machine.gpu_key = f"{file}: {command.name}"
                if command.bare in ("gpus_minimum_memory", "gpusminmemory") and re.fullmatch(
                    r"\d{1,7}", command.value
                ):
                    machine.vram_mib = int(command.value)
                self._command(machine, ImportReport(file, self.notes.found), command)
        else:
            mark = placeholder(f"requirements of {file or 'this type'}, or remove the line")
            place = self.put(machine, mark, "requirements")
            problem = "no submit template:"
            if file:
                problem = f"{file} cannot be read here: put it beside the configuration and import again, or"
            remedy = "write its requirements here, and its accounting group and attributes under `submit`"
            given.needed("jdl", place, f"{problem} {remedy}")
        self._submit_options(machine, submit_options)

    def _submit_options(self, machine: MachineType, given: KeyReader) -> None:
        places: dict[str, tuple[str, str]] = {}
        for theirs, setting in given.left():
            text = setting.text or ""
            match theirs:
                case "pool" if found := address(text):
                    places["collector"] = found, theirs
                case "name" | "remote" if re.fullmatch(r"[A-Za-z0-9@._-]{1,255}", text):
                    places["schedd"] = text, theirs
                case "spool":
                    given.converted(theirs, f"{self.ours}.spool", "the default here")
                case "append" | "a" if "=" in text:
                    for one in commands(text):
                        self._command(
                            machine, self.notes, SubmitCommand(setting.line, one.name, one.value)
                        )
                case _:
                    given.dropped(theirs, f"`condor_submit -{theirs}` has no counterpart")

        if machine is self.machines[0]:
            self.places = {name: value for name, (value, _) in places.items()}
        for name in sorted(self.places.keys() | places.keys()):
            value, theirs = places.get(name, ("", ""))
            first = self.places.get(name, "")
            place = f"{self.ours}.{name}"
            if value == first:
                given.converted(theirs, place)
            else:
                text = f"a site has one, that of its first type ({first or 'none'}): make this type a site of its own"
                given.needed(theirs, place, text)

    def _command(self, machine: MachineType, notes: ImportReport, command: SubmitCommand) -> None:
        line = command.line
        name = command.name
        bare = command.bare
        value, unknown = filled(command.value, machine.numbers)
        if not name:
            text = "no command with a value: write it there"
            notes.add(NEEDED, line, command.value[:60], text, f"{self.ours}.submit")
        elif bare in _CHANGED:
            notes.add(CHANGED, line, name, _CHANGED[bare])
        elif _IN_EVERY_TEMPLATE.fullmatch(bare):
            notes.add(CONVERTED, line, name, f"the provisioner sets it itself ({RESERVED[bare]})")
        elif bare in RESERVED:
            notes.add(DROPPED, line, name, f"the provisioner sets it itself: {RESERVED[bare]}")
        elif unknown in _TARDIS_VARIABLES:
            notes.add(
                DROPPED,
                line,
                name,
                f"`${unknown}` has no value here: TARDIS fills it in for your pilot",
            )
        elif unknown:
            mark = placeholder(f"{name} without ${unknown}, which is not known here")
            text = f"`${unknown}` has no value here: write the value, or remove the line"
            notes.add(NEEDED, line, name, text, self._put_command(machine, command, mark))
        elif not value or not value.isprintable():
            text = "a value on one line is wanted: write it under `submit`"
            notes.add(NEEDED, line, name, text, f"{self.ours}.submit")
        else:
            notes.add(CONVERTED, line, name, "", self._put_command(machine, command, value))

    def _put_command(self, machine: MachineType, command: SubmitCommand, value: str) -> str:
        """Write a command, in the place of an earlier one of the same name, and return its place in our files."""
        if command.bare == "requirements":
            return self.put(machine, value, "requirements")
        written = self.types.setdefault(machine.ours, {}).setdefault("submit", {})
        for earlier in [name for name in written if _bare(name) == command.bare]:
            del written[earlier]
        return self.put(machine, QuotedText(value), "submit", command.name)

    def site_options(self, block: YamlBlock) -> None:
        text = (
            "TARDIS knew neither what a free GPU keeps of its node nor whose jobs come first: both are in the file"
            " as remarks, see docs/how-to/htcondor-cluster.md"
        )
        self.section.changed("", f"{self.file}: blocking, owner, options.owner", text)
        for name, value in self.places.items():
            block.put(name, value)
        if "collector" not in self.places:
            block.put("collector", placeholder("host:9618 of the site's collector"))
            remedy = "write `host:port`, as in COLLECTOR_HOST there"
            text = f"TARDIS left it to the configuration of HTCondor: {remedy}"
            self.section.needed("", f"{self.ours}.collector", text)
        if "schedd" not in self.places:
            block.remark(
                "schedd: submit1.example.org    # the only one that the collector lists, if left out"
            )
            text = (
                "TARDIS submits to the schedd of the host where its executor runs; here it is named, unless the"
                " collector lists one only"
            )
            self.section.changed("", f"{self.ours}.schedd", text)
        put_executor(self.section, block, self.ours)
        block.put(
            "work_directory",
            f"../var/{self.name}",
            "what drones take along and leave, from this file",
        )
        for remark in _OWNER_REMARKS:
            block.remark(remark)
