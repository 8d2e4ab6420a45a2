"""Configuration of a Slurm site."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field

from adapters.shared.commands.settings import SshSettings
from adapters.shared.parcel import check_environment
from adapters.slurm.options import convert_options
from provisioner.config.credentials import authorities_credential, secret_credential
from provisioner.config.messages import type_findings
from provisioner.config.models import ConfigSection, mistake_at, section_check
from provisioner.config.units import ConfigPath, Duration, PositiveDuration, Secret, Size
from provisioner.interfaces import OptionFinding
from provisioner.model import Credential, DroneType

_SLURM_NAME = r"[A-Za-z0-9_.@+:-]{1,127}"
_SLURM_NAMES = rf"^{_SLURM_NAME}(,{_SLURM_NAME})*$"
_SBATCH_OPTION = re.compile(r"[a-z][a-z0-9-]{0,63}")
_RESERVED_JOB_VARIABLES = re.compile(
    r"PROVISIONER_.*|DRONE_.*|_CONDOR_.*|CONDOR_(?!PREFIX$).*|SLURM_.*|CUDA_VISIBLE_DEVICES",
    re.IGNORECASE,
)

LIMIT_CHECK_INTERVAL_S = 30
"""Period in which slurmctld checks time limits and grace periods."""
_OWN_KEY = "write it beside `submit`, not below it"
_OWN_KEY_OF_TYPE = "write it under `types`, for each drone type, without a number"
_REFUSED_BY_REPAIR = {
    "it follows from the drone type: change `types`": (
        "cpus-per-task ntasks nodes mem mem-per-cpu mem-per-gpu tmp gpus gpus-per-node gpus-per-task gpus-per-socket"
        " cpus-per-gpu ntasks-per-node ntasks-per-gpu ntasks-per-core ntasks-per-socket tasks-per-node tres-per-task"
        " mincpus core-spec thread-spec"
    ),
    "it is the `walltime` of the drone type": "time time-min deadline begin",
    "it belongs to the drone": (
        "overcommit jobid workdir job-name array parsable wrap input error chdir export export-file get-user-env"
        " open-mode uid gid test-only wait"
    ),
    "set `timeouts.grace`": "signal",
    "it keeps drones single-use": "requeue no-requeue hold dependency kill-on-invalid-dep",
    "set `output_directory`": "output",
    _OWN_KEY: "partition account qos reservation constraint",
    _OWN_KEY_OF_TYPE: "gres",
    "it is not an option of a job": "cluster clusters help usage version quiet verbose",
}
REFUSED_SBATCH_OPTIONS = {
    name: repair for repair, names in _REFUSED_BY_REPAIR.items() for name in names.split()
}
"""Options of sbatch that only the provisioner sets, and what to do instead."""


def _check_options(options: dict[str, str | bool]) -> dict[str, str | bool]:
    for name, value in options.items():
        if not _SBATCH_OPTION.fullmatch(name):
            raise mistake_at(
                name,
                f"`{name[:40]}` is not an option of sbatch: write its long name without dashes",
            )
        if (instead := REFUSED_SBATCH_OPTIONS.get(name, "")) in (_OWN_KEY, _OWN_KEY_OF_TYPE):
            raise mistake_at(name, f"`{name}` has a key of its own: {instead}")
        if instead:
            raise mistake_at(name, f"`{name}` is set by the provisioner: remove it ({instead})")
        if full := next((each for each in REFUSED_SBATCH_OPTIONS if each.startswith(name)), ""):
            raise mistake_at(
                name,
                f"`{name}` is an abbreviation of `{full}`, which the provisioner sets: remove it",
            )
        if value is False:
            raise mistake_at(name, f"`{name}: false` has no effect: remove it")
        if isinstance(value, str) and (not value.strip() or not value.isprintable()):
            raise mistake_at(
                name, f"`{name}` needs a value on one line, in quotes, or `true` if it takes none"
            )
    return options


Options = Annotated[dict[str, str | bool], AfterValidator(_check_options)]
Environment = Annotated[
    dict[str, str], AfterValidator(partial(check_environment, reserved=_RESERVED_JOB_VARIABLES))
]


class SlurmJobOptions(ConfigSection):
    """Options of sbatch for all drones, or for those of one type."""

    partition: str = Field("", pattern=rf"^$|{_SLURM_NAMES}", examples=["accelerated"])
    """Partition, or several with commas. Default: the cluster's."""
    account: str = Field("", pattern=rf"^({_SLURM_NAME})?$")
    """Account that is charged."""
    qos: str = Field("", pattern=rf"^({_SLURM_NAME})?$")
    """Quality of service."""
    reservation: str = Field("", pattern=rf"^$|{_SLURM_NAMES}")
    """Reservation that drones run in."""
    constraint: str = Field("", pattern=r"^[A-Za-z0-9_.&|()\[\]*:,+-]{0,255}$", examples=["LSDF"])
    """Features that nodes must have."""
    submit: Options = Field({}, examples=[{"exclude": "hkn0815", "nice": "100"}])
    """Further long options of sbatch, without dashes: text, or `true` for those without a value. Options that
    define a drone are refused."""

    def sbatch_options(self) -> dict[str, str | bool]:
        """Return all of these as options of sbatch by their long names: `submit`, and every other key that is set."""
        named = {key: getattr(self, key) for key in SlurmJobOptions.model_fields if key != "submit"}
        return {**self.submit, **{key: value for key, value in named.items() if value}}


