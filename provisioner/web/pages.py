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
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from provisioner import __version__, formatting, model
from provisioner.cli import drones, jobs, plan, sites, status, usage
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.options import VerbError
from provisioner.model import DroneState
from provisioner.reasons import SiteDisabled
from provisioner.store import Views
from provisioner.store.reader import Reader
from provisioner.web import charts, tables
from provisioner.web.charts import PageChart
from provisioner.web.tables import PageFact, PageTable, page_table

Query = Mapping[str, str]
"""Parameters of an address."""


class Choice(NamedTuple):
    """Link to the same page with another value of a parameter."""

    text: str
    href: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class WebPage:
    """Page of the service. What only one template shows is in ``more``."""

    title: str
    template: str = "document.html"
    answer: str = ""
    """The page in a sentence, for those who read no further."""
    choices: Sequence[Sequence[Choice]] = ()
    facts: Sequence[PageFact] = ()
    chart: PageChart | None = None
    tables: Sequence[PageTable] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


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
    asked = formatting.sanitize(query.get("q", ""), formatting.SHORT_TEXT)
    return _html(page, head, asked, drones.as_of(reader, reader.views()))


def render_error(title: str, lines: Sequence[str]) -> str:
    """Return the HTML of a page that cannot be shown: a title, and why."""
    return _html(WebPage(title, answer=". ".join(lines)))


def _html(page: WebPage, here: str | None = None, asked: str = "", as_of: str = "") -> str:
    menu = [path for path in PAGES if path != "why"]
    template = _environment().get_template(page.template)
    return template.render(page.more, page=page, here=here, menu=menu, asked=asked, as_of=as_of, version=__version__)


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


def _document(title: str, document: out.Document, query: Query, answer: str, *leave_out: str) -> WebPage:
    """Return the page of a document: facts, then its parts; the parameters sort the main one."""
    parts = [
        page_table(part, query if key == document.main else None, bars=_BARS)
        for key, part in document.parts.items()
        if part.title
    ]
    return WebPage(title, answer=answer, facts=tables.facts(document, *leave_out), tables=parts)


_BARS = ("held_gpu_s", "lost_gpu_s")
"""Amounts that get a bar."""


# ----------------------------------------------------------------------------------------------------------------- now

