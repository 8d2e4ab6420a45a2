"""Settings of sites, drone types and the policy, as the planner reads them and as operators write them.

A setting is declared here alone: its default, its bounds, and its meaning in the text below it. Its
key in the file is the name of the field without the unit at the end, and the unit decides how the
value is written: ``booting_s`` is ``booting: 10min``. :mod:`provisioner.config.sections` makes
sections of the configuration of them, each of adjacent fields: the place of a field decides its
section (``settings_of`` in :mod:`provisioner.config.models`). This module imports no pydantic:
verbs would start later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal

from provisioner.keys import Scope, TypeKey
from provisioner.values import factory, frozen, setting

WHOLE_GPU = 1000
"""One GPU in milli-GPU. Shares are integers: 0.2 + 0.1 must be 0.3."""
MOST_SHARES = 32
"""Maximum of shares of one GPU: with more of them the rounding losses would add up to another share."""


class Sharing(StrEnum):
    """Ways in which jobs of one drone share a GPU."""

    EXCLUSIVE = "exclusive"
    TIME_SLICED = "time-sliced"
    MPS = "mps"
    MIG = "mig"


NVIDIA: Final = "nvidia"


@frozen
class Benchmark:
    """Result of a benchmark on nodes of a drone type."""

    name: str = setting(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$", example="HEPscore23")
    """Name of the benchmark. For accounting by HTCondor-CE that of `manual_spec` in its `client.cfg`."""
    value: float = setting(gt=0, le=1e9, example=14.4)
    """Result per core, or per GPU."""
    date: str = setting(
        pattern=r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$", example="2026-11-01"
    )
    """Day of the measurement, in quotes."""
    per: Literal["core", "gpu"] = "core"
    """Unit of the result: one core or one whole GPU."""
    average: float | None = setting(default=None, gt=0, le=1e9, example=12.5)
    """Average of the benchmark over the resources behind the CE, for `ApelScaling`. Default: unknown."""


@frozen
class InferenceServer:
    """Inference server that each drone of a type runs in place of a node of the pool."""

    service: str = setting(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$", example="cms")
    """Name of the service that it belongs to, an entry of `services` in the controller file."""
    models: tuple[str, ...] = setting(example=["deepmet:3"])
    """Models that it loads, each with its version."""
    command: str = setting(default="", example='exec tritonserver --http-port="$SERVICE_HTTP_PORT"')
    """Shell command that runs the server in the foreground. Default: what the container runs by itself."""
    container: str = setting(
        default="",
        pattern=r"^([A-Za-z0-9/][A-Za-z0-9/._:@+=-]{0,1023})?$",
        example="/cvmfs/unpacked.cern.ch/tritonserver:25.08",
    )
    """Image that Apptainer runs the command in. Default: none."""
    first_port: int = setting(default=20000, ge=1024, le=65000)
    """First of the ports of servers of the type. Each drone has three of them: HTTP, gRPC and metrics."""
    ports: int = setting(default=900, ge=3, le=30000)
    """Number of these ports."""
    ready: str = setting(default="/v2/health/ready", pattern=r"^/[A-Za-z0-9/._-]{1,127}$")
    """Path that answers with 200 when the server is ready."""
    metrics: str = setting(default="/metrics", pattern=r"^/[A-Za-z0-9/._-]{1,127}$")
    """Path of its metrics, at the third port."""


SERVER_WALLTIME_S = 24 * 3600.0
"""Walltime of a type with a server that has none of its own: without idle timeout it would outlive its controller."""
_PER_CORE = re.compile(r"hepspec|hepscore|hs\d", re.IGNORECASE)
"""Beginnings of the names of benchmarks that pilots know as `HEPSPEC_PER_CORE`."""


@frozen
class DroneType:
    """Shape of a drone that a site can start: of the whole drone, but for ``vram_mib``, which is per GPU.

    A type without a GPU is a CPU drone: it takes jobs without a GPU, and never uses the reserve of
    free GPUs.
    """

    site: str
    name: str
    gpu_milli: int = setting(example=1)
    """GPUs of one drone: a whole number, or a share of one in steps of 0.001; `0` is a CPU drone."""
    cpus: int = setting(ge=1, le=100_000, example=8)
    """CPU cores of one drone."""
    memory_mib: int = setting(example="20 GiB")
    """Memory of one drone."""
    disk_mib: int = setting(example="50 GiB")
    """Scratch disk of one drone."""
    vram_mib: int = 0
    """Memory of each GPU."""
    gpu_model: str = setting(
        default="", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._()/+-]{0,127}$", example="A100-SXM4-40GB"
    )
    """Model of the GPUs as the driver names it. Case, and `NVIDIA`, `Tesla` or `GeForce` in front, make no
    difference; nor do dashes in common models."""
    capability: int = 0
    """CUDA compute capability of the GPUs."""
    driver: int = 0
    """Newest CUDA version that the driver supports, in quotes. Without it, no job of an HTCondor
    pool that asks for a CUDA version (`gpus_minimum_runtime`) fits the type."""
    vendor: Literal["nvidia", "amd", "intel"] = NVIDIA
    """Vendor of the GPUs. Only those of NVIDIA have a `capability` and a `driver`."""
    target: str = setting(
        default="", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$", example="gfx90a"
    )
    """Instruction set of the GPUs, the attribute `GpuTarget` of the slot. Default: `sm_80` for `capability: 8.0`."""
    arch: Literal["X86_64", "aarch64", "ppc64le"] = "X86_64"
    """CPU architecture."""
    walltime_s: float = setting(default=0.0, example="24h")
    """Longest run of a drone at the site; longer than `timeouts.grace`. Default: no limit; a day with a `server`."""
    sharing: Sharing = Sharing.EXCLUSIVE
    """Way in which the jobs of one drone share a GPU. All but `exclusive` need `shares`, or for `mps` a part
    of a GPU (`gpus: 0.25`): its drone is limited to `vram`."""
    shares: int = setting(default=1, ge=1, le=MOST_SHARES, example=4)
    """Number of shares of each GPU. A job that requests a part of a GPU gets as many as it needs, with their
    part of the VRAM; jobs for a whole GPU do not match. At most 32, with `mig` 7; not with `sharing:
    exclusive`."""
    vram_pool: bool = False
    """With `sharing: mps`: jobs request VRAM in MiB (`request_gpumem`), and at least an equal share counts for
    each. For `gpus: 1`, with `vram` and `shares`."""
    power_w: float = setting(default=0.0, ge=0, le=100_000, example=400)
    """Watts of one busy GPU, with its part of the node, for the energy of jobs; `0`: unknown."""
    price: float = setting(default=1.0, ge=0, le=1e9)
    """Relative cost of one GPU-hour; the cheapest type that fits is started first."""
    max_drones: int | None = setting(default=None, ge=0, example=2)
    """Most drones of this type at one time; 0 starts none."""
    margin_s: float = 0.0
    """Part of the walltime that no job gets: the start, the site's grace period, and the reserve of its adapter."""
    ad: Mapping[str, str] = factory(dict)
    benchmark: tuple[Benchmark, ...] = ()
    speed: Mapping[str, float] = factory(dict)
    """TFLOPS of each GPU by precision."""
    glidein_site: str = ""
    """Name of the site in the grid."""
    dcgm_jobs: str = ""
    """Directory of dcgm-exporter's job mapping on the nodes."""
    server: InferenceServer | None = None
    """Inference server of its drones, which take no jobs then."""
    kept_cpus: int = 0
    """CPUs of the drone that each of its free GPUs keeps for its next job (blocking)."""
    kept_memory_mib: int = 0
    kept_disk_mib: int = 0

    @property
    def key(self) -> TypeKey:
        return TypeKey(f"{self.site}/{self.name}")

    @property
    def service(self) -> str:
        """Return the service that servers of its drones belong to; empty: they take jobs."""
        return self.server.service if self.server is not None else ""

    @property
    def scope(self) -> Scope:
        return Scope(self.site, self.name)

    @property
    def gpu_target(self) -> str:
        """Return the instruction set of the GPUs; empty: unknown."""
        return self.target or (
            f"sm_{self.capability}" if self.vendor == NVIDIA and self.capability else ""
        )

    @property
    def published(self) -> Mapping[str, str]:
        """Return attributes that pilots and accounting read in the slot, as ClassAd expressions without blanks."""
        found = {}
        if self.glidein_site:
            found["GLIDEIN_Site"] = f'"{self.glidein_site}"'
        for name, per in (("ApelSpecs", "core"), ("GpuSpecs", "gpu")):
            results = {each.name: f"{each.value:.6g}" for each in self.benchmark if each.per == per}
            found[name] = _record(results)
        for each in reversed(self.benchmark):
            if each.per != "core":
                continue
            if _PER_CORE.match(each.name):
                found["HEPSPEC_PER_CORE"] = f"{each.value:.6g}"
            if each.average:
                found["ApelScaling"] = f"{each.value / each.average:.6g}"
        dates = {each.name: f'"{each.date}"' for each in self.benchmark}
        found["BenchmarkDates"] = _record(dates)
        speeds = {name.upper(): f"{tflops:.6g}" for name, tflops in self.speed.items()}
        found["GpuSpeed"] = _record(speeds)
        return {name: text for name, text in found.items() if text}

    @property
    def shares_faults(self) -> bool:
        """Return True if a job can end its neighbours on the GPU. MIG instances isolate faults."""
        return self.shares > 1 and self.sharing in (Sharing.MPS, Sharing.TIME_SLICED)

    @property
    def limits_part(self) -> bool:
        """Return True for a part of a GPU whose drone has its own MPS, with a limit of VRAM."""
        is_part = 0 < self.gpu_milli < WHOLE_GPU and self.shares == 1
        return is_part and self.sharing is Sharing.MPS

    @property
    def longest_job_s(self) -> float:
        """Return the longest walltime of a job that may get a new drone of the type; 0: no limit."""
        return max(1.0, self.walltime_s - self.margin_s) if self.walltime_s else 0.0


