"""Options of an HTCondor site from TARDIS's HTCondor adapter: submit template, ``SubmitOptions``, executor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from string import Template

from provisioner.config.units import parse_addresses
from provisioner.migrate.executors import put_executor
from provisioner.migrate.machine_types import MachineType
from provisioner.migrate.report import ImportReport, KeyReader
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
        return re.sub(r"^(\+|my\.)", "", self.name.lower())


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
        found.append(_command(began, pending + line))
        pending, began = "", 0
    if pending.strip():
        found.append(_command(began, pending))
    return found


def _command(line: int, text: str) -> SubmitCommand:
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
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
OUR_VARIABLES = re.compile(r"PROVISIONER_.*|DRONE_.*|_?CONDOR_.*|CUDA_VISIBLE_DEVICES", re.IGNORECASE)
"""Variables that our site sets."""


def variables(value: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each variable, in both syntaxes of HTCondor: ``"A=1 B='x y'"`` and ``A=1;B=2``.

    The name is empty for text that is not a variable.
    """
    text = value.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        words = [_QUOTED.sub(_plain, word) for word in _WORD.findall(text[1:-1].replace('""', '"'))]
    else:
        words = [part.strip() for part in text.split(";") if part.strip()]
    for word in words:
        name, given, rest = word.partition("=")
        yield (name, rest) if given and _NAME.fullmatch(name) else ("", word)


def _plain(quoted: re.Match[str]) -> str:
    return quoted[1].replace("''", "'")


ReadFile = Callable[[str], str | None]
"""Returns the text of a file that the configuration names; None if it cannot be read."""

_SHAPE = "it follows from the drone type"
_DRONE = "a drone brings its own"
_LIFE = "a drone is started once and never again"
_ENVIRONMENT = "drones get their own environment; write further variables under `options.env`"
_THEIRS = {"Environment", "Arguments", "Uuid"}
"""Variables that TARDIS substitutes for its pilots, without use here."""
OURS = {
    **dict.fromkeys(("request_cpus", "request_memory", "request_disk", "request_gpus"), _SHAPE),
    **dict.fromkeys(("requestcpus", "requestmemory", "requestdisk", "requestgpus"), _SHAPE),
    **dict.fromkeys(("gpus_minimum_memory", "gpusminmemory"), _SHAPE),
    **dict.fromkeys(("allowed_execute_duration", "allowedexecuteduration"), "write `walltime` for the drone type"),
    **dict.fromkeys(("output", "error", "log", "input", "initialdir", "iwd", "remote_initialdir"), _DRONE),
    **dict.fromkeys(("transfer_executable", "transfer_output_files", "transfer_output_remaps", "nice_user"), _DRONE),
    **dict.fromkeys(("should_transfer_files", "when_to_transfer_output", "stream_output", "stream_error"), _DRONE),
    **dict.fromkeys(("environment", "env", "getenv"), _ENVIRONMENT),
    **dict.fromkeys(("arguments", "args"), _DRONE),
    **dict.fromkeys(("job_lease_duration", "jobleaseduration"), "write `options.lease`"),
    **dict.fromkeys(
        ("job_max_vacate_time", "jobmaxvacatetime", "kill_sig", "remove_kill_sig"), "write `timeouts.grace`"
    ),
    **dict.fromkeys(("leave_in_queue", "leavejobinqueue"), "write `options.retain_finished`"),
    **dict.fromkeys(("periodic_remove", "periodicremove", "periodic_hold", "periodichold"), _LIFE),
    **dict.fromkeys(("periodic_release", "periodicrelease", "periodic_vacate", "periodicvacate"), _LIFE),
    **dict.fromkeys(("max_retries", "retry_until", "success_exit_code", "numjobstarts", "hold"), _LIFE),
    **dict.fromkeys(("on_exit_remove", "onexitremove", "on_exit_hold", "onexithold"), _LIFE),
    **dict.fromkeys(("checkpoint_exit_code", "want_graceful_removal", "wantgracefulremoval"), _LIFE),
    **dict.fromkeys(
        ("include", "use", "if", "elif", "else", "endif", "inputs", "outputs", "queue"),
        "it is a statement, not a command",
    ),
    **dict.fromkeys(
        (
            "provisionercontroller",
            "drone_id",
            "droneid",
            "dronetype",
            "dronesite",
            "dronegraces",
            "droneinputs",
            "jobstatus",
            "clusterid",
            "procid",
        ),
        "drones are listed by it",
    ),
    **dict.fromkeys(("max_job_retirement_time", "maxjobretirementtime"), "write `timeouts.grace`"),
    "provisionerusesreserve": "`blocking` decides it",
}
"""Submit commands and attributes, in lower case, that our site sets, with the reason why they are not imported."""
_PILOT = (
    "TARDIS starts your pilot script; here our drone script runs and starts HTCondor itself. What yours prepares (a"
    " container, mounts, a proxy) has to be there on the node, or goes into `overlay.options.drone_config`"
)
_SILENT = {
    "queue",
    "request_cpus",
    "request_memory",
    "request_disk",
    "request_gpus",
    "gpus_minimum_memory",
    "log",
    "output",
    "error",
    "environment",
    "arguments",
}
"""Those of them that every template of TARDIS has, so that nothing is lost."""
_NO_TICK = "there is no such cache: each tick looks once (`policy.interval`, `timeouts.view_max_age`)"
COMMON = {
    "max_age": _NO_TICK,
    "StatusUpdate": _NO_TICK,
    "bulk_size": "drones of one type are submitted at once; `limits.max_starts_per_tick` says how many",
    "bulk_delay": "calls are not collected: each tick makes one",
}
"""Keys of a site's section that several adapters of TARDIS share, with the reason why they are not needed."""


