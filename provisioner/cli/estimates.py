"""``provisioner estimates``: what the planner has learned from the past, and a way to forget some of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli.drones import operator
from provisioner.cli.options import (
    EventReason,
    Exit,
    Show,
    VerbError,
    Where,
    named,
    open_record,
    refuse_options_before_verb,
    shared,
)
from provisioner.cli.output import (
    Column,
    Document,
    Listing,
    flag,
    items,
    note,
    number,
    present,
    rounded,
    span_s,
    text,
    time_at,
    whole,
)
from provisioner.controller.estimation import RUNS_NEEDED, RUNS_TOLD, USE_EVERY_S, thinned
from provisioner.estimates import (
    HORIZONS_S,
    UNKNOWN,
    Estimates,
    EstimateSamples,
    OwnerGrowth,
    SiteSamples,
    mean_run_s,
    owner_of,
)
from provisioner.store import EstimateReset
from provisioner.store.reader import Reader

ESTIMATES_SCHEMA = "provisioner.estimates/1"

_GROWTH_QUANTILE = 0.9
"""Quantile of the owner's growth that is shown: nine of ten were no higher."""


@dataclass(frozen=True, slots=True)
class EstimatesRow:
    """All estimates on record."""

    experience: EstimateSamples | None
    estimates: Estimates | None
    """Estimates of the newest tick."""
    forgets: Sequence[EstimateReset] = ()
    user: str = ""
    """User whose run times are shown by size; empty: of all users, all sizes together."""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Run times under one key."""

    user: str
    size: tuple[int, int, int] | None
    """Thousandths of GPUs, CPUs, MiB; None: of all sizes."""
    runs_s: tuple[float, ...]
    """Ascending."""


@dataclass(frozen=True, slots=True)
class SiteEstimates:
    """Estimates of one site."""

    name: str
    kept: SiteSamples
    rise: OwnerGrowth | None
    idle_s: float | None

    def rise_milli(self, horizon_s: float) -> int | None:
        row = self.rise.gpu_milli[HORIZONS_S.index(horizon_s)] if self.rise else ()
        return row[int(_GROWTH_QUANTILE * len(row))] if row else None

    @property
    def use_s(self) -> float:
        """Time over which the owner's use is known."""
        return USE_EVERY_S * (len(self.kept.use_milli) - self.kept.use_milli.count(UNKNOWN))


def estimates_document(known: EstimatesRow, now: float) -> Document:
    """Return the answer of ``provisioner estimates``."""
    kept = known.experience
    delays = sorted(kept.delays.items()) if kept else []
    if kept is None:
        scope = "nothing is on record yet: the controller keeps it every ten minutes and at its end"
    else:
        scope = f"{formatting.count(len(kept.runs), 'kind')} of jobs known, as of {formatting.ago(kept.at, now)} ago"
    to_forget_doc = "What operators want forgotten and is not yet."
    facts = (
        time_at(
            "kept_at", "When it was kept last.", "experience.at", head="kept", unit=lambda at: formatting.ago(at, now)
        ),
        items("to_forget", to_forget_doc, lambda k: [each.what for each in k.forgets], head="to forget", spare=1),
    )
    return Document(
        ESTIMATES_SCHEMA,
        Listing("", facts, [known], lambda k: k.user),
        {
            "run_times": Listing("", _run_columns(), _run_times(known), lambda r: r.user),
            "delays": Listing("", _delay_columns(), delays, lambda d: d[0]),
            "sites": Listing("", _site_estimate_columns(), _site_estimates(known), lambda s: s.name),
        },
        {"run_times": "Run times of jobs", "delays": "Delays of drones", "sites": "Sites"},
        main="run_times",
        scope=scope,
    )


def _run_times(known: EstimatesRow) -> list[RunTimes]:
    """Return run times, those of the most jobs first."""
    rows = []
    for key, runs_s in known.experience.runs.items() if known.experience else ():
        user = owner_of(key)
        if known.user in ("", user) and (known.user or key == user):
            gpu_milli, cpus, memory_mib = map(int, key[len(user) + 1 :].split("/")) if key != user else (0, 0, 0)
            size = (gpu_milli, cpus, memory_mib) if key != user else None
            rows.append(RunTimes(user, size, tuple(sorted(runs_s))))
    return sorted(rows, key=lambda r: (-len(r.runs_s), r.user, r.size or ()))


