"""Options of an HTCondor site from TARDIS's HTCondor adapter: submit template, ``SubmitOptions``, executor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from string import Template

from provisioner.config.units import parse_addresses
from provisioner.migrate.machine_types import MachineType
from provisioner.migrate.report import ImportReport, KeyReader
from provisioner.migrate.site_options import OptionsImport, put_executor
from provisioner.migrate.yaml_writer import QuotedText, YamlBlock, placeholder

_COMMAND = re.compile(r"\s*((?:\+|[Mm][Yy]\.)?[A-Za-z_][A-Za-z0-9_.]*)\s*=(?!=)\s*(.*)", re.DOTALL)
_QUEUE = re.compile(r"\s*queue\b.*", re.IGNORECASE | re.DOTALL)
_MANY_LINES = re.compile(r"\s*[\w.+]+\s*@=\s*(\w+)\s*")


@dataclass(frozen=True, slots=True)
class SubmitCommand:
    """One command of a submit file, continuation lines joined."""

    line: int
    name: str
    """As written, such as ``+IsBackfill`` or ``queue``; empty for a line that is not a command."""
    value: str

    @property
    def bare(self) -> str:
        """Return the name in lower case, without the ``+`` or ``MY.`` of an attribute."""
        return _bare(self.name)


def _bare(name: str) -> str:
    return re.sub(r"^(\+|my\.)", "", name.lower())


def commands(text: str) -> list[SubmitCommand]:
    """Return the commands of a template, in order. A multi-line value (``name @=end``) has an empty name."""
    found: list[SubmitCommand] = []
    pending, began, until = "", 0, ""
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
        pending, began = "", 0
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


_WORD = re.compile(r"(?:[^\s']|'(?:[^']|'')*')+")
_QUOTED = re.compile(r"'((?:[^']|'')*)'")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
RESERVED_VARIABLES = re.compile(r"PROVISIONER_.*|DRONE_.*|_?CONDOR_.*|CUDA_VISIBLE_DEVICES", re.IGNORECASE)
"""Variables that our site sets."""


def variables(value: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each variable, in both syntaxes of HTCondor: ``"A=1 B='x y'"`` and ``A=1;B=2``.

    The name is empty for text that is not a variable.
    """
    text = value.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        quoted = _WORD.findall(text[1:-1].replace('""', '"'))
        words = [_QUOTED.sub(lambda found: found[1].replace("''", "'"), word) for word in quoted]
    else:
        words = [part.strip() for part in text.split(";") if part.strip()]
    for word in words:
        name, given, rest = word.partition("=")
        yield (name, rest) if given and _VARIABLE_NAME.fullmatch(name) else ("", word)


ReadFile = Callable[[str], str | None]
"""Returns the text of a file that the configuration names; None if it cannot be read."""

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
    "queue|request_(cpus|memory|disk|gpus)|gpus_minimum_memory|log|output|error|environment|arguments"
)
"""Commands of these that every template of TARDIS has, so that nothing is lost."""
_PILOT_SCRIPT = (
    "TARDIS starts your pilot script; here our drone script runs and starts HTCondor itself. What yours prepares (a"
    " container, mounts, a proxy) must be on the node already, or in `overlay.options.drone_config`"
)
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