_POLICY = (
    "blocking:                       # what each free GPU keeps for the drone that will take it",
    '  - {nodes: ["*"], cpus: 8, memory: 20 GiB}',
    "owner:                          # drones make room for the jobs that `options.owner` names",
    "  preempt_proactively: true",
)
_OWNER = (
    "owner:                        # whose jobs come first here, and where they wait",
    '  jobs: AcctGroup == "group_of_the_owner"',
    "  schedds: [submit.example.org]",
)


class HTCondorSiteImport:
    """Import of one HTCondor site: its types are read one by one, then their sizes, then the options are written."""

    def __init__(self, section: KeyReader, ours: str, name: str, read_file: ReadFile) -> None:
        self.section, self.ours, self.name, self.read_file = section, f"{ours}: options", name, read_file
        self.file = ours
        self.notes = section.notes
        self.place = YamlBlock()
        """``collector``, ``schedd`` and ``spool`` from ``SubmitOptions``."""
        self.places: dict[str, str] = {}
        self.templates: list[tuple[MachineType, ImportReport, list[SubmitCommand]]] = []
        self.submits: dict[str, dict[str, str]] = {}
        self.requirements: dict[str, str] = {}
        self.env: dict[str, str] = {}
        self.taken: list[tuple[MachineType, ImportReport, int, str, str]] = []
        """Commands that were imported: type, report, line, name, and what needs you."""

    def machine(self, machine: MachineType, given: KeyReader) -> None:
        """Read the configuration and the template of one type, with its GPUs."""
        self.submits[machine.ours] = {}
        self._submit_options(machine, given.below("SubmitOptions"))
        setting, key = given.take("jdl"), given.name("jdl")
        given.drop_rest("TARDIS's HTCondor adapter has no such option")
        text = self.read_file(setting.text) if setting is not None and setting.text else None
        if setting is None or not setting.text:
            self.requirements[machine.ours] = placeholder("requirements of this type, or remove the line")
            self.notes.needed(
                given.line_of(setting),
                key,
                f"{self.ours}.types.{machine.ours}.requirements",
                "no submit template: write what the site wants of its jobs, such as an accounting group under `submit`",
            )
        elif text is None:
            self.requirements[machine.ours] = placeholder(f"requirements of {setting.text}, or remove the line")
            self.notes.needed(
                setting.line,
                key,
                f"{self.ours}.types.{machine.ours}.requirements",
                f"{setting.text} cannot be read here: put it beside the configuration and import again, or write its"
                " requirements here and its accounting group and attributes under `submit`",
            )
        else:
            found = commands(text)
            self.notes.converted(setting.line, key, self.ours, f"{len(found)} commands read, told one by one")
            self.templates.append((machine, ImportReport(setting.text, self.notes.found), found))
            _read_gpus(machine, setting.text, found)

    def _submit_options(self, machine: MachineType, given: KeyReader) -> None:
        """Import options of ``condor_submit``."""
        for theirs, setting in given.left():
            key, text = given.name(theirs), setting.text or ""
            match theirs:
                case "pool" if found := address(text):
                    self._place("collector", found, setting.line, key)
                case "name" | "remote" if re.fullmatch(r"[A-Za-z0-9@._-]{1,255}", text):
                    self._place("schedd", text, setting.line, key)
                case "spool":
                    self.notes.converted(setting.line, key, f"{self.ours}.spool", "the default here")
                case "append" | "a" if "=" in text:
                    added = [SubmitCommand(setting.line, one.name, one.value) for one in commands(text)]
                    self.templates.append((machine, self.notes, added))
                case _:
                    self.notes.dropped(setting.line, key, f"`condor_submit -{theirs}` has no counterpart")

    def _place(self, name: str, value: str, line: int, key: str) -> None:
        """Set an option that a site has once: the first value counts."""
        first = self.places.setdefault(name, value)
        self.place.put(name, first)
        if first == value:
            self.notes.converted(line, key, f"{self.ours}.{name}")
        else:
            self.notes.needed(
                line, key, f"{self.ours}.{name}", f"a site has one, {first}: make this type a site of its own"
            )

    # ------------------------------------------------------------------------------------------------------ template

    def take_commands(self) -> None:
        """Import the templates' commands, after the sizes that they may refer to."""
        for machine, notes, found in self.templates:
            for command in found:
                self._command(machine, notes, command)

    def _command(self, machine: MachineType, notes: ImportReport, command: SubmitCommand) -> None:
        line, name, bare = command.line, command.name, command.bare
        value, unknown = filled(command.value, machine.numbers)
        if not name:
            notes.needed(line, command.value[:60], f"{self.ours}.submit", "no command with a value: write it there")
        elif bare in ("executable", "cmd"):
            notes.changed(line, name, "", _PILOT)
        elif bare == "transfer_input_files":
            notes.changed(line, name, "", "drones take along what they need themselves; see `executable`")
        elif bare in ("environment", "env"):
            self._environment(machine, notes, command)
        elif bare in OURS:
            if bare in _SILENT:
                notes.converted(line, name, "", f"the provisioner sets it itself ({OURS[bare]})")
            else:
                notes.dropped(line, name, f"the provisioner sets it itself: {OURS[bare]}")
        elif unknown in _THEIRS and bare != "requirements":
            notes.dropped(line, name, f"`${unknown}` has no value here: TARDIS fills it in for your pilot")
        elif unknown and bare == "requirements":
            self.requirements[machine.ours] = placeholder(f"requirements without ${unknown}, which has no value here")
            notes.needed(
                line,
                name,
                f"{self.ours}.types.{machine.ours}.requirements",
                f"`${unknown}` has no value here: write them without it",
            )
        elif unknown:
            self._write(
                machine,
                notes,
                command,
                placeholder(f"{name} without ${unknown}, which has no value here"),
                f"`${unknown}` has no value here: write the value, or remove the line",
            )
        elif not value or not value.isprintable():
            notes.needed(line, name, f"{self.ours}.submit", "a value on one line is wanted: write it under `submit`")
        elif bare == "requirements":
            self.requirements[machine.ours] = value
            notes.converted(line, name, f"{self.ours}.types.{machine.ours}.requirements")
        else:
            self._write(machine, notes, command, value)

    def _write(
        self, machine: MachineType, notes: ImportReport, command: SubmitCommand, value: str, needs: str = ""
    ) -> None:
        """Record a command for ``submit``; :meth:`options` decides whether of the site or of the type."""
        written = self.submits[machine.ours]
        for other in [n for n in written if re.sub(r"^(\+|my\.)", "", n.lower()) == command.bare]:
            del written[other]
        written[command.name] = value
        self.taken.append((machine, notes, command.line, command.name, needs))

    def _environment(self, machine: MachineType, notes: ImportReport, command: SubmitCommand) -> None:
        """Import variables into ``options.env`` of the site; of two values the first counts."""
        text = Template(command.value).safe_substitute(machine.numbers | dict.fromkeys(_THEIRS, ""))
        if not text.replace('"', "").strip():
            notes.converted(command.line, command.name, "", f"the provisioner sets it itself ({_ENVIRONMENT})")
        for name, value in variables(text):
            key, at = f"{command.name} {name}".strip(), f"{self.ours}.env.{name}"
            if not name:
                notes.dropped(command.line, key, f"`{value[:60]}` is no variable with a value")
            elif OUR_VARIABLES.fullmatch(name):
                notes.dropped(command.line, key, "the site sets this variable itself")
            elif "$" in value or not value.isprintable():
                value = placeholder(f"{name} without macros")
                if self.env.setdefault(name, value) == value:
                    notes.needed(command.line, key, at, "what fills it in is not here: write the value")
            elif self.env.setdefault(name, value) == value:
                notes.converted(command.line, key, at)
            else:
                notes.changed(command.line, key, at, f"variables are of the site, not of a type: {self.env[name]}")

    # ------------------------------------------------------------------------------------------------------- options

    def policy(self) -> tuple[str, ...]:
        """Return comments for the site file on what TARDIS cannot express, and report them."""
        self.notes.changed(
            self.section.line,
            self.section.path,
            f"{self.file}: blocking, owner, options.owner",
            "TARDIS knew neither what a free GPU keeps of its node nor whose jobs come first: both stand there as"
            " remarks, see docs/how-to/topas.md",
        )
        return _POLICY

    def options(self) -> YamlBlock:
        """Return everything under ``options``."""
        block, place = YamlBlock(), self.place
        if "collector" not in place.keys:
            place.put("collector", placeholder("host:9618 of the site's collector"))
            self.notes.needed(
                self.section.line,
                self.section.path,
                f"{self.ours}.collector",
                "TARDIS left it to the configuration of HTCondor: write `host:port`, as in COLLECTOR_HOST there",
            )
        if "schedd" not in place.keys:
            place.remark("schedd: submit1.example.org    # the only one that the collector lists, if left out")
            self.notes.changed(
                self.section.line,
                self.section.path,
                f"{self.ours}.schedd",
                "TARDIS submits to the schedd of the host where its executor runs; here it is named, unless the"
                " collector lists one only",
            )
        block.lines += place.lines
        block.keys |= place.keys
        put_executor(self.section, block, self.ours)
        block.put("work_directory", f"../var/{self.name}", "what drones take along and leave, from this file")
        common = _common(self.submits)
        for machine, notes, line, name, needs in self.taken:
            at = f"{self.ours}.submit" if name in common else f"{self.ours}.types.{machine.ours}.submit"
            if needs:
                notes.needed(line, name, f"{at}.{name}", needs)
            else:
                notes.converted(line, name, f"{at}.{name}")
        if common:
            block.put("submit", _commands_block(common))
        special = YamlBlock()
        for name, written in self.submits.items():
            one = YamlBlock()
            rest = {k: v for k, v in written.items() if k not in common}
            if rest:
                one.put("submit", _commands_block(rest))
            if name in self.requirements:
                one.put("requirements", self.requirements[name])
            if one.keys:
                special.put(name, one)
        if special.keys:
            block.put("types", special)
        if self.env:
            block.put("env", _commands_block(self.env))
        for stub in _OWNER:
            block.remark(stub)
        self.section.drop(COMMON)
        self.section.drop_rest("TARDIS's HTCondor adapter has no such option")
        return block


def address(pool: str) -> str:
    """Return ``-pool`` of HTCondor's tools as ``host:port``, several with commas between; "" if one is no host."""
    hosts = [each for each in re.split(r"[,\s]+", pool) if each]
    try:
        return parse_addresses(",".join(each if _PORT.search(each) else f"{each}:9618" for each in hosts))
    except ValueError:
        return ""


_PORT = re.compile(r":\d{1,5}(\?|$)")


def _read_gpus(machine: MachineType, file: str, found: list[SubmitCommand]) -> None:
    for command in found:
        if command.bare in ("request_gpus", "requestgpus") and re.fullmatch(r"\d{1,4}", command.value):
            machine.gpus = int(command.value)
            machine.gpu_key = f"{file}: {command.name}"
        if command.bare in ("gpus_minimum_memory", "gpusminmemory") and re.fullmatch(r"\d{1,7}", command.value):
            machine.vram_mib = int(command.value)


def _common(submits: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the commands that all types have in common."""
    first, *others = submits.values() or [{}]
    return {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}


def _commands_block(written: dict[str, str]) -> YamlBlock:
    block = YamlBlock()
    for name, value in written.items():
        block.put(name, QuotedText(value))
    return block