def _site_estimates(known: EstimatesRow) -> list[SiteEstimates]:
    estimates = known.estimates or Estimates()
    sites = known.experience.sites if known.experience else {}
    return [
        SiteEstimates(n, kept, estimates.rises.get(n), estimates.idle_s.get(n)) for n, kept in sorted(sites.items())
    ]


def _run_columns() -> tuple[Column, ...]:
    def asks_for(key: str, place: int, what: str, head: str, unit: Callable[[int], str]) -> Column:
        def value(row: RunTimes) -> int | None:
            return row.size[place] if row.size else None

        def show(row: RunTimes) -> str:
            return unit(row.size[place]) if row.size else "any"

        return whole(key, f"{what} such a job asks for; null: of all sizes.", value, null=True, head=head, show=show)

    mean_doc = "Mean of their run times as the planner takes it (a few very long ones count less), seconds."
    used_doc = f"Whether they are enough ({RUNS_NEEDED}) to be used."
    return (
        text("user", "Whose jobs; empty: everybody's.", level=0, least=12, tail=True, unit=lambda u: u or "(all)"),
        asks_for("gpu_milli", 0, "Thousandths of GPUs that", "GPUS", formatting.gpus),
        asks_for("cpus", 1, "CPUs that", "CPUS", str),
        asks_for("memory_mib", 2, "MiB of memory that", "MEMORY", formatting.size),
        whole("jobs", "How many of the newest are known, 200 at most.", lambda r: len(r.runs_s), level=0),
        span_s("median_s", "Median of their run times, seconds.", lambda r: _quantile(r.runs_s, 0.5), head="MEDIAN"),
        span_s("mean_s", mean_doc, lambda r: mean_run_s(thinned(r.runs_s, RUNS_TOLD)), head="MEAN"),
        span_s("p90_s", "Nine of ten ran no longer, seconds.", lambda r: _quantile(r.runs_s, 0.9), head="P90"),
        flag("used", used_doc, lambda r: len(r.runs_s) >= RUNS_NEEDED, level=0),
    )


def _delay_columns() -> tuple[Column, ...]:
    queue_doc = "From the order to its place at the site, a mean, seconds."
    return (
        text("type", "Drone type, as site/name.", lambda d: d[0], level=0, least=12, tail=True),
        span_s("queue_s", queue_doc, lambda d: d[1].queue_s, head="QUEUE"),
        span_s("boot_s", "From its place to the pool, a mean, seconds.", lambda d: d[1].boot_s, head="BOOT"),
    )


def _site_estimate_columns() -> tuple[Column, ...]:
    def rise(key: str, horizon_s: float, head: str) -> Column:
        doc = (
            f"Within {formatting.age(horizon_s)} its owner came to hold more, in nine cases of ten by no more than "
            "this, in thousandths of GPUs; null: not known yet."
        )
        return whole(key, doc, lambda s: s.rise_milli(horizon_s), null=True, head=head, unit=formatting.gpus)

    def taken_per_1000_h(row: SiteEstimates) -> float | None:
        return rounded(row.kept.taken / row.kept.run_s * 3_600_000) if row.kept.run_s >= 1.0 else None

    use_doc = "Over how much time its owner's use is known, 14 days at most, seconds."
    taken_doc = "Places taken back per 1000 hours of drones, where its owner's use is unknown; null: not known."
    gaps_doc = "Gaps between two jobs of a drone that are known, 200 at most."
    idle_doc = "Idle time-out that would have cost least, seconds; null: not known yet."
    return (
        text("site", "Site.", "name", level=0, least=8),
        span_s("use_s", use_doc, head="OWNER KNOWN"),
        rise("rise_1h_gpu_milli", 3600.0, "MORE IN 1H"),
        rise("rise_8h_gpu_milli", 28800.0, "MORE IN 8H"),
        number("taken_per_1000_h", taken_doc, taken_per_1000_h, null=True, head="TAKEN/1000H"),
        whole("gaps", gaps_doc, lambda s: len(s.kept.gaps_s), level=0),
        span_s(
            "gap_median_s",
            "Median of these, seconds; null: none.",
            lambda s: _quantile(sorted(s.kept.gaps_s), 0.5),
            head="GAP",
        ),
        span_s("idle_s", idle_doc, head="IDLE TIME-OUT"),
    )


