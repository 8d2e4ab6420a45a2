"""Estimates: what the planner has learned from the past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from provisioner import formatting
from provisioner.answers.columns import (
    Column,
    Document,
    Listing,
    ago,
    flag,
    gpus,
    ident,
    items,
    mib,
    number,
    rounded,
    span_s,
    text,
    time_at,
    whole,
)
from provisioner.answers.errors import UsageError, unknown
from provisioner.answers.query import Query, option, question
from provisioner.estimates import (
    HORIZONS_S,
    RUNS_NEEDED,
    RUNS_TOLD,
    UNKNOWN,
    USE_EVERY_S,
    Estimates,
    EstimateSamples,
    SiteSamples,
    mean_run_s,
    owner_of,
    thinned,
)
from provisioner.keys import site_of
from provisioner.store import EstimateReset
from provisioner.store.reader import Reader

ESTIMATES_SCHEMA = "provisioner.estimates/1"

_GROWTH_QUANTILE = 0.9
"""Quantile of the owner's growth that is shown: nine of ten were no higher."""
NOTHING_KEPT = (
    "no estimates on record yet: the controller records them every ten minutes and at its end"
)


class EstimatesRow(NamedTuple):
    samples: EstimateSamples | None
    estimates: Estimates | None
    forgets: Sequence[EstimateReset] = ()


class RunTimes(NamedTuple):
    user: str
    gpu_milli: int | None
    """None, as in the next two: of all sizes."""
    cpus: int | None
    memory_mib: int | None
    runs_s: tuple[float, ...]


class SiteEstimates(NamedTuple):
    """Estimates of one site, and the samples that they come from."""

    name: str
    samples: SiteSamples
    estimates: Estimates

    @property
    def use_s(self) -> float:
        return USE_EVERY_S * (len(self.samples.use_milli) - self.samples.use_milli.count(UNKNOWN))

    @property
    def taken_per_1000_h(self) -> float | None:
        of = self.samples
        return rounded(of.taken / of.run_s * 3_600_000) if of.run_s >= 1.0 else None


def _quantile(ascending: Sequence[float], share: float) -> float | None:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else None


def _rise(key: str, horizon_s: float, head: str) -> Column:
    def milli(row: SiteEstimates) -> int | None:
        growth = row.estimates.rises.get(row.name)
        of_horizon = growth.gpu_milli[HORIZONS_S.index(horizon_s)] if growth else ()
        return of_horizon[int(_GROWTH_QUANTILE * len(of_horizon))] if of_horizon else None

    doc = (
        f"Within {formatting.age(horizon_s)} its owner came to hold more, in nine cases of ten by no more than this, "
        "in thousandths of GPUs; null: not known yet."
    )
    return gpus(key, doc, milli, null=True, head=head)


ESTIMATES_FACTS = (
    time_at(
        "kept_at", "When the estimates were last recorded.", "samples.at", head="kept", unit=ago
    ),
    items(
        "to_forget",
        "Estimates with a recorded request for deletion.",
        lambda x: [each.what for each in x.forgets],
        head="to forget",
    ),
)
RUN_COLUMNS = (
    ident("user", "Whose jobs; empty: everybody's.", least=12, unit=lambda user: user or "(all)"),
    gpus("gpu_milli", "Thousandths of GPUs of such a job; null: any.", null=True, head="GPUS"),
    whole("cpus", "CPUs of such a job; null: any.", null=True, level=0),
    mib("memory_mib", "Memory of such a job, MiB; null: any.", null=True, head="MEMORY"),
    whole(
        "jobs", "Number of known runs, the newest 200 at most.", lambda r: len(r.runs_s), level=0
    ),
    span_s(
        "median_s",
        "Median of their run times, seconds.",
        lambda r: _quantile(r.runs_s, 0.5),
        head="MEDIAN",
    ),
    span_s(
        "mean_s",
        "Robust mean, seconds.",
        lambda r: mean_run_s(thinned(r.runs_s, RUNS_TOLD)),
        head="MEAN",
    ),
    span_s(
        "p90_s",
        "Nine of ten ran no longer, seconds.",
        lambda r: _quantile(r.runs_s, 0.9),
        head="P90",
    ),
    flag(
        "used",
        f"Whether they are enough ({RUNS_NEEDED}) for use.",
        lambda r: len(r.runs_s) >= RUNS_NEEDED,
        level=0,
    ),
)
DELAY_COLUMNS = (
    ident("type", "Drone type, as site/name.", lambda d: d[0], least=12),
    span_s(
        "queue_s",
        "Mean time from the order to the start at the site, seconds.",
        lambda d: d[1].queue_s,
        head="QUEUE",
    ),
    span_s(
        "boot_s",
        "Mean time from the start at the site to the pool, seconds.",
        lambda d: d[1].boot_s,
        head="BOOT",
    ),
)
SITE_ESTIMATE_COLUMNS = (
    text("site", "Site.", "name", level=0, least=8),
    span_s(
        "use_s",
        "Length of the known history of the owner's use, 14 days at most, seconds.",
        head="OWNER KNOWN",
    ),
    _rise("rise_1h_gpu_milli", 3600.0, "MORE IN 1H"),
    _rise("rise_8h_gpu_milli", 28800.0, "MORE IN 8H"),
    number(
        "taken_per_1000_h",
        "Preemptions in 1000 hours.",
        null=True,
        unit=formatting.number,
        head="TAKEN/1000H",
    ),
    whole(
        "gaps",
        "Number of known gaps between jobs, 200 at most.",
        lambda s: len(s.samples.gaps_s),
        level=0,
    ),
    span_s(
        "gap_median_s",
        "Their median.",
        lambda s: _quantile(sorted(s.samples.gaps_s), 0.5),
        head="GAP",
    ),
    span_s(
        "idle_s",
        "Idle timeout derived from them.",
        lambda s: s.estimates.idle_s.get(s.name),
        head="IDLE TIME-OUT",
    ),
)