class SlurmTypeOptions(SlurmJobOptions):
    """Options of one drone type, which override those of the site."""

    gres: str = Field("", pattern=r"^$|^[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?$", examples=["gpu:a100"])
    """Its GPUs as the cluster's Gres names them, without a number. Default: `gpu`, any type."""

    @property
    def gpu_type(self) -> str:
        """Return the type of its GPUs; "" is any."""
        return self.gres.partition(":")[2]


class SlurmRestConfig(ConfigSection):
    """Address of slurmrestd and the account there."""

    url: str = Field(
        pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?|unix:/[^\s]+)$",
        examples=["https://slurm.example.org:6820"],
    )
    """Its address: `http://host:port`, `https://...`, or `unix:/path/to/socket`."""
    user: str = Field("", pattern=r"^[A-Za-z0-9_.@-]{0,63}$")
    """Account that the token is for."""
    token: Secret | None = None
    """JWT of the account (`scontrol token`), read for each request. Not needed at a unix socket of the account
    itself."""
    ssh: SshSettings | None = None
    """Login node on which the unix socket of `url` is reached, forwarded over ssh."""
    ca: ConfigPath | None = None
    """File with the trusted certificate authorities, for https."""

    def credentials(self) -> Iterator[Credential]:
        """Yield the token and the authorities."""
        if self.token is not None:
            yield secret_credential("token", self.token, is_jwt=True)
        if self.ca is not None:
            yield authorities_credential("ca", self.ca)

    @section_check
    def _reachable(self) -> Self:
        if self.ssh is not None and not self.url.startswith("unix:"):
            raise ValueError(
                "`ssh` forwards a unix socket: write `url: unix:/path/on/the/login/node`"
            )
        if self.token is None and not self.url.startswith("unix:"):
            raise ValueError("`token` is required over the network: write `token: {file: path}`")
        if self.token is not None and not self.user:
            raise ValueError(
                "`user` is required with `token`: write the account that the token is for"
            )
        return self


class SlurmToolsConfig(ConfigSection):
    """Host and directory of Slurm's command-line tools."""

    ssh: SshSettings | None = None
    """Login node. Default: the tools run on this host."""
    bin: str = Field("", pattern=r"^(/[A-Za-z0-9_.+/-]*)?$")
    """Directory of the tools. Default: found by PATH."""


class SlurmNativeConfig(ConfigSection):
    """Interpreter that has pyslurm."""

    python: str = Field("", pattern=r"^(/[A-Za-z0-9_.+/-]*)?$", examples=["/usr/bin/python3"])
    """Interpreter (3.11 or newer) that has pyslurm. Default: the provisioner's."""


class SlurmOwnerConfig(ConfigSection):
    """Jobs of the owner, which preempt drones."""

    partitions: list[Annotated[str, Field(pattern=rf"^{_SLURM_NAME}$")]] = Field(
        min_length=1, examples=[["accelerated"]]
    )
    """Partitions in which the owner's jobs wait."""
    accounts: list[str] = Field([])
    """Only jobs of these accounts. Default: of any."""
    qos: list[str] = Field([])
    """Only jobs of these QOS. Default: of any."""
    users: list[str] = Field([])
    """Only jobs of these users. Default: jobs of all other users."""


class SlurmNodeHardware(ConfigSection):
    """Nodes of one kind, as in slurm.conf. Only `render blocking` uses them."""

    nodes: str = Field(pattern=r"^[A-Za-z0-9_.,\[\]-]{1,4000}$", examples=["hkn[0801-0967]"])
    """Their names, as in its NodeName line."""
    sockets: int = Field(2, ge=1, le=64)
    """Sockets."""
    cores_per_socket: int = Field(ge=1, le=1024, examples=[38])
    """CoresPerSocket."""
    threads_per_core: int = Field(1, ge=1, le=16, examples=[2])
    """ThreadsPerCore."""
    memory: Size = Field(examples=["512000 MiB"])
    """RealMemory (which counts in MiB)."""
    gpus: int = Field(ge=1, le=64, examples=[4])
    """GPUs."""
    gres: str = Field("gpu", pattern=r"^[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?$", examples=["gpu:a100"])
    """Name in its Gres, without a number."""

    @property
    def cpus(self) -> int:
        """Return the CPUs as Slurm counts them: hardware threads."""
        return self.sockets * self.cores_per_socket * self.threads_per_core


