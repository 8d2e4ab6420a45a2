"""The world file as pydantic models: what each configured site is, whose GPUs they are, and what goes wrong there."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from provisioner.config.models import ConfigSection, mistake_at
from provisioner.config.units import Duration, Name, PositiveDuration, Size
from provisioner.simulator.body import Habits
from provisioner.simulator.draws import Draw, Fixed, LogNormal, Uniform
from provisioner.simulator.faults import OVERLAY, BlowKind, Trouble
from provisioner.simulator.overlay import PoolHabits
from provisioner.simulator.owner import Victim

_POOL = PoolHabits()


class DrawSection(ConfigSection):
    """A duration that differs from drone to drone; a plain duration is always the same."""

    fixed: Duration | None = Field(default=None, description="Always this.", examples=["75s"])
    low: Duration | None = Field(default=None, description="With `high`: anything between.", examples=["10s"])
    high: Duration | None = Field(default=None, description="With `low`.", examples=["1min"])
    median: PositiveDuration | None = Field(default=None, description="Log-normal: half is below.", examples=["45s"])
    sigma: float | None = Field(default=None, ge=0, le=5, description="Log-normal: of the logarithm.", examples=[0.4])
    most: Duration | None = Field(default=None, description="Log-normal: nothing is above.", examples=["1h"])

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        told = {key for key, value in self if value is not None}
        kinds = ({"fixed"}, {"low", "high"}, {"median", "sigma"}, {"median", "sigma", "most"})
        if told not in kinds:
            raise ValueError("write `75s`, `{low: 10s, high: 1min}` or `{median: 45s, sigma: 0.4}`")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise mistake_at("low", "is longer than `high`: swap them")
        return self

    @property
    def draw(self) -> Draw:
        if self.fixed is not None:
            return Fixed(self.fixed)
        if self.low is not None and self.high is not None:
            return Uniform(self.low, self.high)
        assert self.median is not None and self.sigma is not None
        return LogNormal(self.median, self.sigma, math.inf if self.most is None else self.most)


def _spelled_out(value: Any) -> Any:
    return value if isinstance(value, dict) else {"fixed": value}


Spread = Annotated[DrawSection, BeforeValidator(_spelled_out)]


class FailureSection(ConfigSection):
    """Chances that a drone turns out badly, each from 0 to 1."""

    dies_young: float = Field(default=0.0, ge=0, le=1, description="Ends at once, exit code 71.", examples=[0.01])
    never_joins: float = Field(default=0.0, ge=0, le=1, description="Runs and is never in the pool.", examples=[0.01])
    hangs_in_check: float = Field(default=0.0, ge=0, le=1, description="Joins, accepts no job.", examples=[0.01])
    matches_nothing: float = Field(default=0.0, ge=0, le=1, description="Accepts jobs, refuses all.", examples=[0.01])
    eats_jobs: float = Field(default=0.0, ge=0, le=1, description="Each job breaks off after seconds.", examples=[0.01])

    @model_validator(mode="after")
    def _add_up(self) -> Self:
        total = sum(chance for _, chance in self)
        if total > 1:
            raise ValueError(f"the chances add up to {total:g}: they exclude each other, 1 at most")
        return self


class HabitsSection(ConfigSection):
    """How a site treats drones."""

    queue: Spread | None = Field(default=None, description="Wait in the site's queue. Default: none.", examples=["45s"])
    boot: Spread | None = Field(default=None, description="From grant to joined. Default: 75 s.", examples=["75s"])
    check: Spread | None = Field(default=None, description="Until it accepts jobs. Default: 0 s.", examples=["5s"])
    release: Spread | None = Field(default=None, description="From exit to free GPUs. Default: 20 s.", examples=["20s"])
    lifetime: Spread | None = Field(default=None, description="Each breaks down after this.", examples=["30d"])
    retire: PositiveDuration | None = Field(
        default=None, description="Takes no further job after this, and leaves.", examples=["24h"]
    )
    failures: FailureSection | None = Field(
        default=None, description="How many turn out badly.", examples=[{"dies_young": 0.01}]
    )

    def over(self, habits: Habits) -> Habits:
        """``habits`` with what is told here."""
        told: dict[str, Any] = {
            key: getattr(self, key).draw
            for key in ("queue", "boot", "check", "release", "lifetime")
            if getattr(self, key) is not None
        }
        told |= self.failures.model_dump() if self.failures else {}
        return replace(habits, retire_s=habits.retire_s if self.retire is None else self.retire, **told)


class NodesSection(ConfigSection):
    """Nodes of one kind."""

    nodes: int = Field(default=1, ge=1, le=100_000, description="How many there are.", examples=[4])
    gpus: int = Field(ge=0, le=1024, description="GPUs of one.", examples=[8])
    cpus: int = Field(default=0, ge=0, le=100_000, description="CPU cores of one; 0: not counted.", examples=[192])
    memory: Size = Field(default=0, description="Memory of one; without it, not counted.", examples=["1 TiB"])
    serves: tuple[str, ...] = Field(default=(), description="Drone types that run there.", examples=[["a100"]])


class SeriesSection(ConfigSection):
    """How many GPUs the owner has, from a file with `vc, t_s, total_gpus, busy_gpus, pending_gpus`."""

    file: str = Field(
        min_length=1,
        description="Beside this file, or in the directory that PROVISIONER_TRACES names.",
        examples=["owner_load_public.csv.gz"],
    )
    vc: str = Field(min_length=1, description="Which series of the file.", examples=["vc8Sj"])
    gpus: int | None = Field(
        default=None, ge=1, description="Scale it to so many. Default: the GPUs of `nodes`.", examples=[56]
    )
    nodes: tuple[str, ...] = Field(default=(), description="Of these kinds of nodes only.", examples=[["a100"]])
    pending: bool = Field(default=False, description="Also count the GPUs that he waits for.", examples=[False])
    victim: Victim = Field(default=Victim.YOUNGEST, description="Which drone goes first.", examples=["youngest"])
    notice: Duration = Field(default=0.0, description="What a drone is given before it goes.", examples=["30s"])


class SiteSection(HabitsSection):
    """One site."""

    nodes: dict[Name, NodesSection] = Field(
        default_factory=dict,
        description="Its nodes by kind. Default: as many GPUs as the site's limits allow.",
        examples=[{"a100": {"nodes": 3, "gpus": 8}}],
    )
    types: dict[str, HabitsSection] = Field(
        default_factory=dict, description="Drone types treated otherwise.", examples=[{"h100": {"queue": "30min"}}]
    )
    owner: SeriesSection | None = Field(
        default=None,
        description="Whose GPUs they are. Default: nobody's.",
        examples=[{"file": "owner_load_public.csv.gz", "vc": "vc8Sj"}],
    )
    tells_free: bool = Field(default=True, description="Says how many drones could start.", examples=[True])
    tells_nodes: bool = Field(default=False, description="Lists its nodes; not with `owner`.", examples=[False])
    queues: bool = Field(default=True, description="`false`: refuses what does not fit now.", examples=[True])
    quota: int | None = Field(default=None, ge=0, description="Drones that the site itself allows.", examples=[56])
    latency: Spread | None = Field(default=None, description="Of each call. Default: 200 ms.", examples=["200ms"])


class PoolSection(ConfigSection):
    """The overlay pool."""

    negotiation: Duration = Field(
        default=_POOL.negotiation_s,
        description="Between two negotiation cycles; `0s`: jobs are matched as they come.",
        examples=["20s"],
    )
    update: PositiveDuration = Field(
        default=_POOL.update_s, description="Between two signs of life of a slot.", examples=["1min"]
    )
    slot_lifetime: PositiveDuration = Field(
        default=_POOL.slot_lifetime_s, description="A lost drone's slot stays listed for this.", examples=["15min"]
    )
    lease: PositiveDuration = Field(
        default=_POOL.lease_s, description="Until the jobs of a lost drone wait again.", examples=["1min"]
    )
    best_fit: bool = Field(
        default=_POOL.best_fit, description="Jobs go to the slot with the least VRAM that does.", examples=[True]
    )
    reuses_claims: bool = Field(
        default=_POOL.reuses_claims, description="A slot takes the next job of the class at once.", examples=[True]
    )


class TroubleSection(ConfigSection):
    """What happens to calls for a time."""

    trouble: Trouble = Field(description="What happens.", examples=["down"])
    where: str = Field(default="*", description="A site, `overlay`, or `*`.", examples=["horeka"])
    verb: str = Field(default="*", description="poll, start, stop, drain, bootstrap, act or `*`.", examples=["poll"])
    from_: Duration = Field(default=0.0, alias="from", description="Since the start.", examples=["2d"])
    to: Duration | None = Field(default=None, description="Since the start. Default: to the end.", examples=["3d"])
    chance: float = Field(default=1.0, gt=0, le=1, description="Of each call.", examples=[0.1])
    amount: float = Field(default=0.0, ge=0, description="Seconds or share, by kind.", examples=[30.0])


class BlowSection(ConfigSection):
    """What happens to hardware."""

    kind: BlowKind = Field(description="What happens.", examples=["downtime"])
    where: str = Field(default=OVERLAY, description="A site, or `overlay`.", examples=["horeka"])
    at: Duration = Field(description="Since the start.", examples=["2d"])
    for_: PositiveDuration = Field(alias="for", description="How long.", examples=["6h"])
    node: int = Field(default=0, ge=0, description="Which node fails.", examples=[0])
    notice: Duration = Field(default=0.0, description="Announced so long before.", examples=["1h"])


class WorldFile(ConfigSection):
    """The world file."""

    pool: PoolSection = Field(
        default_factory=PoolSection, description="The overlay pool.", examples=[{"negotiation": "20s"}]
    )
    sites: dict[Name, SiteSection] = Field(
        default_factory=dict, description="Sites by name.", examples=[{"horeka": {"queue": "15min"}}]
    )
    troubles: tuple[TroubleSection, ...] = Field(
        default=(), description="What happens to calls.", examples=[[{"trouble": "down", "where": "horeka"}]]
    )
    blows: tuple[BlowSection, ...] = Field(
        default=(),
        description="What happens to hardware.",
        examples=[[{"kind": "downtime", "where": "horeka", "at": "2d", "for": "6h"}]],
    )
