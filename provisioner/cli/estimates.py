"""``provisioner estimates``: what the planner has learned from the past, and a way to forget some of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import typer

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.drones import operator
from provisioner.controller.estimation import RUNS_NEEDED, RUNS_TOLD, USE_EVERY_S, thinned
from provisioner.estimates import HORIZONS_S, UNKNOWN, Estimates, EstimateSamples, SiteSamples, mean_run_s, owner_of
from provisioner.store import EstimateReset
from provisioner.store.reader import Reader

ESTIMATES_SCHEMA = "provisioner.estimates/1"

_GROWTH_QUANTILE = 0.9
"""Quantile of the owner's growth that is shown: nine of ten were no higher."""


class EstimatesRow(NamedTuple):
    """All estimates on record."""

    samples: EstimateSamples | None
    estimates: Estimates | None
    """Estimates of the newest tick."""
    forgets: Sequence[EstimateReset] = ()
    user: str = ""
    """User whose run times are shown by size; empty: of all users, all sizes together."""


class RunTimes(NamedTuple):
    """Run times under one key."""

    user: str
    size: tuple[int, int, int] | None
    """Thousandths of GPUs, CPUs, MiB; None: of all sizes."""
    runs_s: tuple[float, ...]
    """Ascending."""


class SiteEstimates(NamedTuple):
    """Estimates of one site, and the samples that they come from."""

    name: str
    samples: SiteSamples
    estimates: Estimates


def estimates_document(known: EstimatesRow, now: float) -> out.Document:
    """Return the answer of ``provisioner estimates``."""
    samples, estimates = known.samples, known.estimates or Estimates()
    scope = "nothing is on record yet: the controller keeps it every ten minutes and at its end"
    if samples is not None:
        known_of = formatting.count(len(samples.runs), "kind")
        scope = f"{known_of} of jobs known, as of {formatting.ago(samples.at, now)} ago"

    def kept(at: float) -> str:
        return formatting.ago(at, now)

    to_forget_doc = "What operators want forgotten and is not yet."
    facts = (
        out.time_at("kept_at", "When it was kept last.", "samples.at", head="kept", unit=kept),
        out.items("to_forget", to_forget_doc, lambda k: [each.what for each in k.forgets], head="to forget"),
    )
    delays = sorted(samples.delays.items()) if samples else []
    sites = [SiteEstimates(name, of, estimates) for name, of in sorted(samples.sites.items())] if samples else []
    return out.Document(
        ESTIMATES_SCHEMA,
        out.Listing("", facts, [known], lambda k: k.user),
        {
            "run_times": out.Listing("", _run_columns(), _run_times(known), lambda r: r.user),
            "delays": out.Listing("", _delay_columns(), delays, lambda d: d[0]),
            "sites": out.Listing("", _site_estimate_columns(), sites, lambda s: s.name),
        },
        {"run_times": "Run times of jobs", "delays": "Delays of drones", "sites": "Sites"},
        main="run_times",
        scope=scope,
    )


def _run_times(known: EstimatesRow) -> list[RunTimes]:
    """Return run times, those of the most jobs first."""
    rows = []
    for key, runs_s in known.samples.runs.items() if known.samples else ():
        user = owner_of(key)
        if known.user in ("", user) and (known.user or key == user):
            gpu_milli, cpus, memory_mib = map(int, key[len(user) + 1 :].split("/")) if key != user else (0, 0, 0)
            size = (gpu_milli, cpus, memory_mib) if key != user else None
            rows.append(RunTimes(user, size, tuple(sorted(runs_s))))
    return sorted(rows, key=lambda r: (-len(r.runs_s), r.user, r.size or ()))


