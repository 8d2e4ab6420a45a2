"""``provisioner sites``: each site's view, breaker, drones and limits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import typer

from provisioner import say
from provisioner.cli.cells import span_s, text, time_at, whole, words
from provisioner.cli.listing import Column, Listing
from provisioner.cli.options import Pick, Show, Where, shared
from provisioner.cli.output import picked, present
from provisioner.cli.where import open_record
from provisioner.model import Breaker, BreakerState, Drone, DroneState, SitePolicy, SiteReading
from provisioner.store import Reader, Views

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SCHEMA = "provisioner.sites/1"

BREAKER_TINTS = {BreakerState.BANNED: "red", BreakerState.DEGRADED: "yellow", BreakerState.PROBING: "yellow"}


@dataclass(frozen=True, slots=True)
class SiteRow:
    """All that is on record of one site."""

    name: str
    policy: SitePolicy | None
    """None: it is not in the configuration of the newest tick, but has drones."""
    reading: SiteReading | None
    breaker: Breaker
    type_breakers: tuple[Breaker, ...]
    """Of its drone types, where not active."""
    states: Mapping[DroneState, int]
    gpu_milli: int

    @property
    def live(self) -> int:
        return sum(self.states.values())

    @property
    def taken_at(self) -> float:
        return self.reading.view.taken_at if self.reading and self.reading.view else 0.0

    @property
    def free(self) -> Mapping[str, int] | None:
        return self.reading.view.free if self.reading and self.reading.view else None


def site_rows(views: Views | None, breakers: Mapping[str, Breaker], live: Sequence[Drone]) -> list[SiteRow]:
    """One row per site that is configured or has live drones."""
    states: dict[str, Counter[DroneState]] = {}
    milli: Counter[str] = Counter()
    for drone in live:
        states.setdefault(drone.site, Counter())[drone.state] += 1
        milli[drone.site] += drone.gpu_milli
    policies = views.policy.sites if views else {}
    readings = views.sites if views else {}
    return [
        SiteRow(
            name=name,
            policy=policies.get(name),
            reading=readings.get(name),
            breaker=breakers.get(name) or Breaker(name),
            type_breakers=tuple(b for scope, b in sorted(breakers.items())
                                if scope.startswith(f"{name}/") and b.state is not BreakerState.ACTIVE),
            states=states.get(name, {}),
            gpu_milli=milli[name],
        )
        for name in sorted({*policies, *states})
    ]  # fmt: skip


def columns(now: float) -> tuple[Column[SiteRow], ...]:
    """Of sites at ``now``."""
    return (
        text("site", lambda s: s.name, "Site.", level=0, least=12, tail=True),
        Column[SiteRow]("enabled", lambda s: bool(s.policy and s.policy.enabled), "May drones be started there?",
                        kind="boolean", level=1),
        Column[SiteRow]("breaker", lambda s: s.breaker.state.value, "State of the circuit breaker.", level=0,
                        tint=lambda s: BREAKER_TINTS.get(s.breaker.state, ""), choices=tuple(BreakerState)),
        time_at("until_at", lambda s: s.breaker.until, "While banned: when it may be tried again."),
        whole("failures", lambda s: s.breaker.failures, "Failures in a row.", level=1),
        whole("drones", lambda s: s.live, "Live drones: asked for and not confirmed gone.", level=0),
        Column[SiteRow]("max_drones", lambda s: s.policy.max_drones if s.policy else None, "Limit on drones.",
                        kind="integer", null=True, level=0, head="MAX", right=True),
        whole("gpu_milli", lambda s: s.gpu_milli, "Thousandths of GPUs in live drones.", level=0, head="GPUS",
              show=say.gpus),
        Column[SiteRow]("max_gpu_milli", lambda s: s.policy.max_gpu_milli if s.policy else None,
                        "Limit on thousandths of GPUs; null: none.", kind="integer", null=True),
        Column[SiteRow]("states", lambda s: {k.value: v for k, v in s.states.items()}, "Live drones by state.",
                        kind="object", show=_states),
        Column[SiteRow]("free", lambda s: dict(s.free) if s.free is not None else None, "How many drones of each type "
                        "could start now (alternatives); null: the site does not tell.", kind="object", null=True,
                        level=0, least=8, show=_free),
        time_at("taken_at", lambda s: s.taken_at, "When the newest good view was taken."),
        span_s("view_age_s", lambda s: max(0.0, now - s.taken_at) if s.taken_at else None,
               "Age of the newest good view, seconds; null: there never was one.", level=0, head="VIEW"),
        text("fault", lambda s: s.reading.fault.kind.value if s.reading and s.reading.fault else "",
             "Kind of fault of the newest look; empty: it succeeded."),
        words("note", lambda s: site_note(s, now), "What is wrong, if anything.", level=0, least=16),
    )  # fmt: skip


def _states(row: SiteRow) -> str:
    return ", ".join(f"{n} {state.value}" for state, n in row.states.items())


def _free(row: SiteRow) -> str:
    return "?" if row.free is None else ", ".join(f"{n} {name}" for name, n in sorted(row.free.items())) or "0"


def site_note(row: SiteRow, now: float) -> str:
    """What is out of the ordinary with a site, trouble first."""
    parts = []
    if row.reading and row.reading.fault:
        parts.append(f"look failed ({row.reading.fault.kind.value}): {say.clean(row.reading.fault.message, 200)}")
    if row.policy is None:
        parts.append("not in the configuration")
    elif not row.policy.enabled:
        parts.append("disabled")
    elif row.taken_at and now - row.taken_at > row.policy.view_max_age_s:
        parts.append("view too old")
    for breaker in (row.breaker, *row.type_breakers):
        if breaker.state is not BreakerState.ACTIVE:
            parts.append(_breaker_note(breaker, now))
    view = row.reading.view if row.reading else None
    if view and view.claims:
        parts.append(f"the owner waits for {say.gpus(sum(c.count * c.gpu_milli for c in view.claims))} GPUs")
    if view and view.downtime_at:
        parts.append(f"downtime from {say.iso(view.downtime_at)}")
    parts += [say.clean(n, 120) for n in (view.notices if view else ())]
    return "; ".join(parts)


def _breaker_note(breaker: Breaker, now: float) -> str:
    left = f" for {say.age(breaker.until - now)}" if breaker.until > now else ""
    why = f": {say.clean(breaker.fault.message, 120)}" if breaker.fault else ""
    return f"{breaker.scope} {breaker.state.value}{left}{why}"


def site_listing(reader: Reader, now: float) -> Listing[SiteRow]:
    """The answer of ``provisioner sites``."""
    views = reader.views()
    rows = site_rows(views, reader.breakers(), reader.drones())
    if views is None:
        scope = f"{say.count(len(rows), 'site')}; no tick is on record yet"
    else:
        runs = "" if reader.holder() else "; no controller runs: as last recorded"
        scope = f"{say.count(len(rows), 'site')} as of tick {views.tick}, {say.ago(views.at, now)} ago{runs}"
    return Listing(SCHEMA, columns(now), rows, lambda s: s.name, scope)


@app.command()
@shared
def sites(where: Where, show: Show, pick: Pick) -> None:
    """List the sites.

    Breaker, live drones and limits, free places, age of the view, and what is wrong.

    \b
    Examples:
      provisioner sites
      provisioner sites -o wide --sort -drones
      provisioner sites -o json | jq '.items[] | select(.breaker != "active")'
    """
    reader = open_record(where)
    present(show, lambda: picked(site_listing(reader, time.time()), pick))


__all__ = ["SiteRow", "app", "columns", "site_listing", "site_note", "site_rows"]
