"""What an operator may set for a Slurm site."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from adapters.shared.commands.settings import SshSettings
from adapters.slurm.native import missing_requirement
from adapters.slurm.options import unsupported_options
from provisioner.config.messages import choices
from provisioner.config.models import mistake_at
from provisioner.config.units import ConfigPath, Duration, PositiveDuration, Secret, Size
from provisioner.model import WHOLE_GPU, DroneType

_WORD = r"[A-Za-z0-9_.@+:-]{1,127}"
_WORDS = rf"^{_WORD}(,{_WORD})*$"
_OPTION = re.compile(r"[a-z][a-z0-9-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OUR_VARIABLES = re.compile(
    r"PROVISIONER_.*|DRONE_.*|_CONDOR_.*|CONDOR_(?!PREFIX$).*|SLURM_.*|CUDA_VISIBLE_DEVICES", re.IGNORECASE
)

LIMIT_CHECK_INTERVAL_S = 30
"""Period in which slurmctld looks at limits."""
_THE_SHAPE = "it follows from the drone type: change `types`"
_THE_DRONE = "it is the drone's own"
_ONE_LIFE = "it keeps drones single-use"
_BY_KEY = "write it beside `submit`, not below it"
_BY_TYPE = "write it under `types`, for each drone type, without a number"
REFUSED_OPTIONS = {
    **dict.fromkeys(("cpus-per-task", "ntasks", "nodes", "mem", "mem-per-cpu", "mem-per-gpu", "tmp"), _THE_SHAPE),
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "cpus-per-gpu"), _THE_SHAPE),
    **dict.fromkeys(("ntasks-per-node", "ntasks-per-gpu", "ntasks-per-core", "ntasks-per-socket"), _THE_SHAPE),
    **dict.fromkeys(("tasks-per-node", "tres-per-task", "mincpus", "core-spec", "thread-spec"), _THE_SHAPE),
    **dict.fromkeys(("overcommit", "jobid", "workdir"), _THE_DRONE),
    **dict.fromkeys(("time", "time-min", "deadline", "begin"), "it is the `walltime` of the drone type"),
    **dict.fromkeys(("job-name", "array", "parsable", "wrap", "input", "error", "chdir", "export"), _THE_DRONE),
    **dict.fromkeys(("export-file", "get-user-env", "open-mode", "uid", "gid", "test-only", "wait"), _THE_DRONE),
    **dict.fromkeys(("signal",), "set `timeouts.grace`"),
    **dict.fromkeys(("requeue", "no-requeue", "hold", "dependency", "kill-on-invalid-dep"), _ONE_LIFE),
    **dict.fromkeys(("output",), "set `output_directory`"),
    **dict.fromkeys(("partition", "account", "qos", "reservation", "constraint"), _BY_KEY),
    **dict.fromkeys(("gres",), _BY_TYPE),
    **dict.fromkeys(
        ("cluster", "clusters", "help", "usage", "version", "quiet", "verbose"), "it is no option of a job"
    ),
}
"""Options of sbatch that only the provisioner sets, and what to do instead."""


def _options(options: dict[str, str | bool]) -> dict[str, str | bool]:
    for name, value in options.items():
        if not _OPTION.fullmatch(name):
            raise mistake_at(name, f"`{name[:40]}` is not an option of sbatch: write its long name without dashes")
        if (instead := REFUSED_OPTIONS.get(name, "")) in (_BY_KEY, _BY_TYPE):
            raise mistake_at(name, f"`{name}` has a key of its own: {instead}")
        if instead:
            raise mistake_at(name, f"`{name}` is set by the provisioner: remove it ({instead})")
        if meant := next((ours for ours in REFUSED_OPTIONS if ours.startswith(name)), ""):
            raise mistake_at(name, f"`{name}` is taken for `{meant}` by sbatch, which the provisioner sets: remove it")
        if value is False:
            raise mistake_at(name, f"`{name}: false` says nothing: remove it")
        if isinstance(value, str) and (not value.strip() or not value.isprintable()):
            raise mistake_at(name, f"`{name}` wants a value on one line, in quotes, or `true` if it takes none")
    return options


def _plain_environment(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name) or not value.isprintable():
            raise mistake_at(name, f"`{name[:40]}` cannot be an environment variable: a name, and a value on one line")
        if _OUR_VARIABLES.fullmatch(name):
            raise mistake_at(name, f"`{name}` is set by the site itself: remove it")
    return env


Options = Annotated[dict[str, str | bool], AfterValidator(_options)]


class SlurmJobOptions(BaseModel):
    """SlurmJobOptions drones go in the cluster; for all of them, or for one type in the place of that."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: str = Field(
        default="",
        pattern=rf"^$|{_WORDS}",
        description="Partition, or several with commas. Default: the cluster's.",
        examples=["accelerated"],
    )
    account: str = Field(default="", pattern=rf"^({_WORD})?$", description="Account that is charged.")
    qos: str = Field(default="", pattern=rf"^({_WORD})?$", description="Quality of service.")
    reservation: str = Field(default="", pattern=rf"^$|{_WORDS}", description="Reservation that drones run in.")
    constraint: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.&|()\[\]*:,+-]{0,255}$",
        description="Features that nodes must have.",
        examples=["LSDF"],
    )
    submit: Options = Field(
        default_factory=dict,
        description="Further options of sbatch by their long names without dashes, as text, or `true` for those that"
        " take no value; none that says what a drone is.",
        examples=[{"exclude": "hkn0815", "nice": "100"}],
    )


