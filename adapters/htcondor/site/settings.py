"""Options of an HTCondor site."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field

from adapters.htcondor.classads import Expression, attribute_names, is_expression
from adapters.htcondor.site import grid
from adapters.htcondor.tokens import directory_credentials, idtoken_credential
from adapters.shared.commands.settings import SshSettings
from adapters.shared.parcel import check_environment
from provisioner.config.credentials import certificate_credential, secret_credential
from provisioner.config.messages import type_findings
from provisioner.config.models import ConfigSection, mistake_at, section_check
from provisioner.config.units import Addresses, ConfigPath, Duration, PositiveDuration, Secret, Size
from provisioner.interfaces import OptionFinding
from provisioner.model import Credential, DroneType

_SUBMIT_COMMAND = re.compile(r"(?:\+|[Mm][Yy]\.)?[A-Za-z_][A-Za-z0-9_.]{0,127}")
_UNFILLED = re.compile(r"<[^<>]+ [^<>]+>")
"""Placeholder of `provisioner import` for a value that it does not know."""
_RESERVED_VARIABLES = re.compile(
    r"PROVISIONER_.*|DRONE_.*|_?CONDOR_.*|CUDA_VISIBLE_DEVICES", re.IGNORECASE
)

_RESERVED_COMMANDS = {
    "it follows from the drone type: change `types`": """
        request_cpus request_memory request_disk request_gpus requestcpus requestmemory requestdisk requestgpus
        gpus_minimum_memory gpusminmemory
    """,
    "it is the `walltime` of the drone type": "allowed_execute_duration allowedexecuteduration",
    "it is the drone's own": """
        executable cmd arguments args input output error log initialdir iwd remote_initialdir transfer_executable
        nice_user transfer_input_files transfer_output_files transfer_output_remaps should_transfer_files
        when_to_transfer_output stream_output stream_error
    """,
    "write variables under `env`": "environment env getenv",
    "set `lease`": "job_lease_duration jobleaseduration",
    "set `timeouts.grace`": "job_max_vacate_time jobmaxvacatetime kill_sig remove_kill_sig",
    "a drone leaves when it is asked to": "max_job_retirement_time maxjobretirementtime",
    "set `retain_finished`": "leave_in_queue leavejobinqueue",
    "it keeps drones single-use": """
        periodic_remove periodicremove periodic_hold periodichold periodic_release periodicrelease periodic_vacate
        periodicvacate max_retries retry_until success_exit_code numjobstarts on_exit_remove onexitremove on_exit_hold
        onexithold hold checkpoint_exit_code want_graceful_removal wantgracefulremoval
    """,
    "it is no submit command": "queue include use if elif else endif inputs outputs",
    "drones are listed by it": """
        provisionercontroller drone_id droneid dronetype dronesite dronegraces droneinputs jobstatus clusterid procid
    """,
    "`blocking` decides it": "provisionerusesreserve",
}
RESERVED_COMMANDS = {
    name: instead
    for instead, names in _RESERVED_COMMANDS.items()
    for name in attribute_names(names)
}
"""Submit commands and job attributes, in small letters, that only the provisioner sets, and what to do instead."""


def _filled_in(text: str) -> str:
    if _UNFILLED.fullmatch(text):
        raise ValueError(
            f"`{text[:80]}` is still to be filled in: write the value, or remove the line"
        )
    return text


def _submit_commands(commands: dict[str, str]) -> dict[str, str]:
    seen: dict[str, str] = {}
    for name, value in commands.items():
        bare = re.sub(r"^(\+|my\.)", "", name.strip().lower())
        if not _SUBMIT_COMMAND.fullmatch(name):
            raise mistake_at(
                name, f"`{name[:40]}` is not a submit command: write `rank`, or `+Attribute`"
            )
        if bare in RESERVED_COMMANDS:
            raise mistake_at(
                name, f"`{name}` is set by the provisioner: remove it ({RESERVED_COMMANDS[bare]})"
            )
        if not value.strip() or not value.isprintable() or value.rstrip().endswith("\\"):
            raise mistake_at(name, f"`{name}` wants a value on one line, in quotes")
        # What holds a macro of submit files is known only when it is filled in.
        evaluated = bare != name.strip().lower() or bare in ("requirements", "require_gpus", "rank")
        if evaluated and "$" not in value and not is_expression(value):
            examples = "`TARGET.Memory > 4096`, `True`, or `'\"text\"'` for text"
            raise mistake_at(
                name, f"`{value[:60]}` is not a ClassAd expression: write, say, {examples}"
            )
        if bare in seen:
            raise mistake_at(name, f"`{name}` and `{seen[bare]}` are the same: remove one of them")
        seen[bare] = name
    return commands


def _plain_environment(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if "$$" in value:
            message = f"`{name[:40]}` contains `$$`, which begins a macro of HTCondor: write something else"
            raise mistake_at(name, message)
    return check_environment(env, reserved=_RESERVED_VARIABLES)


FilledIn = Annotated[str, AfterValidator(_filled_in)]
Commands = Annotated[dict[str, FilledIn], AfterValidator(_submit_commands)]


_SCHEDD_PATTERN = r"^[A-Za-z0-9@._-]{1,255}$"
_SUBMITTER_PATTERN = r"^[A-Za-z0-9@._*?\[\]-]{1,255}$"


class OwnerJobShape(ConfigSection):
    """Resources that one job is taken to need where its queue may not be read."""

    gpus: int = Field(1, ge=0, le=1000)
    """GPUs of one job."""
    cpus: int = Field(1, ge=1, le=100_000, examples=[4])
    """CPU cores of one job."""
    memory: Size = Field(2048, examples=["16 GiB"])
    """Memory of one job."""


class HTCondorOwnerConfig(ConfigSection):
    """Jobs that come first at the site, and their queues."""

    jobs: Expression = Field("true", examples=['AcctGroup == "etp"'])
    """ClassAd expression that is true for jobs of the owner. Drones of this controller never are."""
    schedds: tuple[Annotated[str, Field(pattern=_SCHEDD_PATTERN)], ...] = Field(
        (), examples=[["submit.etp.example.org"]]
    )
    """Names of the schedds whose queues hold them, flocking ones too; READ is needed there."""
    submitters: tuple[Annotated[str, Field(pattern=_SUBMITTER_PATTERN)], ...] = Field(
        (), examples=[["*@etp.example.org"]]
    )
    """Submitters (patterns as of file names) of the owner whose queue may not be read: the collector counts
    their idle jobs, and `shape` is assumed for each."""
    shape: OwnerJobShape = Field(
        OwnerJobShape(), examples=[{"gpus": 1, "cpus": 4, "memory": "16 GiB"}]
    )
    """Assumed request of one job of `submitters`."""

    @section_check
    def _some_queue(self) -> Self:
        if not self.schedds and not self.submitters:
            raise ValueError("no queue is named: write `schedds: [name]`")
        if self.shape != OwnerJobShape() and not self.submitters:
            raise ValueError("`shape` is for the jobs of `submitters`, and none are named")
        return self


class CondorToolsConfig(ConfigSection):
    """Place and use of HTCondor's command-line tools."""

    path: str = Field("", pattern=r"^(/[A-Za-z0-9._+@=-]+)*$", examples=["/opt/condor/bin"])
    """Directory that holds the tools. Default: found on PATH there."""
    condor_config: str = Field(
        "", pattern=r"^(/[A-Za-z0-9._+@=-]+)*$", examples=["/etc/condor/condor_config"]
    )
    """Configuration file for the tools (CONDOR_CONFIG). Default: one made from `token` and `token_directory` if
    these are set and the tools run here, else HTCondor's own."""
    ssh: SshSettings | None = None
    """Login node for the tools, with the tokens that its user has there. Default: the controller's host."""
    directory: str = Field(
        "provisioner",
        pattern=r"^/?[A-Za-z0-9_][A-Za-z0-9._+@=-]*(/[A-Za-z0-9_][A-Za-z0-9._+@=-]*)*$",
    )
    """Directory on the login node, below the home, in place of `work_directory`. Made if missing."""


