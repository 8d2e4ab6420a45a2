"""What was learned as rows: run times, delays, and what is known of each site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from provisioner import formatting
from provisioner.cli.cells import span_s, text, time_at, whole
from provisioner.cli.listing import Column, Document, Listing
from provisioner.controller.estimation import RUNS_NEEDED, RUNS_TOLD, USE_EVERY_S, thinned
from provisioner.estimates import (
    HORIZONS_S,
    UNKNOWN,
    Estimates,
    EstimateSamples,
    OwnerGrowth,
    SiteSamples,
    StartDelays,
    mean_run_s,
    owner_of,
)
from provisioner.store import Forget

SCHEMA = "provisioner.estimates/1"

_LIKELY = 0.9
"""Of an owner's rises the one that is told: nine of ten were no higher."""


@dataclass(frozen=True, slots=True)
class Known:
    """All that is on record of it."""

    experience: EstimateSamples | None
    estimates: Estimates | None
    """As of the newest tick."""
    forgets: Sequence[Forget] = ()
    user: str = ""
    """Whose run times are told size by size; empty: everybody's, all sizes together."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Run times under one key."""

    user: str
    size: tuple[int, int, int] | None
    """Thousandths of GPUs, CPUs, MiB; None: of all sizes."""
    runs_s: tuple[float, ...]
    """Ascending."""


@dataclass(frozen=True, slots=True)
class SiteRow:
    """What is known of one site."""

    name: str
    kept: SiteSamples
    rise: OwnerGrowth | None
    idle_s: float | None

    def rise_milli(self, horizon_s: float) -> int | None:
        row = self.rise.gpu_milli[HORIZONS_S.index(horizon_s)] if self.rise else ()
        return row[int(_LIKELY * len(row))] if row else None

    @property
    def use_s(self) -> float:
        """Over how much time the owner's use is known."""
        return USE_EVERY_S * (len(self.kept.use_milli) - self.kept.use_milli.count(UNKNOWN))


def learned_document(known: Known, now: float) -> Document:
    """The answer of ``provisioner estimates``."""
    kept = known.experience
    delays = sorted(kept.delays.items()) if kept else []
    if kept is None:
        scope = "nothing is on record yet: the controller keeps it every ten minutes and at its end"
    else:
        scope = f"{formatting.count(len(kept.runs), 'kind')} of jobs known, as of {formatting.ago(kept.at, now)} ago"
    return Document(
        SCHEMA,
        Listing("", _facts(now), [known], lambda k: k.user),
        {
            "run_times": Listing("", _run_columns(), run_rows(known), lambda r: r.user),
            "delays": Listing("", _delay_columns(), delays, lambda d: d[0]),
            "sites": Listing("", _site_columns(), site_rows(known), lambda s: s.name),
        },
        {"run_times": "Run times of jobs", "delays": "Delays of drones", "sites": "Sites"},
        main="run_times",
        scope=scope,
    )


def run_rows(known: Known) -> list[Runs]:
    """Those of the most jobs first."""
    runs = known.experience.runs if known.experience else {}
    rows = [_runs(key, runs_s) for key, runs_s in runs.items() if not known.user or owner_of(key) == known.user]
    rows = [row for row in rows if known.user or row.size is None]
    return sorted(rows, key=lambda r: (-len(r.runs_s), r.user, r.size or ()))


def site_rows(known: Known) -> list[SiteRow]:
    estimates = known.estimates or Estimates()
    sites = known.experience.sites if known.experience else {}
    return [SiteRow(n, kept, estimates.rises.get(n), estimates.idle_s.get(n)) for n, kept in sorted(sites.items())]


def _runs(key: str, runs_s: tuple[float, ...]) -> Runs:
    user = owner_of(key)
    gpu_milli, cpus, memory_mib = map(int, key[len(user) + 1 :].split("/")) if key != user else (0, 0, 0)
    return Runs(user, (gpu_milli, cpus, memory_mib) if key != user else None, tuple(sorted(runs_s)))


def _facts(now: float) -> tuple[Column[Known], ...]:
    return (
        time_at(
            "kept_at",
            lambda k: k.experience.at if k.experience else 0.0,
            "When it was kept last.",
            level=0,
            head="kept",
            now=now,
        ),
        Column[Known](
            "to_forget",
            lambda k: [each.what for each in k.forgets],
            "What operators want forgotten and is not yet.",
            kind="array",
            level=0,
            head="to forget",
            spare=1,
        ),
    )