STATE_GROUPS: Mapping[str, Sequence[DroneState]] = {
    "starting": model.ON_THE_WAY,
    "running": (DroneState.BUSY,),
    "idle": (DroneState.IDLE,),
    "draining": (DroneState.DRAINING, DroneState.STOPPING),
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
    lists = (page_table(demand, bars=("waiting",)), page_table(parts["views"]), page_table(parts["events"]))
    more = {
        "worst": worst,
        "troubles": page_table(parts["troubles"]).rows,
        "sites": list(zip(parts["sites"].rows, _types_now(reader, views, parts["sites"].rows), strict=True)),
        "groups": STATE_GROUPS,
        "owner_words": sites.owner_words,
    }
    answer = document.scope.partition(": ")[0] if troubles else "All is well"
    return WebPage("Now", "now.html", answer, facts=tables.facts(document), tables=lists, more=more)


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
        return WebPage("Why", "why.html", more={"found": (), "lines": ()})
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
    links = [Choice(page.title, tables.address("/why?q=", f"{each}:{asked}"), False) for each, page in found.items()]
    more = {"found": links, "lines": () if found else lines}
    return WebPage(f"Why: {formatting.sanitize(asked, 80)}", "why.html", more=more)


def _drone(reader: Reader, any_id: str, query: Query) -> WebPage:
    document = drones.drone_document(reader, opt.find_drone(reader, any_id))
    life, last_words = document.parts["history"], document.parts["last_words"].rows
    more = {
        "steps": list(zip(life.rows, page_table(life).rows, strict=True)),
        "last_words": "\n".join(map(formatting.sanitize, last_words)),
    }
    return WebPage(f"Drone {document.name}", "drone.html", facts=tables.facts(document, "id"), more=more)


def _class(reader: Reader, class_id: str, query: Query) -> WebPage:
    document = jobs.explained_class(reader, class_id)
    return _document(_named("Class", class_id), document, query, document.scope.partition(": ")[2], "id")


def _job(reader: Reader, job_id: str, query: Query) -> WebPage:
    """Return the page of one job for its user: it has nothing on other users."""
    document = jobs.explained_job(reader, job_id)
    facts = [fact for fact in tables.facts(document) if fact.key in JOB_FACTS_SHOWN]
    if document.schema != jobs.CLASS_SCHEMA:
        title = f"{_named('Job', job_id)} {JOB_STATES[document.of.state]}"
        return WebPage(title, "job.html", document.of.said, facts=facts, more={"others": (), "advice": ()})
    said = [
        replace(reason, by="an operator") if isinstance(reason, SiteDisabled) and reason.by else reason
        for reason in document.parts["said"].rows
    ]
    first, *others = map(formatting.describe, said) if said else [jobs.NO_PLAN_YET]
    advice = document.parts.get("advice")
    more = {"others": others, "advice": [row[0].text for row in page_table(advice).rows] if advice else ()}
    types = page_table(document.parts["types"])
    return WebPage(f"{_named('Job', job_id)} waits", "job.html", first, facts=facts, tables=[types], more=more)


def _named(kind: str, name: str) -> str:
    return f"{kind} {formatting.sanitize(name, 80)}"


JOB_FACTS_SHOWN = ("drone", "needs", "waiting", "running", "drones")
JOB_STATES = {"running": "runs", "held": "is held", "done": "is done"}
FINDERS: Mapping[str, Callable[[Reader, str, Query], WebPage]] = {"drone": _drone, "job": _job, "class": _class}
"""Kinds of ids, in the order in which they are looked for."""


# ----------------------------------------------------------------------------------------------- sites and their owners


def _sites(reader: Reader, query: Query) -> WebPage:
    views = reader.views()
    rows = sites.site_rows(reader, views, reader.drones())
    columns = usage.with_use(sites.SITE_COLUMNS, usage.RecordedUse(reader, views).by("site"), lambda row: row.name)
    return WebPage("Sites", tables=[page_table(out.Listing("", columns, rows, title="All sites"), query)])


def _site(reader: Reader, name: str, query: Query) -> WebPage:
    document = sites.shown_site(reader, name)
    fault = document.of.reading.fault if document.of.reading else None
    answer = f"The newest look failed {out.ago(fault.at)} ago: {formatting.sanitize(fault.message)}" if fault else ""
    return _document(_named("Site", name), document, query, answer, "site")


class OwnerRow(NamedTuple):
    """Owner of a site: their jobs, and the drones that gave way to them."""

    site: sites.SiteRow
    giving_way: int
    """Live drones that were asked to leave for them."""

    @property
    def claims(self) -> Sequence[model.OwnerDemand]:
        return self.site.view.claims if self.site.view else ()

    @property
    def jobs(self) -> int:
        return sum(claim.count for claim in self.claims)

    @property
    def gpu_milli(self) -> int:
        return sum(claim.count * claim.gpu_milli for claim in self.claims)

    @property
    def since(self) -> float:
        return min((claim.since for claim in self.claims), default=0.0)


_gpu_hours = partial(out.number, unit=lambda gpu_s: charts.amount(gpu_s / 3600))
OWNER_COLUMNS = (
    out.ident("site", "Site.", "site.name", level=0),
    out.whole("jobs", "Jobs of the owner that wait there.", head="waiting"),
    out.gpus("gpu_milli", "GPUs that they want.", head="for GPUs"),
    out.age_s("waits_s", "Since the first was submitted.", "since", head="for"),
    out.whole("giving_way", "Drones that are leaving for them now.", head="giving way"),
    out.whole("running", "Jobs of the owner that run.", "site.view.owner_runs.jobs", null=True, head="running"),
    out.gpus("held", "GPUs that these hold.", "site.view.owner_runs.gpu_milli", null=True, head="on GPUs"),
    out.whole("taken_back", "Drones that gave way in 7 days.", "site.hazard.preempted", null=True, head="taken back"),
    out.whole("ran", "Drones that ran in 7 days.", "site.hazard.drones", null=True, head="of drones"),
    out.span_s("grace_s", "Mean time from notice to end.", "site.hazard.grace_mean_s", head="gave way in"),
    _gpu_hours("lost_gpu_s", "Work of jobs lost in 7 days.", "site.hazard.lost_gpu_s", null=True, head="GPU-h lost"),
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
    made = (
        page_table(out.Listing("", OWNER_COLUMNS, rows, title="Owners"), query, bars=("lost_gpu_s",)),
        page_table(out.Listing("", [site_column, *of_claim], claims, title="Their jobs that wait")),
        page_table(out.Listing("", notices, leaving, title="Drones that give way now")),
    )
    return WebPage("Owner", answer="The owner's jobs come first: drones leave when they wait.", tables=made)


# ------------------------------------------------------------------------------------------------------- use and waste

PERIODS: Mapping[str, tuple[float, float]] = {
    "1d": (86400.0, 1800.0),
    "7d": (7 * 86400.0, 3 * 3600.0),
    "30d": (30 * 86400.0, 86400.0),
}
"""Periods to choose from with the length of a bar in the chart, in seconds."""
_PERIOD_WORDS = {"1d": "last day", "7d": "last 7 days", "30d": "last 30 days"}


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
    held = f"{charts.amount(report.total_s / 3600)} GPU-hours of drones in the {_PERIOD_WORDS[period]}"
    used = f"jobs used {report.used_s / report.measured_s:.0%} of what they held" if report.measured_s else ""
    answer = f"{held}; {used or 'no run was measured'}."
    return replace(_document("Use", document, query, answer), choices=(periods, groupings))


WASTE_METRIC, LOST_METRIC = "provisioner_gpu_seconds_total", "provisioner_lost_gpu_seconds_total"
USES: Mapping[str, str] = {
    "good": "done work",
    "idle": "no job",
    "boot": "starting",
    "lost": "work cut short",
    "draining": "leaving",
}
"""Uses of GPU time, in the order of the chart, with their meaning."""


def _waste(reader: Reader, query: Query) -> WebPage:
    period, periods = _choices(query, "since", _PERIOD_WORDS, "1d")
    now = out.now()
    gpu_s, lost_s = (charts.Increases.read(reader, each, now, *PERIODS[period]) for each in (WASTE_METRIC, LOST_METRIC))
    lost, none = lost_s.by("site"), [0.0] * len(gpu_s.times)
    by_site: dict[str, dict[str, Sequence[float]]] = {}
    for (site, use), increases in sorted(gpu_s.by("site", "use").items()):
        by_site.setdefault(site, {})[use] = increases
    for site, uses in by_site.items():
        uses["good"], uses["lost"] = _good_and_lost(uses.pop("busy", none), lost.get((site,), none))
    used = {use: zip(none, *(uses.get(use, none) for uses in by_site.values()), strict=True) for use in USES}
    hours = {use: [sum(each) / 3600 for each in steps] for use, steps in used.items()}
    total = sum(map(sum, hours.values()))
    parts = ", ".join(f"{use} {sum(found) / total:.0%}" for use, found in hours.items()) if total else "none on record"
    rows = [SiteHours(site, {use: sum(steps) for use, steps in uses.items()}) for site, uses in by_site.items()]
    listing = out.Listing("", WASTE_COLUMNS, rows, title="GPU-hours by site")
    words = _PERIOD_WORDS[period]
    return WebPage(
        "Waste",
        answer=f"{charts.amount(total)} GPU-hours in the {words}: {parts}.",
        choices=(periods,),
        chart=charts.stacked_bars(f"GPU-hours in the {words}", hours, USES, gpu_s.times) if total else None,
        tables=(page_table(listing, query, bars=("total",)),),
    )


def _good_and_lost(busy: Sequence[float], lost: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the parts of the busy time, each by step. A loss counts at the end of its drone, after the busy time."""
    good, cut, due = [*busy], [0.0] * len(busy), 0.0
    for n in reversed(range(len(busy))):
        due += lost[n]
        cut[n] = min(due, busy[n])
        good[n] -= cut[n]
        due -= cut[n]
    return good, cut


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
    answer = f"On what was seen {out.ago(seen.now)} ago the next tick would do this: {plan.plan_summary(document.of)}."
    return _document("Plan", document, query, answer)


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
    return WebPage("Drones", choices=(links,), tables=(table,))


DRONE_NOT_SHOWN = ("remote_id", "site_slot", "slot")
"""Shown where ``columns`` names them."""

PAGES: Mapping[str, Callable[[Reader, Query], WebPage]] = {
    "": _now,
    "sites": _sites,
    "drones": _drones,
    "owner": _owner,
    "use": _use,
    "waste": _waste,
    "plan": _plan,
    "why": _why,
}
PAGES_OF_ONE: Mapping[str, Callable[[Reader, str, Query], WebPage]] = {"sites": _site, "drone": _drone, "job": _job}