class SlurmTypeOptions(SlurmJobOptions):
    """What is special about one drone type."""

    gres: str = Field(
        default="",
        pattern=r"^$|^[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?$",
        description="Which GPUs it has, as the cluster's Gres names them, without a number. Default: `gpu`, any type.",
        examples=["gpu:a100"],
    )


class SlurmRestConfig(BaseModel):
    """slurmrestd, and who we are to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(
        pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?|unix:/[^\s]+)$",
        description="SlurmJobOptions it listens: `http://host:port`, `https://...`, or `unix:/path/to/socket`.",
        examples=["https://slurm.example.org:6820"],
    )
    user: str = Field(default="", pattern=r"^[A-Za-z0-9_.@-]{0,63}$", description="Account that the token is for.")
    token: Secret | None = Field(
        default=None,
        description="JWT of the account (`scontrol token`). Its file is read again when it changes and when the token"
        " is refused. Not needed at a unix socket of the account itself.",
    )
    ssh: SshSettings | None = Field(
        default=None, description="Login node on which the unix socket of `url` is reached, forwarded over ssh."
    )
    ca: ConfigPath | None = Field(default=None, description="File with the authorities to believe, for https.")
    max_job_details_per_poll: int = Field(
        default=50,
        ge=1,
        le=1000,
        description="At most so many jobs are looked at closely at a time; the rest by state.",
    )

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.ssh is not None and not self.url.startswith("unix:"):
            raise ValueError("`ssh` forwards a unix socket: write `url: unix:/path/on/the/login/node`")
        if self.token is None and not self.url.startswith("unix:"):
            raise ValueError("`token` is wanted over the network: write `token: {file: path}`")
        if self.token is not None and not self.user:
            raise ValueError("`user` is wanted with `token`: the account that the token is for")
        return self


class SlurmToolsConfig(BaseModel):
    """Slurm's command-line tools: where they are run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ssh: SshSettings | None = Field(default=None, description="Login node; without it the tools are run on this host.")
    bin: str = Field(
        default="", pattern=r"^(/[A-Za-z0-9_.+/-]*)?$", description="Directory of the tools. Default: found by PATH."
    )


class SlurmNativeConfig(BaseModel):
    """pyslurm: which Python has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: str = Field(
        default="",
        pattern=r"^(/[A-Za-z0-9_.+/-]*)?$",
        description="Interpreter (3.11 or newer) that has pyslurm, the system's own for example; it needs nothing else"
        " that the provisioner needs. Default: the provisioner's.",
        examples=["/usr/bin/python3"],
    )


class SlurmOwnerConfig(BaseModel):
    """Whose jobs come first, and take the place of drones by preemption."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partitions: list[str] = Field(
        min_length=1, description="Partitions in which the owner's jobs wait.", examples=[["accelerated"]]
    )
    accounts: list[str] = Field(default_factory=list, description="Only jobs of these accounts. Default: of any.")
    qos: list[str] = Field(default_factory=list, description="Only jobs of these QOS. Default: of any.")
    users: list[str] = Field(default_factory=list, description="Only jobs of these users. Default: of any but ours.")