def _run_columns() -> tuple[Column[Runs], ...]:
    def asks_for(key: str, place: int, what: str, head: str, say_it: Callable[[int], str]) -> Column[Runs]:
        return Column[Runs](
            key,
            lambda r: r.size[place] if r.size else None,
            f"{what} such a job asks for; null: of all sizes.",
            kind="integer",
            null=True,
            level=0,
            head=head,
            right=True,
            show=lambda r: say_it(r.size[place]) if r.size else "any",
        )

    return (
        Column[Runs](
            "user",
            lambda r: r.user,
            "Whose jobs; empty: everybody's.",
            level=0,
            least=12,
            tail=True,
            show=lambda r: r.user or "(all)",
        ),
        asks_for("gpu_milli", 0, "Thousandths of GPUs that", "GPUS", formatting.gpus),
        asks_for("cpus", 1, "CPUs that", "CPUS", str),
        asks_for("memory_mib", 2, "MiB of memory that", "MEMORY", formatting.size),
        whole("jobs", lambda r: len(r.runs_s), "How many of the newest are known, 200 at most.", level=0),
        span_s("median_s", lambda r: _at(r.runs_s, 0.5), "Median of their run times, seconds.", level=0, head="MEDIAN"),
        span_s(
            "mean_s",
            _mean_s,
            "Mean of their run times as the planner takes it (a few very long ones count less), seconds.",
            level=0,
            head="MEAN",
        ),
        span_s("p90_s", lambda r: _at(r.runs_s, 0.9), "Nine of ten ran no longer, seconds.", level=0, head="P90"),
        Column[Runs](
            "used",
            lambda r: len(r.runs_s) >= RUNS_NEEDED,
            f"Whether they are enough ({RUNS_NEEDED}) to be used.",
            kind="boolean",
            level=0,
        ),
    )


def _delay_columns() -> tuple[Column[tuple[str, StartDelays]], ...]:
    return (
        text("type", lambda d: d[0], "Drone type, as site/name.", level=0, least=12, tail=True),
        span_s(
            "queue_s",
            lambda d: d[1].queue_s,
            "From the order to its place at the site, a mean, seconds.",
            level=0,
            head="QUEUE",
        ),
        span_s("boot_s", lambda d: d[1].boot_s, "From its place to the pool, a mean, seconds.", level=0, head="BOOT"),
    )


def _site_columns() -> tuple[Column[SiteRow], ...]:
    def rise(key: str, horizon_s: float, head: str) -> Column[SiteRow]:
        return Column[SiteRow](
            key,
            lambda s: s.rise_milli(horizon_s),
            f"Within {formatting.age(horizon_s)} its owner came to hold more, in nine "
            "cases of ten by no more than this, in thousandths of GPUs; null: not known yet.",
            kind="integer",
            null=True,
            level=0,
            head=head,
            right=True,
            show=lambda s: _gpus(s.rise_milli(horizon_s)),
        )

    return (
        text("site", lambda s: s.name, "Site.", level=0, least=8),
        span_s(
            "use_s",
            lambda s: s.use_s,
            "Over how much time its owner's use is known, 14 days at most, seconds.",
            level=0,
            head="OWNER KNOWN",
        ),
        rise("rise_1h_gpu_milli", 3600.0, "MORE IN 1H"),
        rise("rise_8h_gpu_milli", 28800.0, "MORE IN 8H"),
        Column[SiteRow](
            "taken_per_1000_h",
            lambda s: _taken(s.kept),
            "Places taken back per 1000 hours of drones, where its owner's use is not told; null: not known.",
            kind="number",
            null=True,
            level=0,
            head="TAKEN/1000H",
            right=True,
        ),
        whole(
            "gaps",
            lambda s: len(s.kept.gaps_s),
            "Gaps between two jobs of a drone that are known, 200 at most.",
            level=0,
        ),
        span_s(
            "gap_median_s",
            lambda s: _at(sorted(s.kept.gaps_s), 0.5),
            "Median of these, seconds; null: none.",
            level=0,
            head="GAP",
        ),
        span_s(
            "idle_s",
            lambda s: s.idle_s,
            "Idle time-out that would have cost least, seconds; null: not known yet.",
            level=0,
            head="IDLE TIME-OUT",
        ),
    )


def _at(ascending: Sequence[float], share: float) -> float | None:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else None


def _mean_s(runs: Runs) -> float:
    return mean_run_s(thinned(runs.runs_s, RUNS_TOLD))


def _gpus(milli: int | None) -> str:
    return "-" if milli is None else formatting.gpus(milli)


def _taken(kept: SiteSamples) -> float | None:
    return round(kept.taken / kept.run_s * 3_600_000, 3) if kept.run_s >= 1.0 else None