def _record(values: Mapping[str, str]) -> str:
    """Return a ClassAd of these values; empty without any."""
    if not values:
        return ""
    fields = ";".join(f"{name}={text}" for name, text in values.items())
    return f"[{fields}]"


@frozen
class Reserve:
    """Blocking: resources that each free GPU of certain nodes keeps for its next drone."""

    nodes: tuple[str, ...] = ("*",)
    cpus: int = setting(default=0, ge=0, le=100_000, example=8)
    """CPU cores per free GPU."""
    memory_mib: int = 0
    """Memory per free GPU."""
    disk_mib: int = 0
    """Scratch disk per free GPU."""


@frozen
class MigLayout:
    """MIG instances that the administrator has made of each GPU of certain nodes."""

    gpu_model: str
    layout: tuple[str, ...]
    """Names of profiles, one for each instance."""
    nodes: tuple[str, ...] = ("*",)


@frozen
class SitePolicy:
    """The policy of one site. Limits count drones that were requested and are not confirmed gone."""

    site: str
    enabled: bool = True
    """`false`: start nothing there; running drones may finish."""
    standby_polls: bool = True
    """`false`: a standby does not poll the site, as for sites that limit logins. The first tick after a
    take-over then waits for its view."""
    price: float = setting(default=1.0, ge=0, le=1e9)
    """Factor on the prices of the site's types: the operator's preference between sites."""
    queue_when_full: bool = False
    """Request drones even if the site reports no free capacity."""
    max_drones: int = setting(default=10, ge=0, le=1_000_000, example=4)
    """Most drones at one time; 0 starts nothing."""
    max_gpu_milli: int | None = None
    """Most GPUs at one time."""
    max_pending: int = setting(default=20, ge=1, example=4)
    """Most drones that were requested and have not joined the pool yet."""
    max_starts_per_tick: int = setting(default=10, ge=1, example=4)
    """Most drones requested in one tick."""
    view_max_age_s: float = 120.0
    """A view of the site that is older than this is not used; longer than `poll_deadline`."""
    poll_deadline_s: float = 20.0
    """Longest time for one poll of the site."""
    order_deadline_s: float = 60.0
    """Longest time for one batch of starts or stops."""
    order_confirm_s: float = 120.0
    """After this time, a poll without a requested drone means that the order never arrived; at
    least `order_deadline`."""
    missing_s: float = 30.0
    """A drone that is missing from at least two polls, for this long, is gone."""
    queued_s: float = 86400.0
    """Longest time in the site's own queue."""
    booting_s: float = 600.0
    """Longest time from running at the site to joining the pool."""
    joining_s: float = 300.0
    """Longest time in the pool without accepting jobs (the GPU check)."""
    slot_loss_s: float = 300.0
    """Longest time that a joined drone may be missing from the pool while the site still runs it."""
    idle_timeout_s: float | None = setting(default=None, key="idle", example="10min")
    """Longest time that a drone of this site is kept without a job; up to three times as long if its start took
    longer. Default: `policy.idle_timeout`."""
    idle_fixed: bool | None = setting(default=None, example=True)
    """Keep an idle drone of this site for exactly `idle`. Default: `policy.idle_fixed`."""
    draining_s: float = 86400.0
    """Longest time for the last jobs of a draining drone."""
    stopping_s: float = 60.0
    """A drone that has not stopped after this time is stopped again."""
    grace_s: float = setting(default=30.0, zero=True)
    """Time that the site gives a drone between notice and kill."""
    preempt_proactively: bool = True
    """Drain drones for the owner's waiting jobs before the site preempts them; `false`: leave it to the site."""
    min_runtime_s: float = setting(default=0.0, zero=True, example="0s")
    """Time after its first job began in which a drone is not drained; the owner may wait as long."""
    blocking: tuple[Reserve, ...] = ()
    mig: tuple[MigLayout, ...] = ()