class HTCondorOptionsImport(OptionsImport):
    """Import of one HTCondor site: its types are read one by one, then their sizes, then the options are written."""

    per_type_only = frozenset({("requirements",)})

    def __init__(self, section: KeyReader, file: str, name: str, read_file: ReadFile) -> None:
        super().__init__(section, file, name)
        self.read_file = read_file
        self.places: dict[str, str] = {}
        """``collector`` and ``schedd`` from ``SubmitOptions``."""
        self.templates: list[tuple[MachineType, ImportReport, list[SubmitCommand]]] = []
        self.requirements: dict[str, str] = {}
        self.env: dict[str, str] = {}

    def machine(self, machine: MachineType, given: KeyReader) -> None:
        """Read the configuration and the template of one type, with its GPUs."""
        self.types[machine.ours] = {}
        self._submit_options(machine, given.below("SubmitOptions"))
        setting, at = given.take("jdl"), f"{self.ours}.types.{machine.ours}.requirements"
        given.drop_rest("TARDIS's HTCondor adapter has no such option")
        file = setting.text if setting is not None else None
        text = self.read_file(file) if file else None
        if not file:
            self.requirements[machine.ours] = placeholder("requirements of this type, or remove the line")
            remedy = "write what the site wants of its jobs, such as an accounting group under `submit`"
            given.needed("jdl", at, f"no submit template: {remedy}")
        elif text is None:
            self.requirements[machine.ours] = placeholder(f"requirements of {file}, or remove the line")
            remedy = (
                "put it beside the configuration and import again, or write its requirements here and its accounting "
                "group and attributes under `submit`"
            )
            given.needed("jdl", at, f"{file} cannot be read here: {remedy}")
        else:
            found = commands(text)
            given.converted("jdl", self.ours, f"{len(found)} commands read, reported one by one")
            self.templates.append((machine, ImportReport(file, self.notes.found), found))
            _read_gpus(machine, file, found)

    def _submit_options(self, machine: MachineType, given: KeyReader) -> None:
        """Import options of ``condor_submit``."""
        for theirs, setting in given.left():
            text = setting.text or ""
            match theirs:
                case "pool" if found := address(text):
                    self._place("collector", found, given, theirs)
                case "name" | "remote" if re.fullmatch(r"[A-Za-z0-9@._-]{1,255}", text):
                    self._place("schedd", text, given, theirs)
                case "spool":
                    given.converted(theirs, f"{self.ours}.spool", "the default here")
                case "append" | "a" if "=" in text:
                    added = [SubmitCommand(setting.line, one.name, one.value) for one in commands(text)]
                    self.templates.append((machine, self.notes, added))
                case _:
                    given.dropped(theirs, f"`condor_submit -{theirs}` has no counterpart")

    def _place(self, name: str, value: str, given: KeyReader, theirs: str) -> None:
        """Set an option that a site has once: the first value counts."""
        first = self.places.setdefault(name, value)
        if first == value:
            given.converted(theirs, f"{self.ours}.{name}")
        else:
            text = f"a site has one, {first}: make this type a site of its own"
            given.needed(theirs, f"{self.ours}.{name}", text)

    # ------------------------------------------------------------------------------------------------------ template

    def _command(self, machine: MachineType, notes: ImportReport, command: SubmitCommand) -> None:
        line, name, bare = command.line, command.name, command.bare
        value, unknown = filled(command.value, machine.numbers)
        at = f"{self.ours}.types.{machine.ours}.requirements"
        no_value = f"`${unknown}` has no value here"
        if not name:
            notes.needed(line, command.value[:60], f"{self.ours}.submit", "no command with a value: write it there")
        elif bare in ("executable", "cmd"):
            notes.changed(line, name, "", _PILOT_SCRIPT)
        elif bare == "transfer_input_files":
            notes.changed(line, name, "", "drones take along what they need themselves; see `executable`")
        elif bare in ("environment", "env"):
            self._environment(machine, notes, command)
        elif _IN_EVERY_TEMPLATE.fullmatch(bare):
            notes.converted(line, name, "", f"the provisioner sets it itself ({RESERVED[bare]})")
        elif bare in RESERVED:
            notes.dropped(line, name, f"the provisioner sets it itself: {RESERVED[bare]}")
        elif unknown and bare == "requirements":
            self.requirements[machine.ours] = placeholder(f"requirements without ${unknown}, which has no value here")
            notes.needed(line, name, at, f"{no_value}: write them without it")
        elif unknown in _TARDIS_VARIABLES:
            notes.dropped(line, name, f"{no_value}: TARDIS fills it in for your pilot")
        elif unknown:
            mark = placeholder(f"{name} without ${unknown}, which has no value here")
            report = partial(notes.needed, line, name, text=f"{no_value}: write the value, or remove the line")
            self._submit(machine, command, mark, report)
        elif not value or not value.isprintable():
            notes.needed(line, name, f"{self.ours}.submit", "a value on one line is wanted: write it under `submit`")
        elif bare == "requirements":
            self.requirements[machine.ours] = value
            notes.converted(line, name, at)
        else:
            self._submit(machine, command, value, partial(notes.converted, line, name))

    def _submit(self, machine: MachineType, command: SubmitCommand, value: str, report: Callable[[str], None]) -> None:
        """Set a command under ``submit``, in the place of an earlier one of the same name."""
        written = self.types[machine.ours]
        for path in [path for path in written if _bare(path[-1]) == command.bare]:
            del written[path]
        self.add(machine, ("submit", command.name), QuotedText(value), report)

    def _environment(self, machine: MachineType, notes: ImportReport, command: SubmitCommand) -> None:
        """Import variables into ``options.env`` of the site; of two values the first counts."""
        line = command.line
        text = Template(command.value).safe_substitute(machine.numbers | dict.fromkeys(_TARDIS_VARIABLES, ""))
        if not text.replace('"', "").strip():
            notes.converted(line, command.name, "", f"the provisioner sets it itself ({_OWN_ENVIRONMENT})")
        for name, value in variables(text):
            key, at = f"{command.name} {name}".strip(), f"{self.ours}.env.{name}"
            if not name:
                notes.dropped(line, key, f"`{value[:60]}` is no variable with a value")
                continue
            if RESERVED_VARIABLES.fullmatch(name):
                notes.dropped(line, key, "the site sets this variable itself")
                continue
            is_filled = "$" not in value and value.isprintable()
            written = value if is_filled else placeholder(f"{name} without macros")
            if self.env.setdefault(name, written) != written:
                notes.changed(line, key, at, f"variables are of the site, not of a type: {self.env[name]}")
            elif is_filled:
                notes.converted(line, key, at)
            else:
                notes.needed(line, key, at, "what fills it in is not here: write the value")

    # ------------------------------------------------------------------------------------------------------- options

    def remarks(self) -> tuple[str, ...]:
        text = (
            "TARDIS knew neither what a free GPU keeps of its node nor whose jobs come first: both are in the file"
            " as remarks, see docs/how-to/topas.md"
        )
        self.section.changed("", f"{self.file}: blocking, owner, options.owner", text)
        return _POLICY_REMARKS

    def options(self) -> YamlBlock:
        """Return everything under ``options``, after the templates' commands, which may refer to the sizes."""
        for machine, notes, found in self.templates:
            for command in found:
                self._command(machine, notes, command)
        block = YamlBlock()
        for name, value in self.places.items():
            block.put(name, value)
        if "collector" not in self.places:
            block.put("collector", placeholder("host:9618 of the site's collector"))
            remedy = "write `host:port`, as in COLLECTOR_HOST there"
            text = f"TARDIS left it to the configuration of HTCondor: {remedy}"
            self.section.needed("", f"{self.ours}.collector", text)
        if "schedd" not in self.places:
            block.remark("schedd: submit1.example.org    # the only one that the collector lists, if left out")
            text = (
                "TARDIS submits to the schedd of the host where its executor runs; here it is named, unless the"
                " collector lists one only"
            )
            self.section.changed("", f"{self.ours}.schedd", text)
        put_executor(self.section, block, self.ours)
        block.put("work_directory", f"../var/{self.name}", "what drones take along and leave, from this file")
        for name, requirements in self.requirements.items():
            self.types[name][("requirements",)] = requirements
        self.put_types(block)
        if self.env:
            block.put("env", {name: QuotedText(value) for name, value in self.env.items()})
        for remark in _OWNER_REMARKS:
            block.remark(remark)
        self.drop_rest("HTCondor")
        return block


_PORT = re.compile(r":\d{1,5}(\?|$)")


def address(pool: str) -> str:
    """Return ``-pool`` of HTCondor's tools as ``host:port``, several with commas between; "" if one is no host."""
    hosts = [each for each in re.split(r"[,\s]+", pool) if each]
    try:
        return parse_addresses(",".join(each if _PORT.search(each) else f"{each}:9618" for each in hosts))
    except ValueError:
        return ""


def _read_gpus(machine: MachineType, file: str, found: list[SubmitCommand]) -> None:
    for command in found:
        if command.bare in ("request_gpus", "requestgpus") and re.fullmatch(r"\d{1,4}", command.value):
            machine.gpus = int(command.value)
            machine.gpu_key = f"{file}: {command.name}"
        if command.bare in ("gpus_minimum_memory", "gpusminmemory") and re.fullmatch(r"\d{1,7}", command.value):
            machine.vram_mib = int(command.value)