class SlurmSiteConfig(SlurmJobOptions):
    """Options of the ``slurm`` site."""

    transport: Literal["tools", "rest", "native"] = "tools"
    """Interface to Slurm: its command-line `tools` (here or over ssh), slurmrestd (`rest`), or pyslurm (`native`)."""
    tools: SlurmToolsConfig = SlurmToolsConfig()
    """Host and directory of the tools, with `transport: tools`."""
    rest: SlurmRestConfig | None = None
    """slurmrestd, with `transport: rest`."""
    native: SlurmNativeConfig = SlurmNativeConfig()
    """Interpreter that has pyslurm, with `transport: native`."""
    types: dict[str, SlurmTypeOptions] = Field({})
    """Options of single drone types, by name."""
    env: Environment = Field({}, examples=[{"CONDOR_PREFIX": "/home/kit/condor"}])
    """Environment variables for each drone. `CONDOR_PREFIX`: directory of HTCondor on the nodes, instead of the
    overlay's `condor_prefix`."""
    scratch: str = Field(
        "",
        pattern=r"^(\$[A-Za-z_][A-Za-z0-9_]*|/[A-Za-z0-9_./+-]*)?$",
        examples=["$TMPDIR", "/scratch"],
    )
    """Directory of drones on the nodes, or the variable of the job that holds it. Default: `$TMPDIR`, else `/tmp`."""
    output_directory: str = Field(
        "", pattern=r"^(/[A-Za-z0-9_./+-]*)?$", examples=["/home/kit/drones/logs"]
    )
    """Existing directory on the cluster's file system for the output of drones. Default: discarded."""
    owner: SlurmOwnerConfig | None = None
    """Jobs that have priority over drones. Default: no owner."""
    hardware: list[SlurmNodeHardware] = Field(
        [],
        examples=[
            [{"nodes": "hkn[0801-0967]", "cores_per_socket": 38, "memory": "512000 MiB", "gpus": 4}]
        ],
    )
    """The nodes with GPUs, for `provisioner render blocking`."""
    same_account: bool = False
    """Let jobs run under an account that can read the controller's secrets. Slurm runs drones as the account
    that submits them; it can read nothing if the nodes share no files with this host."""
    retain_finished: Duration = Field(600.0, ge=60.0)
    """Time for which ended drones are reported, as long as Slurm knows them."""
    deadline: PositiveDuration = 15.0
    """Longest time for one query."""
    submit_deadline: PositiveDuration = 45.0
    """Longest time for one submission."""

    @section_check
    def _only_transport(self) -> Self:
        if self.transport == "rest" and self.rest is None:
            raise ValueError("`rest` is required with this transport: write `rest: {url: ...}`")
        for name in ("rest", "tools", "native"):
            if name in self.model_fields_set and name != self.transport:
                raise ValueError(
                    f"`{name}` is for another transport: write `transport: {name}`, or remove it"
                )
        return self

    def drone_account(self) -> tuple[str, str]:
        """Return the option that names the account of drones, and that account."""
        if self.rest is not None and self.rest.user:
            return "rest.user", self.rest.user
        ssh = self.rest.ssh if self.rest is not None else self.tools.ssh
        return f"{self.transport}.ssh.user", ssh.user if ssh is not None else ""

    def options_for(self, type_name: str) -> SlurmTypeOptions:
        """Return the options for drones of a type: those of the type, else those of the site; `gres` is set."""
        special = self.types.get(type_name, SlurmTypeOptions())
        keys = SlurmJobOptions.model_fields.keys() - {"submit"}
        options = {key: getattr(special, key) or getattr(self, key) for key in keys}
        return SlurmTypeOptions(
            **options, submit={**self.submit, **special.submit}, gres=special.gres or "gpu"
        )

    def kept_life_s(self, walltime_s: float, grace_s: float) -> float:
        """Return how much shorter a drone lives than its walltime."""
        return walltime_s - drone_lifetime_s(walltime_s, grace_s)

    def type_conflicts(self, types: Sequence[DroneType]) -> Iterator[OptionFinding]:
        """Yield conflicts with the site's drone types: path in the site file, and message."""
        shares = "Slurm allocates whole GPUs: write `gpus: 1`"
        yield from type_findings(types, self.types, shares)
        for each in types:
            if each.walltime_s < 60:
                message = "`walltime` of at least a minute is required at a Slurm site: without it the partition's"
                yield (
                    ("types", each.name, "walltime"),
                    f"{message} DefaultTime, often minutes, would end the drone",
                )
        if self.transport != "tools":
            unsupported: dict[tuple[str, ...], str] = {}
            special = [
                (("options", "types", name, "submit"), each.submit)
                for name, each in self.types.items()
            ]
            for path, own in [(("options", "submit"), self.submit), *special]:
                for option, why in convert_options({**self.submit, **own}, self.transport)[
                    1
                ].items():
                    at = (*(path if option in own else ("options", "submit")), option)
                    unsupported.setdefault(at, f"{why}: remove it, or write `transport: tools`")
            yield from unsupported.items()


def drone_lifetime_s(walltime_s: float, grace_s: float) -> int:
    """Return the lifetime of a drone of this walltime, which ends before Slurm would signal it.

    Limits are whole minutes, slurmctld checks them every 30 s, and a signal may be a minute early.
    """
    limit_s = int(walltime_s // 60) * 60
    return max(limit_s - round(grace_s) - 3 * LIMIT_CHECK_INTERVAL_S, limit_s // 2)