def _quantile(ascending: Sequence[float], share: float) -> float | None:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else None


estimates_app = typer.Typer(add_completion=False, rich_markup_mode=None)

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Of this user: run times by size, too.")]


@estimates_app.callback(invoke_without_command=True)
@shared
def estimates(ctx: typer.Context, where: Where, show: Show, user: User = None) -> None:
    """Tell what was learned: run times by user, delays by drone type, and of each site its owner and its idle gaps.

    As the controller kept it last: it does so about every ten minutes and at its end. What the planner makes of it
    (an owner's rises, idle time-outs) is as of the newest tick. `estimates forget` makes it forget some of it.

    \b
    Examples:
      provisioner estimates
      provisioner estimates --user anna
      provisioner estimates -o json | jq '.sites[] | {site, rise_1h_gpu_milli, idle_s}'
    """
    if ctx.invoked_subcommand is not None:
        refuse_options_before_verb(ctx)
        return
    _require_names("user", [user] if user is not None else [], "leave it away for all users")
    reader = open_record(where)
    present(show, lambda: estimates_document(estimates_on_record(reader, user or ""), time.time()))


def estimates_on_record(reader: Reader, user: str) -> EstimatesRow:
    """Return the estimates on record. Raises :class:`VerbError` for a user of whom nothing is known."""
    experience, views, asked = reader.estimate_samples(), reader.views(), reader.estimate_resets()
    if user and experience is not None:
        _require_known_user(experience, user)
    return EstimatesRow(experience, views.estimates if views else None, asked, user)


@estimates_app.command("forget")
@shared
def forget(
    where: Where,
    reason: EventReason,
    user: Annotated[
        list[str] | None,
        typer.Option("--user", metavar="NAME", help="This user's run times, and with them those of all; repeatable."),
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option("--site", metavar="NAME", help="This site's owner, gaps and delays; repeatable."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All of it.")] = False,
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
        raise VerbError("--reason must not be empty: it is recorded as an event", code=Exit.USAGE)
    if all_ is bool(what):
        raise VerbError("forget what? --all, or some with --user and --site", code=Exit.USAGE)
    _require_names("user", users, "name a user, or use --all")
    _require_names("site", sites, "name a site, or use --all")
    reader = open_record(where)
    _require_known(reader, users, sites)
    for each in ["all"] if all_ else what:
        reader.ask_estimate_reset(each, reason=reason, by=operator(), at=time.time())
        note(f"recorded: to forget {each}")
    if reader.holder() is None:
        note("no controller runs: it will be done when one does")


def _require_names(option: str, names: Sequence[str], instead: str) -> None:
    """Raise :class:`VerbError` for an empty name, as of a variable that is not set: it would mean everybody."""
    if not all(name.strip() for name in names):
        raise VerbError(f"--{option} must not be empty: {instead}", code=Exit.USAGE)


def _require_known(reader: Reader, users: Sequence[str], sites: Sequence[str]) -> None:
    """Raise :class:`VerbError` for the first name without anything on record: a misspelling would forget nothing."""
    experience = reader.estimate_samples() if users or sites else EstimateSamples(0.0)
    if experience is None:
        raise VerbError("nothing learned is on record yet: the controller keeps it every ten minutes and at its end")
    for name in users:
        _require_known_user(experience, name)
    places = {*experience.sites, *(key.partition("/")[0] for key in experience.delays)}
    for name in sites:
        if name not in places:
            raise VerbError(
                f"nothing is known of site {formatting.sanitize(name, 80)}; known: {named(sorted(places)) or 'none'}"
            )


def _require_known_user(experience: EstimateSamples, name: str) -> None:
    if not any(owner_of(key) == name for key in experience.runs):
        raise VerbError(f"nothing is known of the jobs of user {formatting.sanitize(name, 80)}")