class HTCondorTypeConfig(ConfigSection):
    """Options of submitting one drone type."""

    submit: Commands = Field({})
    """Submit commands for this type; they take the place of those under `submit`."""
    requirements: Expression | None = Field(None, examples=['TARGET.GpuClass == "a100"'])
    """Only slots for which this holds (`TARGET.` is the slot)."""


class HTCondorSiteConfig(ConfigSection):
    """Options of the ``htcondor`` site."""

    collector: Addresses = Field(examples=["condor.example.org:9618"])
    """Address of the site's collector, `host:port` or `[IPv6]:port`; several of a high-availability pair with
    commas."""
    schedd: str = Field(
        "", pattern=r"^[A-Za-z0-9@._-]{0,255}$", examples=["grid@submit1.example.org"]
    )
    """Name of the schedd that drones are submitted to. Default: the only one that the collector lists."""
    transport: Literal["bindings", "tools"] = "bindings"
    """Interface to HTCondor: its Python `bindings`, or its command-line `tools`."""
    tools: CondorToolsConfig = CondorToolsConfig()
    """Place of the tools and the way to run them, with `transport: tools`."""
    token: Secret | None = None
    """Token of the account that owns the drones' jobs: READ and WRITE at the schedd."""
    token_directory: ConfigPath | None = None
    """Directory with tokens, instead of `token` or beside it (say, one for the owner's schedd)."""
    client_config: str = ""
    """Lines to add to the controller's own HTCondor configuration."""
    spool: bool = True
    """Files are sent to the schedd and fetched back; `false`: it sees `work_directory` itself."""
    work_directory: ConfigPath = Field(
        examples=["var/topas"], json_schema_extra={"places_drones": "shared"}
    )
    """Directory on the controller's host with the files of drones: what they take along, log and outcome. Made
    if missing."""
    submit: Commands = Field(
        {}, examples=[{"+IsBackfill": "True", "accounting_group": "group_backfill"}]
    )
    """Submit commands for every drone, in quotes; `requirements` and `require_gpus` are joined to those of the
    type. For a computing element `scitokens_file` or `x509userproxy`, whose ends `check` and `status` watch."""
    types: dict[str, HTCondorTypeConfig] = Field({})
    """Options of single drone types, by name."""
    env: Annotated[dict[str, FilledIn], AfterValidator(_plain_environment)] = Field({})
    """Environment variables added for each drone."""
    owner: HTCondorOwnerConfig | None = Field(
        None, examples=[{"jobs": 'AcctGroup == "etp"', "schedds": ["submit.etp.example.org"]}]
    )
    """Owner whose jobs have priority here, and their queues. Without it the site's owner is ignored."""
    slot_max_age: PositiveDuration = 900.0
    """A slot that was last heard from so long before the newest is dead, though the collector lists it."""
    lease: Duration = Field(60.0, ge=20.0)
    """Time for which a drone survives a loss of contact between schedd and node, and a removed job stays in the
    queue."""
    same_account: bool = False
    """Let jobs run under an account that can read the controller's secrets. Without a token HTCondor runs
    drones as the account that submits them; it can read nothing if the nodes share no files with this host."""
    retain_finished: Duration = Field(600.0, ge=60.0)
    """Time for which an ended drone stays in the site's queue, so that its end is listed."""
    deadline: PositiveDuration = 15.0
    """Longest time for one query to HTCondor."""
    submit_deadline: PositiveDuration = 45.0
    """Longest time for one submit, with its files."""

    @section_check
    def _some_token(self) -> Self:
        if self.token is None and self.token_directory is None and self.transport == "bindings":
            raise ValueError("`token` or `token_directory` is wanted: write `token: {file: path}`")
        if self.transport == "bindings" and self.tools != CondorToolsConfig():
            raise ValueError("`tools` is for another transport: write `transport: tools`")
        if self.transport == "tools" and self.tools.ssh and (self.token or self.token_directory):
            raise ValueError(
                "`token` and `token_directory` stay here: over ssh the account there has its own tokens"
            )
        return self

    def credentials(self) -> Iterator[Credential]:
        """Yield our tokens."""
        if self.token is not None:
            yield idtoken_credential("token", self.token)
        elif self.token_directory is not None:
            yield from directory_credentials("token_directory", self.token_directory)
        if self.transport == "tools" and self.tools.ssh:
            return  # the files of submit commands are on the login node
        mine = [("submit", self.submit)]
        mine += [(f"types.{name}.submit", each.submit) for name, each in self.types.items()]
        for place, command, value in ((p, *item) for p, each in mine for item in each.items()):
            if command.lower() == "x509userproxy" and value.startswith("/"):
                yield certificate_credential(f"{place}.{command}", Path(value))
            elif command.lower() == "scitokens_file" and value.startswith("/"):
                yield secret_credential(f"{place}.{command}", Secret(file=Path(value)), is_jwt=True)

    def commands(self, kind: DroneType) -> Mapping[str, str]:
        """Return the admin's submit commands for a type, whose own replace the general ones."""
        special = self.types.get(kind.name)
        mine = special.submit if special else {}
        replaced = {name.lower() for name in mine}
        general = {
            name: value for name, value in self.submit.items() if name.lower() not in replaced
        }
        return general | mine

    def is_grid(self, kind: DroneType) -> bool:
        """Return True if a type's drones run behind a computing element."""
        return grid.is_grid(self.commands(kind))

    def drone_account(self) -> tuple[str, str | None]:
        """Return the option that names the account of drones, and that account; None if the site chooses it."""
        if self.tools.ssh is not None:
            return "tools.ssh.user", self.tools.ssh.user
        return "tools.ssh.user", None if self.token or self.token_directory else ""

    def type_conflicts(self, types: Sequence[DroneType]) -> Iterator[OptionFinding]:
        """Yield errors in combination with the site's drone types: path in the site file, and message."""
        shares = "a share of a GPU is a whole one to an HTCondor site: write `gpus: 1`"
        yield from type_findings(types, self.types, shares)
        yield from self._grid_conflicts(types)

    def _grid_conflicts(self, types: Sequence[DroneType]) -> Iterator[OptionFinding]:
        """Yield what cannot work through a computing element."""
        through = [kind for kind in types if self.is_grid(kind)]
        for kind in types:
            if kind not in through and "grid_resource" in self.commands(kind):
                message = "`grid_resource` wants `universe: grid`: add it, or remove this"
                yield self._place(kind, "grid_resource"), message
        if not through:
            return
        if len(through) < len(types):
            message = (
                "`universe`: drones of one site are all in the grid universe, or none is: make two "
                "sites of it"
            )
            yield self._place(through[0], "universe"), message
        for kind in through:
            for name, message in grid.conflicts(self.commands(kind)):
                yield self._place(kind, name), message
            if kind.server is not None:
                message = (
                    "nodes behind a computing element are unknown, so no client finds a server"
                )
                yield ("types", kind.name, "server"), f"`server`: {message}: use another site"
            special = self.types.get(kind.name)
            if special is not None and special.requirements:
                place = ("options", "types", kind.name, "requirements")
                yield place, f"`requirements`: {grid.NODES_HIDDEN}"
        yield from grid.useless_options(sorted(self.model_fields_set), through)

    def _place(self, kind: DroneType, name: str) -> tuple[str, ...]:
        """Return the keys that lead to a submit command."""
        special = self.types.get(kind.name)
        own = ("types", kind.name) if special and name in grid.bare_names(special.submit) else ()
        given = special.submit if special and own else self.submit
        written = (each for each in given if name in grid.bare_names({each: ""}))
        return ("options", *own, "submit", next(written, name))
