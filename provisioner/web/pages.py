"""Web pages: the answers of the command line as HTML that needs no script.

To add a page, write a function that returns a :class:`WebPage` and name it in :data:`PAGES`, or in
:data:`PAGES_OF_ONE` if its address ends in a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import groupby
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from provisioner import __version__, formatting, model
from provisioner.cli import drones, jobs, plan, sites, status, troubles, usage
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.options import VerbError
from provisioner.model import DroneState
from provisioner.store import Views
from provisioner.store.reader import Reader
from provisioner.web import charts, tables
from provisioner.web.tables import page_table

Query = Mapping[str, str]
"""Parameters of an address."""


@dataclass(frozen=True, slots=True)
class WebPage:
    """Page of the service: its template and the values that this shows."""

    title: str
    template: str = "document.html"
    values: Mapping[str, Any] = field(default_factory=dict)


def render(path: str, reader: Reader, query: Query) -> str:
    """Return the HTML of the page at ``path``, which is decoded, as of now.

    Raises :class:`VerbError` for a page, site, drone, job or parameter that does not exist, ``StoreError`` if the
    record cannot be read.
    """
    head, _, name = path.strip("/").partition("/")
    if name and head in PAGES_OF_ONE:
        page = PAGES_OF_ONE[head](reader, name, query)
    elif not name and head in PAGES:
        page = PAGES[head](reader, query)
    else:
        raise opt.unknown("page", path, [f"/{known}" for known in PAGES])
    views = reader.views()
    return (
        _environment()
        .get_template(page.template)
        .render(
            {
                "intro": "",
                "facts": (),
                "tables": (),
                "choices": (),
                "chart": None,
                "lead": False,
                "page": page,
                "here": head,
                "menu": MENU,
                "as_of": drones.as_of(reader, views),
                "version": __version__,
                "asked": formatting.sanitize(query.get("q", ""), 200),
                **page.values,
            }
        )
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("provisioner.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"duration": formatting.duration, "moment": tables.moment, "iso": formatting.iso}
    made.globals |= {"address": tables.address, "ago": lambda at: formatting.duration(max(0.0, out.now() - at))}
    return made


def _document(title: str, document: out.Document, query: Query, *leave_out: str, **more: Any) -> WebPage:
    """Return the page of a document: facts, then its parts; the parameters sort the main one."""
    parts = [
        page_table(part, query if key == document.main else None, bars=_BARS)
        for key, part in document.parts.items()
        if part.title
    ]
    return WebPage(title, values={"facts": tables.facts(document, *leave_out), "tables": parts, **more})


_BARS = ("held_gpu_s", "lost_gpu_s")
"""Amounts that get a bar."""


# ----------------------------------------------------------------------------------------------------------------- now

STARTING = (*model.PENDING, DroneState.JOINED)
LEAVING = (DroneState.DRAINING, DroneState.STOPPING)
STATE_GROUPS: Mapping[str, Sequence[DroneState]] = {
    "starting": STARTING,
    "running": (DroneState.BUSY,),
    "idle": (DroneState.IDLE,),
    "draining": LEAVING,
}


class TypeNow(NamedTuple):
    """Drone type at a site: free places, drones by state, and what the newest plan does not start there."""

    kind: str
    free: int | None
    """None: the site does not tell."""
    states: Mapping[str, int]
    refused: int
    """Waiting jobs for which nothing of it was started."""
    why: str

    @property
    def live(self) -> int:
        return sum(self.states.values())


def _now(reader: Reader, query: Query) -> WebPage:
    document = status.status_document(reader)
    parts, views = document.parts, reader.views()
    troubles: Sequence[Any] = parts["troubles"].rows
    worst = next((t.severity for t in troubles), "well")
    shown = [replace(c, level=0) for c in parts["demand"].columns if c.key in _DEMAND_SHOWN]
    demand = replace(parts["demand"], columns=shown)
    values = {
        "verdict": document.scope.partition(": ")[0] if troubles else "All is well",
        "worst": worst,
        "troubles": page_table(parts["troubles"]).rows,
        "facts": tables.facts(document),
        "sites": list(zip(parts["sites"].rows, _types_now(reader, views, parts["sites"].rows), strict=True)),
        "groups": STATE_GROUPS,
        "demand": page_table(demand, bars=("waiting",)),
        "owner_words": sites.owner_words,
        "views": page_table(parts["views"]),
        "events": page_table(parts["events"]),
    }
    return WebPage("Now", "now.html", values)


_DEMAND_SHOWN = ("id", "owner", "waiting", "running", "drones", "oldest_s", "needs", "why")


def _types_now(reader: Reader, views: Views | None, rows: Sequence[sites.SiteRow]) -> list[list[TypeNow]]:
    """Return the drone types of each site, those that are configured and those that still have drones."""
    live = Counter((drone.type, drone.state) for drone in reader.drones())
    snapshot, newest = reader.snapshot(), jobs.newest_plan(reader)
    quiet_s = snapshot.now - snapshot.gpu_wanted_at if snapshot else 0.0
    configured = {kind.key: kind for kind in views.types} if views else {}
    keys = sorted({*configured, *(kind for kind, _ in live)})
    by_site = {site: list(found) for site, found in groupby(keys, lambda key: key.partition("/")[0])}

    def now(row: sites.SiteRow, key: model.TypeKey) -> TypeNow:
        states = {name: sum(live[key, state] for state in group) for name, group in STATE_GROUPS.items()}
        free = _free_places(row, configured[key], quiet_s) if key in configured else None
        return TypeNow(key.partition("/")[2], free, states, *_refused(newest, row, key))

    return [[now(row, key) for key in by_site.get(row.name, ())] for row in rows]


def _free_places(row: sites.SiteRow, kind: model.DroneType, quiet_s: float) -> int | None:
    """Return how many drones of a type could start at a site by its newest view."""
    from provisioner.planner.owner import FreeResources

    if row.view is not None and row.view.nodes:
        return FreeResources.of(row.view.nodes, row.policy.blocking if row.policy else (), quiet_s).count(kind)
    return row.view.free.get(kind.name, 0) if row.view is not None and row.view.free is not None else None


def _refused(newest: model.Plan | None, row: sites.SiteRow, key: model.TypeKey) -> tuple[int, str]:
    """Return the jobs that the newest plan refuses for a type or its site, and the reason of most of them."""
    by_reason: Counter[str] = Counter()
    for refusal in newest.refusals if newest else ():
        places = {getattr(refusal.reason, name, "") for name in ("type", "scope", "site", "nearest", "view")}
        if places & {str(key), row.name, f"site:{row.name}"}:
            by_reason[formatting.describe(refusal.reason)] += refusal.count
    if by_reason:
        return by_reason.total(), by_reason.most_common(1)[0][0]
    breakers = [b for b in (row.breaker, *row.type_breakers) if b.scope in (row.name, key)]
    troubled = next((b for b in breakers if b.state is not model.BreakerState.ACTIVE), None)
    return 0, plan.breaker_words(troubled) if troubled else ""


# ----------------------------------------------------------------------------------------------------------------- why


def _why(reader: Reader, query: Query) -> WebPage:
    """Return the answer for an id of any kind, or the ones to choose from."""
    asked = query.get("q", "").strip()
    if not asked:
        return WebPage("Why", "why.html", {"found": (), "lines": ()})
    kind, colon, name = asked.partition(":")
    kinds = {kind: FINDERS[kind]} if colon and kind in FINDERS else FINDERS
    found: dict[str, WebPage] = {}
    lines: list[str] = []
    for each, find in kinds.items():
        try:
            found[each] = find(reader, name if len(kinds) == 1 else asked, query)
        except VerbError as missing:
            lines += missing.lines
    if len(found) == 1:
        (page,) = found.values()
        return page
    choices = [(each, page.title, tables.address("/why?q=", f"{each}:{asked}")) for each, page in found.items()]
    return WebPage(
        f"Why: {formatting.sanitize(asked, 80)}", "why.html", {"found": choices, "lines": () if found else lines}
    )


def _drone(reader: Reader, any_id: str, query: Query) -> WebPage:
    document = drones.drone_document(reader, opt.find_drone(reader, any_id))
    lines = document.parts["last_words"].rows
    steps = zip(document.parts["history"].rows, page_table(document.parts["history"]).rows, strict=True)
    values = {
        "facts": tables.facts(document, "id"),
        "steps": list(steps),
        "last_words": "\n".join(map(formatting.sanitize, lines)),
    }
    return WebPage(f"Drone {document.name}", "drone.html", values)


def _class(reader: Reader, class_id: str, query: Query) -> WebPage:
    document = jobs.explained_class(reader, class_id)
    intro = document.scope.partition(": ")[2]
    return _document(f"Class {formatting.sanitize(class_id, 80)}", document, query, "id", intro=intro, lead=True)


def _job(reader: Reader, job_id: str, query: Query) -> WebPage:
    """Return the page of one job for its user: it has nothing on other users."""
    document = jobs.explained_job(reader, job_id)
    facts = tables.facts(document)
    values: dict[str, Any] = {
        "facts": [fact for fact in facts if fact.key in JOB_FACTS_SHOWN],
        "advice": [fact.cell.text for fact in facts if fact.key.startswith("advice")],
    }
    shown = formatting.sanitize(job_id, 80)
    if document.schema == jobs.CLASS_SCHEMA:
        first, *others = [formatting.describe(reason) for reason in document.parts["said"].rows] or [jobs.NO_PLAN_YET]
        types = page_table(document.parts["types"])
        return WebPage(f"Job {shown} waits", "job.html", {**values, "answer": first, "others": others, "types": types})
    state = "is done" if document.of.state == "done" else "runs" if document.of.state == "running" else "is held"
    answer = document.of.said
    return WebPage(f"Job {shown} {state}", "job.html", {**values, "answer": answer, "others": (), "types": None})


JOB_FACTS_SHOWN = ("drone", "needs", "waiting", "running", "drones")

FINDERS: Mapping[str, Callable[[Reader, str, Query], WebPage]] = {"drone": _drone, "job": _job, "class": _class}
"""Kinds of ids, in the order in which they are looked for."""

# ----------------------------------------------------------------------------------------------- sites and their owners


def _sites(reader: Reader, query: Query) -> WebPage:
    views = reader.views()
    rows = sites.site_rows(reader, views, reader.drones())
    columns = usage.with_use(sites.SITE_COLUMNS, usage.RecordedUse(reader, views).by("site"), lambda row: row.name)
    listing = out.Listing("", columns, rows, title="Sites")
    looks = out.Listing("", troubles.VIEW_COLUMNS, troubles.view_rows(views, out.now()), title="Newest looks")
    return WebPage("Sites", values={"tables": [page_table(listing, query), page_table(looks)]})


def _site(reader: Reader, name: str, query: Query) -> WebPage:
    document = sites.shown_site(reader, name)
    fault = document.of.reading.fault if document.of.reading else None
    intro = f"The newest look failed {out.ago(fault.at)} ago: {formatting.sanitize(fault.message)}" if fault else ""
    title = f"Site {formatting.sanitize(name, 80)}"
    return _document(title, document, query, "site", intro=intro, lead=True)


class OwnerRow(NamedTuple):
    """Owner of a site: their jobs, and the drones that gave way to them."""

    site: sites.SiteRow
    giving_way: int
    """Live drones that were asked to leave for them."""

    @property
    def claims(self) -> Sequence[model.OwnerDemand]:
        return self.site.view.claims if self.site.view else ()


def _hours(gpu_s: float) -> str:
    return formatting.number(round(gpu_s / 3600, 1))


OWNER_COLUMNS = (
    out.ident("site", "Site.", "site.name", level=0),
    out.whole("jobs", "Jobs of the owner that wait there.", lambda o: sum(c.count for c in o.claims), head="waiting"),
    out.gpus(
        "gpu_milli", "GPUs that they want.", lambda o: sum(c.count * c.gpu_milli for c in o.claims), head="for GPUs"
    ),
    out.age_s(
        "since", "Since the first was submitted.", lambda o: min((c.since for c in o.claims), default=0.0), head="for"
    ),
    out.whole("giving_way", "Drones that are leaving for them now.", head="giving way"),
    out.whole("running", "Jobs of the owner that run.", "site.view.owner_runs.jobs", null=True, head="running"),
    out.gpus("held", "GPUs that these hold.", "site.view.owner_runs.gpu_milli", null=True, head="on GPUs"),
    out.whole("taken_back", "Drones that gave way in 7 days.", "site.hazard.preempted", null=True, head="taken back"),
    out.whole("ran", "Drones that ran in 7 days.", "site.hazard.drones", null=True, head="of drones"),
    out.span_s("grace_s", "Mean time from notice to end.", "site.hazard.grace_mean_s", head="gave way in"),
    out.number(
        "lost_gpu_s",
        "Work of jobs lost in 7 days.",
        "site.hazard.lost_gpu_s",
        null=True,
        unit=_hours,
        head="GPU-h lost",
    ),
)
GIVING_WAY_SHOWN = ("id", "type", "state", "node", "notice_at", "grace_used_s", "at_risk_gpu_s")


def _owner(reader: Reader, query: Query) -> WebPage:
    views, live = reader.views(), reader.drones()
    leaving = [drone for drone in live if drone.notice_at]
    by_site = Counter(drone.site for drone in leaving)
    rows = [OwnerRow(row, by_site[row.name]) for row in sites.site_rows(reader, views, live)]
    claims = [(row.site.name, claim) for row in rows for claim in row.claims]
    site_column = out.text("site", "Site.", lambda pair: pair[0], level=0)
    of_claim = [replace(c, of=lambda pair, of=c.of: of(pair[1])) for c in sites.CLAIM_COLUMNS]
    notices = [replace(c, level=0, head=c.fact or c.title) for c in drones.DRONE_COLUMNS if c.key in GIVING_WAY_SHOWN]
    week = [h for h in reader.hazards(out.now() - sites.WEEK_S, out.now()) if "/" in h.scope]
    made = (
        page_table(out.Listing("", OWNER_COLUMNS, rows, title="Owners"), query, bars=("lost_gpu_s",)),
        page_table(out.Listing("", [site_column, *of_claim], claims, title="Their jobs that wait")),
        page_table(out.Listing("", notices, leaving, title="Drones that give way now")),
        page_table(
            out.Listing("", sites.HAZARD_COLUMNS, week, title="Drone types in the last 7 days"), bars=("lost_gpu_s",)
        ),
    )
    intro = "The owner's jobs come first: drones leave when they wait. What that cost, and how quickly drones left."
    return WebPage("Owner", values={"tables": made, "intro": intro})


# ------------------------------------------------------------------------------------------------------- use and waste

PERIODS: Mapping[str, tuple[float, float]] = {
    "1d": (86400.0, 1800.0),
    "7d": (7 * 86400.0, 3 * 3600.0),
    "30d": (30 * 86400.0, 86400.0),
}
"""Periods to choose from with the length of a bar in the chart, in seconds."""
_PERIOD_WORDS = {"1d": "last day", "7d": "last 7 days", "30d": "last 30 days"}


class Choice(NamedTuple):
    """Link to the same page with another value of a parameter."""

    text: str
    href: str
    chosen: bool


def _choices(query: Query, key: str, words: Mapping[str, str], usual: str) -> tuple[str, list[Choice]]:
    """Return the value of a parameter that has few, and links to all. Raises :class:`VerbError` for another value."""
    given = query.get(key, usual)
    if given not in words:
        raise opt.unknown(key, given, list(words))
    links = [Choice(text, f"?{urlencode({**query, key: value})}", value == given) for value, text in words.items()]
    return given, links


USE_SHOWN = (
    *("name", "jobs", "held_gpu_s", "mean", "use_p95", "vram_p95_mib", "vram_asked_mib", "fits", "saved_gpu_s"),
)


def _use(reader: Reader, query: Query) -> WebPage:
    period, periods = _choices(query, "since", _PERIOD_WORDS, "7d")
    by, groupings = _choices(query, "by", {str(each): f"by {each}" for each in usage.Grouping}, "class")
    report = usage.RecordedUse(reader, reader.views(), out.now() - PERIODS[period][0]).by(by)
    document = usage.usage_document(report)
    columns = [replace(c, level=0 if c.key in USE_SHOWN else 2) for c in usage.USAGE_COLUMNS]
    document = replace(document, parts={"items": replace(document.parts["items"], columns=columns)})
    intro = f"The GPUs that jobs asked for, and the part of them that they used, in the {_PERIOD_WORDS[period]}."
    if not report.measured_s:
        intro += " No run was measured."
    return _document("Use", document, query, intro=intro, choices=(periods, groupings))


WASTE_METRIC = "provisioner_gpu_seconds_total"
USES: Mapping[str, str] = {
    "good": "done work",
    "idle": "no job",
    "boot": "starting",
    "lost": "work cut short",
}
"""Values of the label ``use``, in the order of the chart, with their meaning."""


def _waste(reader: Reader, query: Query) -> WebPage:
    period, periods = _choices(query, "since", _PERIOD_WORDS, "1d")
    gpu_s = charts.Increases.read(cast("charts.SeriesReader", reader), WASTE_METRIC, out.now(), *PERIODS[period])
    known = gpu_s.by("use")
    hours = {use: [each / 3600 for each in known.get(use, [0.0] * len(gpu_s.times))] for use in USES}
    total = sum(map(sum, hours.values()))
    parts = ", ".join(f"{use} {sum(found) / total:.0%}" for use, found in hours.items()) if total else "none on record"
    by_site = [SiteHours(site, found) for site, found in sorted(gpu_s.totals("site", "use").items())]
    listing = out.Listing("", WASTE_COLUMNS, by_site, title="GPU-hours by site")
    words = _PERIOD_WORDS[period]
    values = {
        "choices": (periods,),
        "intro": f"{charts.amount(total)} GPU-hours in the {words}: {parts}.",
        "chart": charts.stacked_bars(f"GPU-hours in the {words}", hours, USES, gpu_s.times) if total else None,
        "tables": (page_table(listing, query, bars=("total",)),),
    }
    return WebPage("Waste", values=values)


class SiteHours(NamedTuple):
    """GPU time of the drones of a site by use."""

    name: str
    gpu_s: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.gpu_s.values())

    @property
    def good_part(self) -> float | None:
        return self.gpu_s.get("good", 0.0) / self.total if self.total else None


def _use_column(use: str, words: str) -> out.Column:
    return _gpu_hours(use, f"GPU-hours: {words}.", lambda row: row.gpu_s.get(use, 0.0), head=use)


_gpu_hours = partial(out.number, unit=lambda gpu_s: charts.amount(gpu_s / 3600))
WASTE_COLUMNS = (
    out.ident("site", "Site.", "name", level=0),
    _gpu_hours("total", "GPU-hours that drones held.", head="GPU-h"),
    *(_use_column(use, words) for use, words in USES.items()),
    out.number("good_part", "Done work, of all.", null=True, head="good part", unit="{:.0%}".format),
)


# ---------------------------------------------------------------------------------------------------------------- lists


def _plan(reader: Reader, query: Query) -> WebPage:
    from provisioner.planner.safeguards import safe_plan

    seen = plan.kept_snapshot(reader, None)
    document = plan.plan_document(safe_plan(seen).plan, "")
    intro = f"The next tick would do this on what was seen {out.ago(seen.now)} ago: {plan.plan_summary(document.of)}."
    return _document("Plan", document, query, intro=intro)


def _drones(reader: Reader, query: Query) -> WebPage:
    def given(key: str) -> list[str]:
        return [value for value in query.get(key, "").split(",") if value]

    with opt.reported(ValueError):
        states = [DroneState(state) for state in given("state")]
    chosen = drones.DroneFilter(given("site"), states, given("type"), given("node"))
    which, links = _choices(query, "show", {"live": "live", "ended": "ended", "all": "all"}, "live")
    listing = drones.drone_listing(reader, chosen, {"live": False, "ended": True, "all": None}[which], use=True)
    columns = [replace(c, level=max(c.level, 2 * (c.key in DRONE_NOT_SHOWN))) for c in listing.columns]
    only = [f"{key}: {', '.join(values)}" for key, values in chosen.given.items()]
    title = "; ".join([formatting.count(len(listing.rows), "drone"), *only])
    table = page_table(replace(listing, title=title, columns=columns), {"limit": "500", **query})
    return WebPage("Drones", values={"choices": (links,), "tables": (table,)})


DRONE_NOT_SHOWN = ("remote_id", "site_slot", "slot")
"""Shown where ``columns`` names them."""

MENU = {
    "": "Now",
    "sites": "Sites",
    "drones": "Drones",
    "owner": "Owner",
    "use": "Use",
    "waste": "Waste",
    "plan": "Plan",
}
PAGES: Mapping[str, Callable[[Reader, Query], WebPage]] = {
    "": _now,
    "why": _why,
    "sites": _sites,
    "drones": _drones,
    "owner": _owner,
    "use": _use,
    "waste": _waste,
    "plan": _plan,
}
PAGES_OF_ONE: Mapping[str, Callable[[Reader, str, Query], WebPage]] = {"sites": _site, "drone": _drone, "job": _job}