@frozen
class Headroom:
    """Warm drones: room for a number of jobs of one shape that have not arrived yet."""

    name: str
    gpu_milli: int = setting(default=WHOLE_GPU, example=1)
    """GPUs of each job."""
    cpus: int = setting(default=1, ge=1, le=100_000, example=8)
    """CPU cores of each job."""
    memory_mib: int = 1024
    """Memory of each job."""
    disk_mib: int = 0
    """Scratch disk of each job."""
    vram_mib: int = 0
    """Memory that a job needs on each GPU."""
    count: int = 1
    site: str = ""
    types: tuple[str, ...] = ()
    from_h: int = 0
    """Kept from this hour of the day (UTC) until ``to_h``, which may be after midnight."""
    to_h: int = 24


class LowUseAction(StrEnum):
    """Actions on job classes that use little of their GPUs."""

    NONE = "none"
    WARN = "warn"


@frozen
class LowUsePolicy:
    """Job classes (the jobs of a user with one size) that use little of their GPUs."""

    action: LowUseAction = setting(default=LowUseAction.NONE, example="warn")
    """`warn`: an event, and a note in `status`. `none`: neither."""
    below: float = setting(default=0.15, gt=0, le=1)
    """Low use is a mean use of less than this part of the GPUs that the jobs held."""
    jobs: int = setting(default=20, ge=1, le=1_000_000)
    """Fewest measured jobs of a class."""
    window_s: float = 7 * 86400.0
    """Only jobs that ended within this time count; at most `store.keep`."""