def _run_columns() -> tuple[out.Column, ...]:
    def asks_for(key: str, place: int, what: str, head: str, unit: Callable[[int], str]) -> out.Column:
        def value(row: RunTimes) -> int | None:
            return row.size[place] if row.size else None

        def show(row: RunTimes) -> str:
            return unit(row.size[place]) if row.size else "any"

        doc = f"{what} such a job asks for; null: of all sizes."
        return out.whole(key, doc, value, null=True, head=head, show=show)

    def quantile_s(key: str, doc: str, share: float, head: str) -> out.Column:
        return out.span_s(key, doc, lambda r: _quantile(r.runs_s, share), head=head)

    mean_doc = "Mean of their run times as the planner takes it (a few very long ones count less), seconds."
    used_doc = f"Whether they are enough ({RUNS_NEEDED}) to be used."
    return (
        out.ident("user", "Whose jobs; empty: everybody's.", least=12, unit=lambda u: u or "(all)"),
        asks_for("gpu_milli", 0, "Thousandths of GPUs that", "GPUS", formatting.gpus),
        asks_for("cpus", 1, "CPUs that", "CPUS", str),
        asks_for("memory_mib", 2, "MiB of memory that", "MEMORY", formatting.size),
        out.whole("jobs", "How many of the newest are known, 200 at most.", lambda r: len(r.runs_s), level=0),
        quantile_s("median_s", "Median of their run times, seconds.", 0.5, "MEDIAN"),
        out.span_s("mean_s", mean_doc, lambda r: mean_run_s(thinned(r.runs_s, RUNS_TOLD)), head="MEAN"),
        quantile_s("p90_s", "Nine of ten ran no longer, seconds.", 0.9, "P90"),
        out.flag("used", used_doc, lambda r: len(r.runs_s) >= RUNS_NEEDED, level=0),
    )


def _delay_columns() -> tuple[out.Column, ...]:
    queue_doc = "From the order to its place at the site, a mean, seconds."
    return (
        out.ident("type", "Drone type, as site/name.", lambda d: d[0], least=12),
        out.span_s("queue_s", queue_doc, lambda d: d[1].queue_s, head="QUEUE"),
        out.span_s("boot_s", "From its place to the pool, a mean, seconds.", lambda d: d[1].boot_s, head="BOOT"),
    )


def _site_estimate_columns() -> tuple[out.Column, ...]:
    def rise(key: str, horizon_s: float, head: str) -> out.Column:
        def milli(row: SiteEstimates) -> int | None:
            growth = row.estimates.rises.get(row.name)
            of_horizon = growth.gpu_milli[HORIZONS_S.index(horizon_s)] if growth else ()
            return of_horizon[int(_GROWTH_QUANTILE * len(of_horizon))] if of_horizon else None

        doc = (
            f"Within {formatting.age(horizon_s)} its owner came to hold more, in nine cases of ten by no more than "
            "this, in thousandths of GPUs; null: not known yet."
        )
        return out.gpus(key, doc, milli, null=True, head=head)

    def use_s(row: SiteEstimates) -> float:
        return USE_EVERY_S * (len(row.samples.use_milli) - row.samples.use_milli.count(UNKNOWN))

    def taken_per_1000_h(row: SiteEstimates) -> float | None:
        of = row.samples
        return out.rounded(of.taken / of.run_s * 3_600_000) if of.run_s >= 1.0 else None

    def gap_s(row: SiteEstimates) -> float | None:
        return _quantile(sorted(row.samples.gaps_s), 0.5)

    use_doc = "Over how much time its owner's use is known, 14 days at most, seconds."
    taken_doc = "Places taken back per 1000 hours of drones, where its owner's use is unknown; null: not known."
    gaps_doc = "Gaps between two jobs of a drone that are known, 200 at most."
    idle_doc = "Idle time-out that would have cost least, seconds; null: not known yet."
    return (
        out.text("site", "Site.", "name", level=0, least=8),
        out.span_s("use_s", use_doc, use_s, head="OWNER KNOWN"),
        rise("rise_1h_gpu_milli", 3600.0, "MORE IN 1H"),
        rise("rise_8h_gpu_milli", 28800.0, "MORE IN 8H"),
        out.number("taken_per_1000_h", taken_doc, taken_per_1000_h, null=True, head="TAKEN/1000H"),
        out.whole("gaps", gaps_doc, lambda s: len(s.samples.gaps_s), level=0),
        out.span_s("gap_median_s", "Median of these, seconds; null: none.", gap_s, head="GAP"),
        out.span_s("idle_s", idle_doc, lambda s: s.estimates.idle_s.get(s.name), head="IDLE TIME-OUT"),
    )


def _quantile(ascending: Sequence[float], share: float) -> float | None:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else None


estimates_app = typer.Typer(add_completion=False, rich_markup_mode=None)

_USER_HELP = "This user's run times, and with them those of all; repeatable."


