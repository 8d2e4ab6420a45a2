"""The reference world: three sites of 124 GPUs, cuts of public traces, a burst, and owners' loads from another trace.

TOpAS is an institute's cluster (32 + 24 GPUs) whose owner comes first, without notice, and takes
free GPUs, then those of the youngest drones. A cloud has 12 GPUs that take four minutes to boot.
HoreKa has a quota of 48 + 8 GPUs behind a Slurm queue, whose waits are **invented**. One drone has
one GPU and runs one job at a time.

The traces are no part of the project: ``PROVISIONER_TRACES`` names their directory, else it is
``../shared/traces``.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provisioner.model import DroneType, SitePolicy, TypeKey
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.loop import AT_ONCE, Fixed, LogNormal
from provisioner.simulator.owner import OwnerSeries, VictimRule
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.traces import TraceSelection, read_trace
from tests.simulator.owner_world import trace_file

ROOT = Path(__file__).parents[2]
DAY_S = 86400.0
UNLIMITED = 1_000_000
GPUS_PER_NODE = 4
RETIRE_S = DAY_S
"""A drone that has served for so long takes no further job."""

Steps = tuple[tuple[float, int], ...]
"""From when on an owner has how many GPUs."""


@dataclass(frozen=True, slots=True)
class Place:
    """The GPUs of one drone type at one site."""

    site: str
    name: str
    gpus: int
    vram_gib: int
    queue: LogNormal
    """The wait in the site's own queue, in which nothing is held."""
    boot: LogNormal
    """From the GPU to the first job."""
    owned: bool = False
    reports_free: bool = True
    """Slurm does not say how soon it would start one."""
    release_s: float = 20.0

    @property
    def boot_s(self) -> float:
        """Mean."""
        return self.boot.median_s * math.exp(self.boot.sigma**2 / 2)

    @property
    def queue_mean_s(self) -> float:
        """Mean."""
        return self.queue.median_s * math.exp(self.queue.sigma**2 / 2)

    @property
    def kind(self) -> DroneType:
        return DroneType(
            self.site,
            self.name,
            gpu_milli=1000,
            cpus=8,
            memory_mib=20480,
            disk_mib=51200,
            vram_mib=self.vram_gib * 1024,
            max_drones=self.gpus,
        )


PLACES = (
    Place("topas", "v100", 32, 32, LogNormal(45, 0.4), LogNormal(75, 0.25), owned=True),
    Place("topas", "a100", 24, 40, LogNormal(45, 0.4), LogNormal(75, 0.25), owned=True),
    Place("cloud", "a100", 12, 40, LogNormal(8, 0.3), LogNormal(240, 0.35)),
    Place("horeka", "a100", 48, 40, LogNormal(900, 1.2), LogNormal(75, 0.25), reports_free=False),
    Place("horeka", "h100", 8, 95, LogNormal(1800, 1.2), LogNormal(75, 0.25), reports_free=False),
)
QUOTAS: Mapping[TypeKey, int] = {place.kind.key: place.gpus for place in PLACES}
OWNED_GPUS = sum(place.gpus for place in PLACES if place.owned)

POOL = PoolBehaviour(
    negotiation_s=0.0, slot_lifetime_s=60.0, lease_s=0.0, latency=AT_ONCE, best_fit=True
)
"""Jobs are matched at once, each to the free drone with the least VRAM; a job whose drone was
killed waits again at once."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a trace: jobs with one GPU, none longer than a day."""

    file: str
    groups: tuple[str, ...] = ()
    from_day: float = 0.0
    days: float = math.inf

    def jobs(self) -> Sequence[SimulatedJob]:
        cut = TraceSelection(
            groups=self.groups,
            from_s=self.from_day * DAY_S,
            span_s=self.days * DAY_S,
            gpus=(1,),
            cap_s=DAY_S,
            ignore=("gpu_milli", "cpus", "memory"),
        )
        return read_trace(trace_dir() / self.file, cut).jobs


@dataclass(frozen=True, slots=True)
class Bursts:
    """The same jobs all at once, again and again, and nothing in between."""

    count: int
    run_s: float
    every_s: float
    times: int

    def jobs(self) -> Sequence[SimulatedJob]:
        return [
            SimulatedJob(n * self.every_s, self.run_s)
            for n in range(self.times)
            for _ in range(self.count)
        ]