class SlurmNodeHardware(BaseModel):
    """Nodes of one kind, as slurm.conf tells them: `render blocking` reckons with it. Nothing else looks at it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: str = Field(
        pattern=r"^[A-Za-z0-9_.,\[\]-]{1,4000}$",
        description="Their names, as in its NodeName line.",
        examples=["hkn[0801-0967]"],
    )
    sockets: int = Field(default=2, ge=1, le=64, description="Sockets.")
    cores_per_socket: int = Field(ge=1, le=1024, description="CoresPerSocket.", examples=[38])
    threads_per_core: int = Field(default=1, ge=1, le=16, description="ThreadsPerCore.", examples=[2])
    memory: Size = Field(description="RealMemory (which counts in MiB).", examples=["512000 MiB"])
    gpus: int = Field(ge=1, le=64, description="GPUs.", examples=[4])
    gres: str = Field(
        default="gpu",
        pattern=r"^[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?$",
        description="How its Gres names them, without a number.",
        examples=["gpu:a100"],
    )

    @property
    def cpus(self) -> int:
        """As Slurm counts them there."""
        return self.sockets * self.cores_per_socket * self.threads_per_core


class SlurmSiteConfig(SlurmJobOptions):
    """Options of the ``slurm`` site."""

    transport: Literal["tools", "rest", "native"] = Field(
        default="tools",
        description="How Slurm is spoken to: by its command-line `tools` (here or over ssh), by slurmrestd (`rest`), or"
        " by pyslurm (`native`).",
    )
    tools: SlurmToolsConfig = Field(
        default_factory=SlurmToolsConfig, description="SlurmJobOptions the tools are, with `transport: tools`."
    )
    rest: SlurmRestConfig | None = Field(default=None, description="slurmrestd, with `transport: rest`.")
    native: SlurmNativeConfig = Field(
        default_factory=SlurmNativeConfig, description="SlurmJobOptions pyslurm is, with `transport: native`."
    )
    types: dict[str, SlurmTypeOptions] = Field(
        default_factory=dict, description="What is special about a drone type, by its name."
    )
    env: Annotated[dict[str, str], AfterValidator(_plain_environment)] = Field(
        default_factory=dict,
        description="Environment variables for each drone. `CONDOR_PREFIX` here is said instead of the overlay's"
        " `condor_prefix`: where HTCondor is on the nodes of this site.",
        examples=[{"CONDOR_PREFIX": "/home/kit/condor"}],
    )
    scratch: str = Field(
        default="",
        pattern=r"^(\$[A-Za-z_][A-Za-z0-9_]*|/[A-Za-z0-9_./+-]*)?$",
        description="Directory on the nodes below which drones work, or the variable of the job's environment that"
        " holds it. Default: `$TMPDIR`, or `/tmp` without it.",
        examples=["$TMPDIR", "/scratch"],
    )
    output_directory: str = Field(
        default="",
        pattern=r"^(/[A-Za-z0-9_./+-]*)?$",
        description="Directory on the cluster's file system, there already, for what drones say. Default: nowhere.",
        examples=["/home/kit/drones/logs"],
    )
    accounting: bool | None = Field(
        default=None,
        description="Whether there is an accounting database to ask what became of drones that slurmctld has forgotten."
        " Default: found out.",
    )
    owner: SlurmOwnerConfig | None = Field(
        default=None, description="Whose jobs come first here. Without it the site's owner is not looked at."
    )
    hardware: list[SlurmNodeHardware] = Field(
        default_factory=list,
        description="The nodes with GPUs, for `provisioner render blocking`.",
        examples=[[{"nodes": "hkn[0801-0967]", "cores_per_socket": 38, "memory": "512000 MiB", "gpus": 4}]],
    )
    retain_finished: Duration = Field(
        default=600.0, ge=60.0, description="How long an ended drone is told with its end, as long as Slurm knows it."
    )
    deadline: PositiveDuration = Field(default=15.0, description="Longest time for one question to Slurm.")
    submit_deadline: PositiveDuration = Field(default=45.0, description="Longest time for one submit.")

    @model_validator(mode="after")
    def _transport_alone(self) -> Self:
        if self.transport == "rest" and self.rest is None:
            raise ValueError("`rest` is wanted with this transport: write `rest: {url: ...}`")
        if self.transport != "rest" and self.rest is not None:
            raise ValueError("`rest` is for another transport: write `transport: rest`, or remove it")
        if self.transport != "tools" and self.tools != SlurmToolsConfig():
            raise ValueError("`tools` is for another transport: write `transport: tools`, or remove it")
        if self.transport != "native" and self.native != SlurmNativeConfig():
            raise ValueError("`native` is for another transport: write `transport: native`, or remove it")
        return self

    def options_for(self, kind: str) -> SlurmJobOptions:
        """SlurmJobOptions drones of a type go: what is said for the type, else what is said for all."""
        special = self.types.get(kind, SlurmTypeOptions())
        keys = ("partition", "account", "qos", "reservation", "constraint")
        told = {key: getattr(special, key) or getattr(self, key) for key in keys}
        return SlurmJobOptions(**told, submit={**self.submit, **special.submit})

    def gres_of(self, kind: str) -> str:
        """Which GPUs drones of a type have, as Gres names them: ``gpu`` or ``gpu:a100``."""
        return self.types.get(kind, SlurmTypeOptions()).gres or "gpu"

    def kept_life_s(self, walltime_s: float, grace_s: float) -> float:
        """Return how much shorter a drone lives than its walltime."""
        return walltime_s - drone_lifetime_s(walltime_s, grace_s)

    def misfits(self, types: Sequence[DroneType]) -> Iterator[tuple[tuple[str, ...], str]]:
        """What does not go with the site's drone types: path in the site file, and message."""
        for kind in types:
            if kind.gpu_milli % WHOLE_GPU:
                yield ("types", kind.name, "gpus"), "`gpus`: Slurm gives whole GPUs to a drone: write `gpus: 1`"
            if kind.walltime_s < 60:
                message = "`walltime` is wanted at a Slurm site, a minute at least: without it the partition's"
                yield ("types", kind.name, "walltime"), f"{message} DefaultTime, often minutes, would end the drone"
        names = [kind.name for kind in types]
        for name in self.types:
            if name not in names:
                message = f"there is no drone type `{name[:63]}`: {choices(name, names)}"
                yield ("options", "types", name), message
        yield from self._unsupported().items()

    def _unsupported(self) -> dict[tuple[str, ...], str]:
        """Options of sbatch for which the transport has no words: path in the site file, and message."""
        found: dict[tuple[str, ...], str] = {}
        if self.transport == "tools":
            return found
        special = [(("options", "types", name, "submit"), each.submit) for name, each in self.types.items()]
        for path, own in [(("options", "submit"), self.submit), *special]:
            for option, why in unsupported_options({**self.submit, **own}, self.transport).items():
                at = (*(path if option in own else ("options", "submit")), option)
                found.setdefault(at, f"{why}: remove it, or write `transport: tools`")
        return found

    def doubts(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """What would not work on this very host; the controller may run on another. Path below the options, message."""
        if self.transport == "native" and (missing := missing_requirement(self.native.python)):
            yield ("native", "python") if self.native.python else ("transport",), missing


def drone_lifetime_s(walltime_s: float, grace_s: float) -> int:
    """Return the lifetime given to a drone of this walltime: it ends before Slurm would signal it.
    Limits are whole minutes and looked at every 30 s, and a signal may be a minute early."""
    limit_s = int(walltime_s // 60) * 60
    return max(limit_s - round(grace_s) - 3 * LIMIT_CHECK_INTERVAL_S, limit_s // 2)