@estimates_app.callback(invoke_without_command=True)
@opt.shared
def estimates(
    ctx: typer.Context,
    where: opt.Where,
    show: opt.Show,
    user: Annotated[str | None, opt.option("NAME", "Of this user: run times by size, too.")] = None,
) -> None:
    """Tell what was learned: run times by user, delays by drone type, and of each site its owner and its idle gaps.

    As the controller kept it last: it does so about every ten minutes and at its end. What the planner makes of it
    (an owner's rises, idle time-outs) is as of the newest tick. `estimates forget` makes it forget some of it.

    \b
    Examples:
      provisioner estimates
      provisioner estimates --user anna
      provisioner estimates -o json | jq '.sites[] | {site, rise_1h_gpu_milli, idle_s}'
    """
    if opt.verb_follows(ctx):
        return
    _require_names("user", [user] if user is not None else [], "leave it away for all users")
    reader = opt.open_record(where)
    out.present(show, lambda: estimates_document(estimates_on_record(reader, user or ""), time.time()))


def estimates_on_record(reader: Reader, user: str) -> EstimatesRow:
    """Return the estimates on record. Raises :class:`VerbError` for a user of whom nothing is known."""
    samples, views, asked = reader.estimate_samples(), reader.views(), reader.estimate_resets()
    if user and samples is not None:
        _require_known_user(samples, user)
    return EstimatesRow(samples, views.estimates if views else None, asked, user)


@estimates_app.command("forget")
@opt.shared
def forget(
    where: opt.Where,
    reason: opt.EventReason,
    user: Annotated[list[str] | None, opt.option("NAME", _USER_HELP)] = None,
    site: Annotated[list[str] | None, opt.option("NAME", "This site's owner, gaps and delays; repeatable.")] = None,
    all_: Annotated[bool, opt.switch("All of it.", "--all")] = False,
) -> None:
    """Remove estimates that do not apply any more: an owner who has changed, a user's new code.

    The controller does it within a minute, or when it starts. Drones and jobs on record stay. Run times of all users
    together contain those of each user, so they are removed too. They are known again after ten jobs.

    \b
    Examples:
      provisioner estimates forget --site topas --reason "the owner's group has moved to another cluster"
      provisioner estimates forget --user anna --user bert --reason "new framework, jobs run ten times faster"
      provisioner estimates forget --all --reason "moved to new machines"
    """
    users, sites = list(dict.fromkeys(user or ())), list(dict.fromkeys(site or ()))
    what = [f"user:{name}" for name in users] + [f"site:{name}" for name in sites]
    if not reason.strip():
        raise opt.VerbError("--reason must not be empty: it is recorded as an event", code=opt.Exit.USAGE)
    if all_ is bool(what):
        raise opt.VerbError("forget what? --all, or some with --user and --site", code=opt.Exit.USAGE)
    _require_names("user", users, "name a user, or use --all")
    _require_names("site", sites, "name a site, or use --all")
    reader = opt.open_record(where)
    if not all_:
        _require_known(reader, users, sites)
    for each in ["all"] if all_ else what:
        reader.ask_estimate_reset(each, reason=reason, by=operator(), at=time.time())
        out.note(f"recorded: to forget {each}")
    if reader.holder() is None:
        out.note("no controller runs: it will be done when one does")


def _require_names(option: str, names: Sequence[str], instead: str) -> None:
    """Raise :class:`VerbError` for an empty name, as of a variable that is not set: it would mean everybody."""
    if not all(name.strip() for name in names):
        raise opt.VerbError(f"--{option} must not be empty: {instead}", code=opt.Exit.USAGE)


def _require_known(reader: Reader, users: Sequence[str], sites: Sequence[str]) -> None:
    """Raise :class:`VerbError` for the first name without anything on record: a misspelling would forget nothing."""
    samples = reader.estimate_samples()
    if samples is None:
        raise opt.VerbError("nothing is on record yet: the controller keeps it every ten minutes and at its end")
    for name in users:
        _require_known_user(samples, name)
    known = sorted({*samples.sites, *(key.partition("/")[0] for key in samples.delays)})
    for name in sites:
        if name not in known:
            unknown = f"nothing is known of site {formatting.sanitize(name, 80)}"
            raise opt.VerbError(f"{unknown}; known: {opt.named(known) or 'none'}")


def _require_known_user(samples: EstimateSamples, name: str) -> None:
    if not any(owner_of(key) == name for key in samples.runs):
        raise opt.VerbError(f"nothing is known of the jobs of user {formatting.sanitize(name, 80)}")