@frozen
class GpuBudget:
    """GPU-hours granted at a site, such as a project's allocation at a computing centre."""

    site: str
    gpu_hours: float
    since: str
    """First day, ``YYYY-MM-DD``."""
    until: str
    """Last day."""


@frozen
class AccountingPolicy:
    """Figures that reports of accounting compare with."""

    weight: str = ""
    pledges: Mapping[str, float] = factory(dict)
    budgets: tuple[GpuBudget, ...] = ()


@frozen
class Service:
    """Inference service: equal servers, in drones of the types that name it, behind one balancer."""

    name: str = setting(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$", example="cms")
    """Name of the service."""
    at_least: int = setting(default=0, ge=0, le=10_000)
    """Fewest servers, also without demand."""
    at_most: int = setting(default=8, ge=1, le=10_000)
    """Most servers."""
    idle_s: float = setting(default=300.0, example="5min")
    """Time after the last request by which all servers have stopped. They stop earlier if their models load quickly,
    and need two `interval` and some seconds for it."""
    unready_s: float = 60.0
    """A server that is not ready for this long is replaced."""
    load: float = setting(default=0.8, gt=0, le=1)
    """Part of the time in which the servers work, that is aimed at."""
    server_rate: float = setting(default=20.0, gt=0, le=1e6)
    """Requests per second that one server answers, until that is measured."""
    job_rate: float = setting(default=1.0, gt=0, le=1e6)
    """Requests per second of one running job that announces the service, until that is measured."""
    concurrency: int = setting(default=8, ge=1, le=10_000)
    """Most requests that the balancer gives one server at a time. The others wait at the balancer."""
    http_port: int = setting(default=8000, ge=1, le=65535)
    """Port of the balancer for HTTP."""
    grpc_port: int = setting(default=8001, ge=1, le=65535)
    """Port of the balancer for gRPC, which jobs get as `SONIC_LOCAL_BALANCER_PORT`."""


@frozen
class Policy:
    """The policy for all sites together."""

    interval_s: float = 15.0
    """Longest pause between two ticks."""
    active_interval_s: float = 2.0
    """Pause between two ticks while orders are in progress; at most `interval`."""
    idle_timeout_s: float = 600.0
    """Longest time that a drone is kept without a job, at least `interval`. Estimates shorten it, unless
    `idle_fixed` is set; `provisioner estimates` shows by how much."""
    idle_fixed: bool = False
    """Keep an idle drone for exactly `idle_timeout`. It stays longer only for jobs that it could run, and
    leaves earlier only if it takes large jobs alone and smaller ones lack its room."""
    max_drones: int = setting(default=1000, ge=0, le=1_000_000)
    """Most drones at one time at all sites together; 0 starts nothing."""
    max_gpu_milli: int | None = None
    """Most GPUs at one time, at all sites together."""
    overlay_max_age_s: float = 120.0
    """A view of the pool that is older than this is not used for decisions; at least `interval`."""
    slot_max_age_s: float = 900.0
    """A slot without an update for this long does not count as alive."""
    max_unhealthy_fraction: float = setting(default=0.2, gt=0, le=1)
    """If more than this share of all drones is unhealthy at once, nothing is started or stopped."""
    min_unhealthy: int = setting(default=5, ge=1)
    """Fewer unhealthy drones than this never pause the controller."""
    orphan_grace_s: float = 900.0
    """Time for an operator to adopt or stop drones with this controller's name that are not on record
    (`provisioner sites adopt-orphans`). Then those without a job are stopped."""
    longest_hole_s: float = 86400.0
    """Longest time that free GPUs of a node wait to become enough for a job of several GPUs."""
    carbon_g_per_kwh: float | None = setting(
        default=None, key="carbon", ge=0, le=10_000, example=380
    )
    """Grams of CO2 per kWh of electricity, for the CO2 of jobs on types with `power`."""
    fault_limit: int = setting(default=2, ge=1, le=20)
    """A user with so many faults on shared GPUs, in at least two drones, gets exclusive GPUs only. Jobs held
    for more VRAM than their share count, too."""
    fault_window_s: float = 7 * 86400.0
    """Only faults of this last period count for `fault_limit`."""
    waiting_cost: float = setting(default=1.0, ge=0, le=1e6, example=0.3)
    """GPU-seconds that one second of one job's waiting is worth. The larger, the more drones are started for
    short jobs, and the longer idle ones are kept; 0: a drone for each waiting job."""
    services_share: float = setting(default=0.5, ge=0, le=1)
    """Largest part of the GPUs of all drones that servers of services may have while jobs wait for GPUs."""
    sites: Mapping[str, SitePolicy] = factory(dict)
    headroom: tuple[Headroom, ...] = ()
    services: tuple[Service, ...] = ()
    waiting_cost_by_group: Mapping[str, float] = factory(dict)
    """The same for the jobs of accounting groups, by name; it holds for the groups within as well."""
    low_use: LowUsePolicy = LowUsePolicy()
    accounting: AccountingPolicy = AccountingPolicy()

    @property
    def overlay_poll_deadline_s(self) -> float:
        return min(30.0, self.overlay_max_age_s / 2)

    def of_site(self, site: str) -> SitePolicy:
        return self.sites.get(site) or SitePolicy(site)

    def idle_fixed_at(self, site: str) -> bool:
        own = self.of_site(site).idle_fixed
        return self.idle_fixed if own is None else own

    def idle_timeout_at(self, site: str) -> float:
        own = self.of_site(site).idle_timeout_s
        return self.idle_timeout_s if own is None else own