TRACES: Mapping[str, Part | Bursts] = {
    "6214e9": Part("philly_public.csv.gz", ("6214e9",), 28, 28),
    "b436b2+": Part("philly_public.csv.gz", ("b436b2", "103959", "0e4a51"), 35, 28),
    "openb2023": Part("openb2023.csv.gz"),
    "kit": Bursts(414, 10.56 * 60, DAY_S / 2, 28),
}
"""The last is KIT's throughput test: 414 trainings of 10.56 min each, that wait for a cold pool."""
OWNERS = ("vc8Sj", "vc3sl", "vcMod", "vchbv")
PAIRS = (("6214e9", "vc8Sj"), ("b436b2+", "vc3sl"), ("openb2023", "vchbv"), ("kit", "vc8Sj"))
"""Those of the tables: each trace with one owner."""
OWNER_SPAN_S, OWNER_REPEATS = 31 * DAY_S, 4


class NoTraces(Exception):
    """The traces are not there."""


def trace_dir() -> Path:
    """Where the traces are."""
    found = trace_file(ROOT)
    if found is None:
        raise NoTraces(
            "no traces: set PROVISIONER_TRACES to the directory that has owner_load_public.csv.gz"
        )
    return found.parent


def jobs_of(trace: str, days: float = math.inf) -> tuple[SimulatedJob, ...]:
    """The jobs of one of :data:`TRACES`; of the first ``days`` of it."""
    return tuple(job for job in TRACES[trace].jobs() if job.submit_s < days * DAY_S)


def owner_of(series: str) -> Steps:
    """The busy GPUs of a virtual cluster as those of TOpAS' owner, its 31 days over and over."""
    steps = []
    with gzip.open(trace_dir() / "owner_load_public.csv.gz", "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["vc"] == series:
                share = int(row["busy_gpus"]) / int(row["total_gpus"])
                steps.append((float(row["t_s"]), min(OWNED_GPUS, round(share * OWNED_GPUS))))
    return tuple(
        (at_s + n * OWNER_SPAN_S, gpus) for n in range(OWNER_REPEATS) for at_s, gpus in steps
    )


def facilities(
    owner: Steps,
    *,
    release_s: float = 20.0,
    ours: bool = True,
    shipped: bool = False,
    victims: VictimRule = VictimRule.YOUNGEST,
) -> tuple[Facility, ...]:
    """Return the three sites.

    For our rule the operator's limits are the sites' quotas, with ``shipped`` also all that the
    product limits by default, and drones retire after a day by themselves. Other rules know the
    quotas, and see to retiring (:class:`benchmarks.deciding.rule.Rule`).
    """
    found = []
    for site in dict.fromkeys(place.site for place in PLACES):
        places = [place for place in PLACES if place.site == site]
        most = sum(place.gpus for place in places) if ours else UNLIMITED
        owned, reports_free = places[0].owned, places[0].reports_free
        policy = SitePolicy(site, max_drones=most, queue_when_full=not reports_free)
        if not shipped:
            policy = replace(
                policy,
                max_pending=UNLIMITED,
                max_starts_per_tick=UNLIMITED,
                queued_s=7 * DAY_S,
                booting_s=3600.0,
            )
        found.append(
            Facility(
                policy=policy,
                types=tuple(place.kind for place in places),
                pools=tuple(
                    GpuPool(p.name, GPUS_PER_NODE, p.gpus // GPUS_PER_NODE) for p in places
                ),
                serves={place.name: place.name for place in places},
                behaviour_of={
                    place.name: _behaviour(place, release_s, RETIRE_S if ours else None)
                    for place in places
                },
                latency=AT_ONCE,
                reports_free=reports_free,
                reports_claims=False,
                retain_finished_s=120.0,
                owner=OwnerSeries(owner, victim=victims) if owned and owner else None,
            )
        )
    return tuple(found)


def _behaviour(place: Place, release_s: float, retire_s: float | None) -> SiteBehaviour:
    return SiteBehaviour(
        queue=place.queue,
        boot=place.boot,
        check=AT_ONCE,
        release=Fixed(release_s),
        retire_s=retire_s,
    )
