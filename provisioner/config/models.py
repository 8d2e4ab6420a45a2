"""The controller file and the site file as pydantic models: every key with its unit, default, meaning and an example.

The options of adapters are validated by each adapter's own ``Config``.
The reference and the JSON Schemas are generated from these classes.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from provisioner.config.units import (
    Capability,
    ConfigPath,
    CudaVersion,
    Duration,
    Gpus,
    Name,
    PositiveDuration,
    Size,
    format_duration,
)
from provisioner.model import WHOLE_GPU, Policy, Reserve, ReserveWhen, Sharing, SitePolicy
from provisioner.sharing import MOST_SHARES, MOST_SLICES

_POLICY = Policy()
_SITE = SitePolicy(site="")
_MAX_CONTROLLER_NAME = 32
"""Most characters: a drone's id begins with the name and is a DNS label of at most 63."""


def mistake_at(key: str | int, message: str) -> PydanticCustomError:
    """Return an error, found by comparing keys of one mapping or entries of one list, to be reported at ``key``."""
    return PydanticCustomError("mistake_at", "{message}", {"message": message, "at": key})


class ConfigSection(BaseModel):
    """A mapping with known keys only."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# ---------------------------------------------------------------------------------------------------- controller file


class StoreSection(ConfigSection):
    """The store: where the records are kept, and for how long."""

    path: ConfigPath = Field(
        description="SQLite file of the store; its directory is created if needed. One controller at a time uses it.",
        examples=["var/provisioner.db"],
    )
    keep: PositiveDuration = Field(
        default=30 * 86400.0,
        description="Finished drones, plans, events and completed jobs that are older than this are deleted.",
        examples=["30d"],
    )
    snapshots: int = Field(
        default=50,
        ge=0,
        le=100_000,
        description="Number of full snapshots kept, of the newest ticks that acted (for `provisioner replay`).",
        examples=[50],
    )


class OverlaySection(ConfigSection):
    """The pool where jobs wait and drones join."""

    adapter: str = Field(description="Name of the overlay adapter.", examples=["htcondor"])
    options: dict[str, Any] = Field(
        default_factory=dict, description="Options of the adapter, see below.", examples=[{}]
    )


def _two_hours(hours: tuple[int, ...]) -> tuple[int, ...]:
    if len(hours) != 2 or not all(0 <= hour <= 24 for hour in hours) or hours[0] == hours[1]:
        raise ValueError("expected two different hours from 0 to 24: write `[7, 17]`, or remove `hours` for always")
    return hours


class HeadroomSection(ConfigSection):
    """Headroom: free room for a number of equal jobs that have not been submitted yet."""

    name: Name = Field(description="Name of this headroom, as shown to people.", examples=["day-shift"])
    count: int = Field(ge=1, le=100_000, description="Number of jobs of this shape.", examples=[2])
    gpus: Gpus = Field(default=WHOLE_GPU, description="GPUs of each job.", examples=[1])
    vram: Size = Field(default=0, description="Memory that a job needs on each GPU.", examples=["40 GiB"])
    cpus: int = Field(default=1, ge=1, le=100_000, description="CPU cores of each job.", examples=[8])
    memory: Size = Field(default=1024, description="Memory of each job.", examples=["20 GiB"])
    disk: Size = Field(default=0, description="Scratch disk of each job.", examples=["10 GiB"])
    site: Name | None = Field(default=None, description="Only at this site. Default: any site.", examples=["topas"])
    types: tuple[Name, ...] = Field(
        default=(), description="Only drones of these types. Default: any type that fits.", examples=[["a100"]]
    )
    hours: Annotated[tuple[int, ...], AfterValidator(_two_hours)] | None = Field(
        default=None,
        description="From the first full hour of the day (UTC) up to the second; past midnight if the second is "
        "smaller. Default: always.",
        examples=[[7, 17]],
    )


def _names_differ(entries: tuple[HeadroomSection, ...]) -> tuple[HeadroomSection, ...]:
    names = [entry.name for entry in entries]
    for n, name in enumerate(names):
        if name in names[:n]:
            raise mistake_at(n, f"duplicate headroom `{name}`: choose another name")
    return entries


class PolicySection(ConfigSection):
    """The policy for all sites together."""

    interval: PositiveDuration = Field(default=15.0, description="Longest pause between two ticks.", examples=["15s"])
    active_interval: PositiveDuration = Field(
        default=2.0,
        description="Pause between two ticks while orders are in progress; at most `interval`.",
        examples=["2s"],
    )
    idle_timeout: PositiveDuration = Field(
        default=_POLICY.idle_timeout_s,
        description="Longest time that a drone is kept without a job, at least `interval`. Once the first drone of a "
        "site has joined, a shorter time applies: the cost of another start there, or the time that would have cost "
        "least over the gaps between jobs (`provisioner estimates` and `provisioner explain drone` show it). With "
        "`idle_fixed` it applies exactly.",
        examples=["10min"],
    )
    idle_fixed: bool = Field(
        default=_POLICY.idle_fixed,
        description="Keep an idle drone for exactly `idle_timeout`, regardless of estimates and of how long it took to "
        "start. Longer only while jobs wait that it could run.",
        examples=[True],
    )
    max_drones: int = Field(
        default=_POLICY.max_drones,
        ge=0,
        le=1_000_000,
        description="Most drones at one time at all sites together; 0 starts nothing.",
        examples=[1000],
    )
    max_gpus: Gpus | None = Field(
        default=None, description="Most GPUs at one time, at all sites together.", examples=[500]
    )
    overlay_max_age: PositiveDuration = Field(
        default=_POLICY.overlay_max_age_s,
        description="A view of the pool that is older than this is not used for decisions; at least `interval`.",
        examples=["2min"],
    )
    slot_max_age: PositiveDuration = Field(
        default=_POLICY.slot_max_age_s,
        description="A slot without an update for this long does not count as alive.",
        examples=["15min"],
    )
    early_exit_window: Duration = Field(
        default=_POLICY.early_exit_window_s,
        description="A drone that exits by itself within this time, without a job, counts as a failed start: its type "
        "backs off.",
        examples=["1min"],
    )
    max_unhealthy_fraction: float = Field(
        default=_POLICY.max_unhealthy_fraction,
        gt=0,
        le=1,
        description="If more than this share of all drones is unhealthy at once, nothing is started or stopped.",
        examples=[0.2],
    )
    min_unhealthy: int = Field(
        default=_POLICY.min_unhealthy,
        ge=1,
        description="Fewer unhealthy drones than this never pause the controller.",
        examples=[5],
    )
    waiting_cost: float = Field(
        default=_POLICY.waiting_cost,
        ge=0,
        le=1e6,
        description="GPU-seconds that one second of one job's waiting is worth. The larger, the sooner a drone is "
        "started that holds its GPUs for long before its first job (a cloud that boots for minutes); 0: at once.",
        examples=[0.3],
    )
    carbon: float | None = Field(
        default=None,
        ge=0,
        le=10_000,
        description="Grams of CO2 per kWh of electricity, for the CO2 of jobs on types with `power`.",
        examples=[380],
    )

    headroom: Annotated[tuple[HeadroomSection, ...], AfterValidator(_names_differ)] = Field(
        default=(),
        description="Free room kept for jobs that have not been submitted yet.",
        examples=[[{"name": "day-shift", "count": 2, "hours": [7, 17]}]],
    )

    @model_validator(mode="after")
    def _times_agree(self) -> Self:
        interval = format_duration(self.interval)
        if self.active_interval > self.interval:
            raise mistake_at("active_interval", f"is longer than `interval` ({interval}): write at most `{interval}`")
        if self.idle_timeout < self.interval:
            raise mistake_at(
                "idle_timeout",
                f"is shorter than `interval`: drones would leave between two ticks; write at least `{interval}`",
            )
        if self.overlay_max_age < self.interval:
            raise mistake_at(
                "overlay_max_age",
                f"is shorter than `interval`: views would always be too old; write at least `{interval}`",
            )
        return self


def _short_name(name: str) -> str:
    if len(name) > _MAX_CONTROLLER_NAME:
        raise ValueError(f"has {len(name)} characters: at most {_MAX_CONTROLLER_NAME}, it begins each drone's id")
    return name


class ControllerFile(ConfigSection):
    """The controller file: one controller, its store, its pool, its sites and the policy for all of them."""

    controller: Annotated[Name, AfterValidator(_short_name)] = Field(
        description="Name of this controller. Every drone's id begins with it: no two controllers may share a name.",
        examples=["kit"],
    )
    store: StoreSection = Field(description="The store of the controller.", examples=[{"path": "var/provisioner.db"}])
    overlay: OverlaySection = Field(
        description="The pool where jobs wait and drones join.", examples=[{"adapter": "htcondor"}]
    )
    sites: list[str] = Field(
        min_length=1,
        description="Site files: paths or patterns (`*`, `**`), from this file's directory.",
        examples=[["site_configs/*.yaml"]],
    )
    policy: PolicySection = Field(
        default_factory=PolicySection, description="The policy for all sites together.", examples=[{"interval": "15s"}]
    )


# ----------------------------------------------------------------------------------------------------------- site file


class LimitsSection(ConfigSection):
    """The limits of the site. They count drones that were requested and are not confirmed gone."""

    max_drones: int = Field(
        default=_SITE.max_drones,
        ge=0,
        le=1_000_000,
        description="Most drones at one time; 0 starts nothing.",
        examples=[4],
    )
    max_gpus: Gpus | None = Field(default=None, description="Most GPUs at one time.", examples=[4])
    max_pending: int = Field(
        default=_SITE.max_pending,
        ge=1,
        description="Most drones that were requested and have not joined the pool yet.",
        examples=[4],
    )
    max_starts_per_tick: int = Field(
        default=_SITE.max_starts_per_tick, ge=1, description="Most drones requested in one tick.", examples=[4]
    )


class TimeoutsSection(ConfigSection):
    """The timeouts of the site."""

    view_max_age: PositiveDuration = Field(
        default=_SITE.view_max_age_s,
        description="A view of the site that is older than this is not used; longer than `poll_deadline`.",
        examples=["2min"],
    )
    poll_deadline: PositiveDuration = Field(
        default=_SITE.poll_deadline_s, description="Longest time for one poll of the site.", examples=["20s"]
    )
    order_deadline: PositiveDuration = Field(
        default=_SITE.order_deadline_s, description="Longest time for one batch of starts or stops.", examples=["60s"]
    )
    order_confirm: PositiveDuration = Field(
        default=_SITE.order_confirm_s,
        description="After this time, a poll without a requested drone means that the order never arrived; "
        "at least `order_deadline`.",
        examples=["2min"],
    )
    missing: PositiveDuration = Field(
        default=_SITE.missing_s,
        description="A drone that is missing from at least two polls, for this long, is gone.",
        examples=["30s"],
    )
    queued: PositiveDuration = Field(
        default=_SITE.queued_s, description="Longest time in the site's own queue.", examples=["24h"]
    )
    booting: PositiveDuration = Field(
        default=_SITE.booting_s,
        description="Longest time from running at the site to joining the pool.",
        examples=["10min"],
    )
    joining: PositiveDuration = Field(
        default=_SITE.joining_s,
        description="Longest time in the pool without accepting jobs (the GPU check).",
        examples=["5min"],
    )
    slot_loss: PositiveDuration = Field(
        default=_SITE.slot_loss_s,
        description="Longest time that a joined drone may be missing from the pool while the site still runs it.",
        examples=["5min"],
    )
    idle: PositiveDuration | None = Field(
        default=None,
        description="Longest time that a drone of this site is kept without a job; a drone that took longer from its"
        " start to the pool is kept for that long, up to three times this. Estimates shorten it, see"
        " `policy.idle_timeout`. Default: `policy.idle_timeout`.",
        examples=["10min"],
    )
    idle_fixed: bool | None = Field(
        default=None,
        description="Keep an idle drone of this site for exactly `idle`, regardless of estimates and of how long it"
        " took to start. Default: `policy.idle_fixed`.",
        examples=[True],
    )
    draining: PositiveDuration = Field(
        default=_SITE.draining_s, description="Longest time for the last jobs of a draining drone.", examples=["24h"]
    )
    stopping: PositiveDuration = Field(
        default=_SITE.stopping_s,
        description="A drone that has not stopped after this time is stopped again.",
        examples=["1min"],
    )
    grace: Duration = Field(
        default=_SITE.grace_s, description="Time that the site gives a drone between notice and kill.", examples=["30s"]
    )

    @model_validator(mode="after")
    def _times_agree(self) -> Self:
        if self.order_confirm < self.order_deadline:
            least = format_duration(self.order_deadline)
            raise mistake_at(
                "order_confirm",
                f"is shorter than `order_deadline`: unfinished orders would count as lost; write at least `{least}`",
            )
        if self.view_max_age <= self.poll_deadline:
            least = format_duration(self.poll_deadline)
            raise mistake_at(
                "view_max_age", f"must be longer than `poll_deadline` ({least}): a view may take that long"
            )
        return self


_NODES = r"^[A-Za-z0-9*?\[\]._-]{1,255}$"

_NodePattern = Annotated[str, WithJsonSchema({"type": "string", "pattern": _NODES})]


def _node_patterns(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not re.fullmatch(_NODES, name):
            raise ValueError(f"has `{name[:80]}`: a node name or a pattern, of letters, digits, `.-_*?` and `[...]`")
    return names


class BlockingSection(ConfigSection):
    """Resources that each free GPU of certain nodes reserves for its next drone, so that CPU work cannot block it."""

    nodes: Annotated[tuple[_NodePattern, ...], AfterValidator(_node_patterns)] = Field(
        default=("*",),
        min_length=1,
        description="Node names; `*`, `?` and `[...]` as in file names. The first entry that matches a node applies.",
        examples=[["topas-a100-*"]],
    )
    cpus: int = Field(default=0, ge=0, le=100_000, description="CPU cores per free GPU.", examples=[8])
    memory: Size = Field(default=0, description="Memory per free GPU.", examples=["20 GiB"])
    disk: Size = Field(default=0, description="Scratch disk per free GPU.", examples=["50 GiB"])
    when: ReserveWhen = Field(
        default=ReserveWhen.ALWAYS,
        description="`always`; or `gpu-demand`: CPU drones of this controller may use it while no GPU job waits in the "
        "pool, and are drained when one does.",
        examples=["always"],
    )
    release_after: Duration = Field(
        default=Reserve().release_after_s,
        description="With `gpu-demand`: how long there must be no waiting GPU job before the reserve is released.",
        examples=["10min"],
    )

    @model_validator(mode="after")
    def _keeps_something(self) -> Self:
        if not (self.cpus or self.memory or self.disk):
            raise mistake_at("cpus", "nothing is reserved: write at least one of `cpus`, `memory` and `disk`")
        return self


def _each_is_reached(entries: tuple[BlockingSection, ...]) -> tuple[BlockingSection, ...]:
    for first, entry in enumerate(entries[:-1]):
        if any(not pattern.strip("*") for pattern in entry.nodes):
            raise mistake_at(
                first + 1,
                f"never reached: `blocking[{first}]` is for all nodes, and the first matching entry applies; "
                "move this one before it",
            )
    return entries


class OwnerSection(ConfigSection):
    """The behaviour of drones towards the owner of the hardware."""

    preempt_proactively: bool = Field(
        default=_SITE.preempt_proactively,
        description="Drain drones for the owner's waiting jobs before the site preempts them; `false`: leave it to the "
        "site.",
        examples=[True],
    )
    min_runtime: Duration = Field(
        default=_SITE.min_runtime_s,
        description="Drones whose first job began less than this time ago are not drained; the owner may have to wait "
        "that long.",
        examples=["0s"],
    )


_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OURS = {"droneid", "dronesite", "dronetype"}


def _slot_ad(ad: dict[str, str]) -> dict[str, str]:
    seen: dict[str, str] = {}
    for name, expression in ad.items():
        if not _ATTRIBUTE.fullmatch(name):
            raise mistake_at(name, f"`{name}` is not a ClassAd attribute name: letters, digits and `_` only")
        if name.lower() in _OURS:
            raise mistake_at(name, f"`{name}` is set by the provisioner: remove it")
        if name.lower() in seen:
            raise mistake_at(name, f"`{name}` and `{seen[name.lower()]}` are the same attribute: remove one")
        if not expression.strip() or not expression.isprintable():
            raise mistake_at(name, 'expected a ClassAd expression on one line: write `"true"` or `"\\"text\\""`')
        seen[name.lower()] = name
    return ad


class TypeSection(ConfigSection):
    """A drone type: a shape of drones that the site can start."""

    gpus: Gpus = Field(
        description="GPUs of one drone: a whole number, or a share of one in steps of 0.001; `0` is a CPU drone.",
        examples=[1],
    )
    gpu_model: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._()/+-]{0,127}$",
        description="Model of the GPUs as the driver names it, without `NVIDIA`.",
        examples=["A100-SXM4-40GB"],
    )
    vram: Size = Field(default=0, description="Memory of each GPU.", examples=["40 GiB"])
    capability: Capability = Field(default=0, description="CUDA compute capability of the GPUs.", examples=[8.0])
    driver: CudaVersion = Field(
        default=0, description="Newest CUDA version that the driver supports, in quotes.", examples=["12.4"]
    )
    arch: Literal["X86_64", "aarch64", "ppc64le"] = Field(
        default="X86_64", description="CPU architecture.", examples=["X86_64"]
    )
    cpus: int = Field(ge=1, le=100_000, description="CPU cores of one drone.", examples=[8])
    memory: Size = Field(description="Memory of one drone.", examples=["20 GiB"])
    disk: Size = Field(description="Scratch disk of one drone.", examples=["50 GiB"])
    walltime: PositiveDuration | None = Field(
        default=None,
        description="How long the site lets a drone run; longer than `timeouts.grace`. Default: no limit.",
        examples=["24h"],
    )
    sharing: Sharing = Field(
        default=Sharing.EXCLUSIVE, description="How the jobs of one drone share a GPU.", examples=["exclusive"]
    )
    shares: int = Field(
        default=1,
        ge=1,
        le=MOST_SHARES,
        description="Number of shares that each GPU is offered as, to jobs that request a part of a GPU: each gets one "
        "share, or as many as it requests, with their part of the VRAM. Jobs that request a whole GPU do not match. "
        f"Not with `sharing: exclusive`; with `mig` at most {MOST_SLICES}.",
        examples=[4],
    )
    power: float = Field(
        default=0.0,
        ge=0,
        le=100_000,
        description="Watts of one busy GPU, with its part of the node, for the energy of jobs; `0`: unknown.",
        examples=[400],
    )
    price: float = Field(
        default=1.0,
        ge=0,
        le=1e9,
        description="Relative cost of one GPU-hour; the cheapest type that fits is started first.",
        examples=[1.0],
    )
    max_drones: int | None = Field(
        default=None, ge=0, description="Most drones of this type at one time; 0 starts none.", examples=[2]
    )
    ad: Annotated[dict[str, str], AfterValidator(_slot_ad)] = Field(
        default_factory=dict,
        description="Further ClassAd attributes of the drone's slot, as expressions in quotes, for matching.",
        examples=[{"HasCVMFS": "true"}],
    )

    @model_validator(mode="after")
    def _can_exist(self) -> Self:
        if self.gpus == 0:
            for key in ("gpu_model", "vram", "capability", "driver"):
                if getattr(self, key):
                    raise mistake_at(key, f"a CPU drone (`gpus: 0`) has no GPU: remove `{key}`, or add a GPU")
            if self.sharing is not Sharing.EXCLUSIVE:
                raise mistake_at("sharing", "a CPU drone (`gpus: 0`) has no GPU to share: remove `sharing`")
            if self.power:
                raise mistake_at("power", "a CPU drone (`gpus: 0`) has no GPU: remove `power`")
        if self.gpus > WHOLE_GPU and self.gpus % WHOLE_GPU:
            raise mistake_at("gpus", "more than one GPU must be a whole number: write `1`, `2`, ... or a share below 1")
        if self.shares > 1:
            self._can_be_shared()
        for key, size_mib in (("memory", self.memory), ("disk", self.disk)):
            if size_mib == 0:
                raise mistake_at(key, f"must be more than 0: write `{key}: 20 GiB`")
        return self

    def _can_be_shared(self) -> None:
        if self.sharing is Sharing.EXCLUSIVE:
            raise mistake_at(
                "shares",
                "an exclusive GPU has no shares: add `sharing: mps`, `mig` or `time-sliced`, or remove `shares`",
            )
        if self.sharing is Sharing.MIG and self.shares > MOST_SLICES:
            raise mistake_at("shares", f"MIG has at most {MOST_SLICES} slices per GPU: write at most {MOST_SLICES}")
        if self.gpus < WHOLE_GPU:
            raise mistake_at("shares", "a share of a GPU cannot be shared: write `gpus: 1`, or remove `shares`")


class SiteFile(ConfigSection):
    """The site file: one place where drones run, the drone types that it can start, and its limits."""

    site: Name = Field(description="Name of the site.", examples=["local"])
    adapter: str = Field(description="Name of the site adapter.", examples=["local"])
    enabled: bool = Field(
        default=_SITE.enabled, description="`false`: start nothing there; running drones may finish.", examples=[True]
    )
    limits: LimitsSection = Field(
        default_factory=LimitsSection, description="Limits of the site.", examples=[{"max_drones": 4}]
    )
    price: float = Field(
        default=_SITE.price,
        ge=0,
        le=1e9,
        description="Factor on the prices of the site's types: the operator's preference between sites.",
        examples=[1.0],
    )
    queue_when_full: bool = Field(
        default=_SITE.queue_when_full,
        description="Request drones even if the site reports no free capacity.",
        examples=[False],
    )
    timeouts: TimeoutsSection = Field(
        default_factory=TimeoutsSection, description="Timeouts of the site.", examples=[{"booting": "10min"}]
    )
    blocking: Annotated[tuple[BlockingSection, ...], AfterValidator(_each_is_reached)] = Field(
        default=(),
        description="CPUs, memory and disk that free GPUs reserve on their nodes.",
        examples=[[{"cpus": 8, "memory": "20 GiB"}]],
    )
    owner: OwnerSection = Field(
        default_factory=OwnerSection,
        description="Behaviour towards the owner of the hardware.",
        examples=[{"preempt_proactively": True}],
    )
    types: dict[Name, TypeSection] = Field(
        min_length=1,
        description="Drone types by name.",
        examples=[{"a100": {"gpus": 1, "cpus": 8, "memory": "20 GiB", "disk": "50 GiB"}}],
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Options of the adapter, see below.", examples=[{}]
    )