def estimates_document(known: EstimatesRow, user: str = "") -> Document:
    """Return the answer of ``provisioner estimates``; with ``user`` their run times by size."""
    samples = known.samples or EstimateSamples(0.0)
    estimates = known.estimates or Estimates()
    scope = NOTHING_KEPT
    if known.samples is not None:
        scope = f"{formatting.count(len(samples.runs), 'kind')} of jobs known, as of {ago(samples.at)} ago"
    sites = [SiteEstimates(name, of, estimates) for name, of in sorted(samples.sites.items())]
    runs = _run_times(samples, user)
    delays = sorted(samples.delays.items())
    return Document(
        ESTIMATES_SCHEMA,
        ESTIMATES_FACTS,
        known,
        {
            "run_times": Listing(
                "", RUN_COLUMNS, runs, lambda r: r.user, title="Run times of jobs"
            ),
            "delays": Listing("", DELAY_COLUMNS, delays, title="Delays of drones"),
            "sites": Listing("", SITE_ESTIMATE_COLUMNS, sites, title="Sites"),
        },
        main="run_times",
        name=user,
        scope=scope,
    )


def _run_times(samples: EstimateSamples, user: str) -> list[RunTimes]:
    """Return run times, those of the most jobs first."""
    rows = []
    for key, runs_s in samples.runs.items():
        owner = owner_of(key)
        if (owner == user) if user else (key == owner):
            size: list[int | None] = (
                [None, None, None]
                if key == owner
                else [*map(int, key[len(owner) + 1 :].split("/"))]
            )
            gpu_milli, cpus, memory_mib = size
            rows.append(RunTimes(owner, gpu_milli, cpus, memory_mib, tuple(sorted(runs_s))))
    return sorted(
        rows,
        key=lambda r: (-len(r.runs_s), r.user, r.gpu_milli or 0, r.cpus or 0, r.memory_mib or 0),
    )


class EstimatesQuery(Query):
    """Estimates, of all users or of one."""

    user: Annotated[
        str | None, option("NAME", "Show only this user, with run times by job size.")
    ] = None


@question("estimates", "/estimates", lambda: [estimates_document(EstimatesRow(None, None))])
def estimates(reader: Reader, query: EstimatesQuery) -> Document:
    """Show the estimates: run times, start delays, owner growth, idle gaps.

    Run times are listed by user, delays by drone type, the rest by site. The controller records them every ten minutes
    and at its end; values that the planner derives (owner growth, idle timeouts) are those of the newest tick.
    `estimates forget` deletes some.

    \b
    Examples:
      provisioner estimates -o json | jq '.sites[] | {site, rise_1h_gpu_milli, idle_s}'
    """
    samples = reader.estimate_samples()
    views = reader.views()
    if query.user is not None and samples is not None:
        require_known(samples, [query.user], [])
    known = EstimatesRow(samples, views.estimates if views else None, reader.estimate_resets())
    return estimates_document(known, query.user or "")


def require_known(samples: EstimateSamples, users: Sequence[str], sites: Sequence[str]) -> None:
    """Raise :class:`VerbError` for the first name without anything on record: a misspelling would forget nothing.

    An empty name, as of a variable that is not set, would mean everybody.
    """
    of_sites = {
        *samples.sites,
        *(site_of(key) for key in samples.delays),
    } - {""}
    for kind, names, known in (
        ("user", users, set(map(owner_of, samples.runs))),
        ("site", sites, of_sites),
    ):
        for name in names:
            if not name.strip():
                raise UsageError(f"--{kind} must not be empty: name one")
            if name not in known:
                raise unknown(kind, name, sorted(known - {""}), " in the estimates")
