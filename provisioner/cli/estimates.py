"""``provisioner estimates``: what the planner has learned from the past, and a way to forget some of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.drones import operator
from provisioner.controller.estimation import RUNS_NEEDED, RUNS_TOLD, USE_EVERY_S, thinned
from provisioner.estimates import (
    HORIZONS_S,
    UNKNOWN,
    Estimates,
    EstimateSamples,
    SiteSamples,
    StartDelays,
    mean_run_s,
    owner_of,
)
from provisioner.planner.costs import PRIOR_DELAYS
from provisioner.store import EstimateReset
from provisioner.store.reader import Reader

ESTIMATES_SCHEMA = "provisioner.estimates/1"

_GROWTH_QUANTILE = 0.9
"""Quantile of the owner's growth that is shown: nine of ten were no higher."""
NOTHING_KEPT = "nothing is on record yet: the controller keeps it every ten minutes and at its end"


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
        return out.rounded(of.taken / of.run_s * 3_600_000) if of.run_s >= 1.0 else None


def _quantile(ascending: Sequence[float], share: float) -> float | None:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else None


def _rise(key: str, horizon_s: float, head: str) -> out.Column:
    def milli(row: SiteEstimates) -> int | None:
        growth = row.estimates.rises.get(row.name)
        of_horizon = growth.gpu_milli[HORIZONS_S.index(horizon_s)] if growth else ()
        return of_horizon[int(_GROWTH_QUANTILE * len(of_horizon))] if of_horizon else None

    doc = (
        f"Within {formatting.age(horizon_s)} its owner came to hold more, in nine cases of ten by no more than this, "
        "in thousandths of GPUs; null: not known yet."
    )
    return out.gpus(key, doc, milli, null=True, head=head)


ESTIMATES_FACTS = (
    out.time_at("kept_at", "When it was kept last.", "samples.at", head="kept", unit=out.ago),
    out.items(
        "to_forget",
        "What is to be forgotten.",
        lambda x: [each.what for each in x.forgets],
        head="to forget",
    ),
)
RUN_COLUMNS = (
    out.ident(
        "user", "Whose jobs; empty: everybody's.", least=12, unit=lambda user: user or "(all)"
    ),
    out.gpus("gpu_milli", "Thousandths of GPUs of such a job; null: any.", null=True, head="GPUS"),
    out.whole("cpus", "CPUs of such a job; null: any.", null=True, level=0),
    out.mib("memory_mib", "Memory of such a job, MiB; null: any.", null=True, head="MEMORY"),
    out.whole(
        "jobs", "How many of the newest are known, 200 at most.", lambda r: len(r.runs_s), level=0
    ),
    out.span_s(
        "median_s",
        "Median of their run times, seconds.",
        lambda r: _quantile(r.runs_s, 0.5),
        head="MEDIAN",
    ),
    out.span_s(
        "mean_s",
        "Robust mean, seconds.",
        lambda r: mean_run_s(thinned(r.runs_s, RUNS_TOLD)),
        head="MEAN",
    ),
    out.span_s(
        "p90_s",
        "Nine of ten ran no longer, seconds.",
        lambda r: _quantile(r.runs_s, 0.9),
        head="P90",
    ),
    out.flag(
        "used",
        f"Are they enough ({RUNS_NEEDED}) to be used?",
        lambda r: len(r.runs_s) >= RUNS_NEEDED,
        level=0,
    ),
)
DELAY_COLUMNS = (
    out.ident("type", "Drone type, as site/name.", lambda d: d[0], least=12),
    out.span_s(
        "queue_s",
        "From order to place at the site, a mean, seconds.",
        lambda d: d[1].queue_s,
        head="QUEUE",
    ),
    out.span_s(
        "boot_s", "From its place to the pool, a mean, seconds.", lambda d: d[1].boot_s, head="BOOT"
    ),
    out.text(
        "source",
        "measured; history: by the site's own records, with the default boot time.",
        lambda d: d[2],
    ),
)
SITE_ESTIMATE_COLUMNS = (
    out.text("site", "Site.", "name", level=0, least=8),
    out.span_s(
        "use_s",
        "Over how much time its owner's use is known, 14 days at most, seconds.",
        head="OWNER KNOWN",
    ),
    _rise("rise_1h_gpu_milli", 3600.0, "MORE IN 1H"),
    _rise("rise_8h_gpu_milli", 28800.0, "MORE IN 8H"),
    out.number(
        "taken_per_1000_h",
        "Taken back in 1000 hours.",
        null=True,
        unit=formatting.number,
        head="TAKEN/1000H",
    ),
    out.whole(
        "gaps",
        "Gaps between jobs that are known, 200 at most.",
        lambda s: len(s.samples.gaps_s),
        level=0,
    ),
    out.span_s(
        "gap_median_s",
        "Their median.",
        lambda s: _quantile(sorted(s.samples.gaps_s), 0.5),
        head="GAP",
    ),
    out.span_s(
        "idle_s",
        "Learned time-out.",
        lambda s: s.estimates.idle_s.get(s.name),
        head="IDLE TIME-OUT",
    ),
)
PAST_COLUMNS = (
    out.text("of", "Site; overlay: the pool.", lambda h: h[0] or "overlay", level=0, least=8),
    out.time_at("at", "When the controller read the history.", lambda h: h[1].at, unit=out.ago),
    out.span_s(
        "owner_s",
        "Time of the owner's use that it adds, seconds.",
        lambda h: h[1].use_s,
        head="OWNER",
    ),
    out.items("types", "Drone types whose queue times it has.", lambda h: sorted(h[1].queues)),
    out.whole("jobs", "Completed jobs in it that count.", lambda h: h[1].jobs, level=0),
    out.flag("left_out", "Did it have more than was read?", lambda h: h[1].left_out, level=0),
)


def estimates_document(known: EstimatesRow, user: str = "") -> out.Document:
    """Return the answer of ``provisioner estimates``; with ``user`` their run times by size."""
    samples, estimates = known.samples or EstimateSamples(0.0), known.estimates or Estimates()
    scope = NOTHING_KEPT
    if known.samples is not None:
        scope = f"{formatting.count(len(samples.runs), 'kind')} of jobs known, as of {out.ago(samples.at)} ago"
    sites = [SiteEstimates(name, of, estimates) for name, of in sorted(samples.sites.items())]
    runs = _run_times(samples, user)
    past = sorted(samples.histories.items())
    told = {
        key: StartDelays(queue_s, PRIOR_DELAYS.boot_s)
        for _, of in past
        for key, queue_s in of.queues.items()
    }
    delays = [(key, of, "history") for key, of in told.items() if key not in samples.delays]
    delays += [(key, of, "measured") for key, of in samples.delays.items()]
    return out.Document(
        ESTIMATES_SCHEMA,
        ESTIMATES_FACTS,
        known,
        {
            "run_times": out.Listing(
                "", RUN_COLUMNS, runs, lambda r: r.user, title="Run times of jobs"
            ),
            "delays": out.Listing("", DELAY_COLUMNS, sorted(delays), title="Delays of drones"),
            "sites": out.Listing("", SITE_ESTIMATE_COLUMNS, sites, title="Sites"),
            "histories": out.Listing("", PAST_COLUMNS, past, title="From history" if past else ""),
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


estimates_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@estimates_app.callback(invoke_without_command=True)
@out.answering
def estimates(
    reader: Reader,
    *,
    query: opt.Query,
    user: Annotated[str | None, opt.option("NAME", "Of this user: run times by size, too.")] = None,
) -> out.Document:
    """Tell what was learned: run times by user, delays by drone type, and of each site its owner and its idle gaps.

    As the controller kept it last: it does so about every ten minutes and at its end. What the planner makes of it
    (an owner's rises, idle time-outs) is as of the newest tick. "From history" lists what the controller read at its
    first start from the records of sites and pool. `estimates forget` makes it forget some of it.

    \b
    Examples:
      provisioner estimates -o json | jq '.sites[] | {site, rise_1h_gpu_milli, idle_s}'
    """
    samples, views = reader.estimate_samples(), reader.views()
    if user is not None and samples is not None:
        _require_known(samples, [user], [])
    known = EstimatesRow(samples, views.estimates if views else None, reader.estimate_resets())
    return estimates_document(known, user or "")


@estimates_app.command("forget")
@opt.shared
def forget(
    where: opt.Where,
    reason: opt.EventReason,
    user: Annotated[
        list[str] | None, opt.option("NAME", "Run times of this user and of all; repeatable.")
    ] = None,
    site: Annotated[
        list[str] | None, opt.option("NAME", "This site's owner, gaps and delays; repeatable.")
    ] = None,
    all_: Annotated[bool, opt.switch("All of it.", "--all")] = False,
) -> None:
    """Remove estimates that do not apply any more: an owner who has changed, a user's new code.

    The controller does it within a minute, or when it starts. Drones and jobs on record stay. Run times of all users
    together contain those of each user, so they are removed too. They are known again after ten jobs.

    \b
    Examples:
      provisioner estimates forget --user anna --user bert --reason "new framework, jobs run ten times faster"
    """
    users, sites = list(dict.fromkeys(user or ())), list(dict.fromkeys(site or ()))
    what = [f"user:{name}" for name in users] + [f"site:{name}" for name in sites]
    if not reason.strip():
        raise opt.VerbError(
            "--reason must not be empty: it is recorded as an event", code=opt.Exit.USAGE
        )
    if all_ is bool(what):
        raise opt.VerbError(
            "forget what? --all, or some with --user and --site", code=opt.Exit.USAGE
        )
    reader = opt.open_record(where)
    if not all_:
        samples = reader.estimate_samples()
        if samples is None:
            raise opt.VerbError(NOTHING_KEPT)
        _require_known(samples, users, sites)
    for each in ["all"] if all_ else what:
        reader.ask_estimate_reset(each, reason=reason, by=operator(), at=reader.now())
        out.note(f"recorded: to forget {each}")
    if reader.holder() is None:
        out.note("no controller runs: it will be done when one does")


def _require_known(samples: EstimateSamples, users: Sequence[str], sites: Sequence[str]) -> None:
    """Raise :class:`VerbError` for the first name without anything on record: a misspelling would forget nothing.

    An empty name, as of a variable that is not set, would mean everybody.
    """
    of_sites = {
        *samples.sites,
        *samples.histories,
        *(key.partition("/")[0] for key in samples.delays),
    } - {""}
    for option, names, known in (
        ("user", users, set(map(owner_of, samples.runs))),
        ("site", sites, of_sites),
    ):
        for name in names:
            if not name.strip():
                raise opt.VerbError(f"--{option} must not be empty: name one", code=opt.Exit.USAGE)
            if name not in known:
                raise opt.unknown(option, name, sorted(known - {""}), " in the estimates")
