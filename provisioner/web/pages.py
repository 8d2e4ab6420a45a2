"""Web pages: the answers of the command line as HTML that needs no script.

To add a page, write a function that returns a :class:`WebPage` and name it in :data:`PAGES`, or in
:data:`PAGES_OF_ONE` if its address ends in a name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from provisioner import __version__, formatting, model, reasons, svg
from provisioner.accounting.entries import SECONDS_A_DAY
from provisioner.accounting.reports import GPU_HOUR, REPORT_GROUPINGS
from provisioner.answers import (
    accounting,
    demand,
    drones,
    explain,
    plan,
    services,
    sites,
    usage,
)
from provisioner.answers.columns import (
    Column,
    Document,
    Listing,
    data,
    ident,
    now,
    number,
    text,
    whole,
    words,
)
from provisioner.answers.errors import Exit, parsed, unknown
from provisioner.answers.lookup import as_of, newest_plan, things_of_id
from provisioner.answers.query import Format, RecordQuestion
from provisioner.answers.status import MAX_SHOWN, status
from provisioner.descriptions import SHORTEST_CLASS_ID
from provisioner.durations import parse_duration
from provisioner.keys import site_of, type_name
from provisioner.model import Drone, DroneState, TypeKey
from provisioner.reasons import Reason
from provisioner.store.measures import MOST_VOS
from provisioner.store.reader import Reader
from provisioner.svg import Layer
from provisioner.values import factory, frozen
from provisioner.web import charts, tables
from provisioner.web.api import read_request
from provisioner.web.charts import PageCharts
from provisioner.web.tables import PageCell, PageHead, PageTable, page_table

Query = Mapping[str, str]
"""Parameters of an address."""


class Choice(NamedTuple):
    """Link to the same page with another value of a parameter."""

    text: str
    href: str
    chosen: bool = False


@frozen
class WebPage:
    """Page of the service, in the order in which it is shown."""

    title: str
    lines: Sequence[str] = ()
    """The page in a sentence, for those who read no further, and what else there is to say."""
    choices: Sequence[Sequence[Choice]] = ()
    troubles: PageTable | None = None
    facts: Sequence[tuple[PageHead, PageCell]] = ()
    fact_groups: Mapping[str, Sequence[tuple[PageHead, PageCell]]] = factory(dict)
    """Facts by heading."""
    charts: PageCharts | None = None
    tables: Sequence[PageTable] = ()
    life: PageTable | None = None
    """The states of a drone in their order."""
    output: str = ""
    """Lines of a program, as it wrote them."""
    verdict: str = ""
    """The worst severity of a page that renews itself; empty: it does not."""


def render(path: str, reader: Reader, query: Query) -> str:
    """Return the HTML of the page at ``path``, which is decoded, as of now.

    Raises :class:`VerbError` for a page, site, drone, job or parameter that does not exist,
    ``StoreError`` if the record cannot be read.
    """
    head, _, name = path.strip("/").partition("/")
    if name and head in PAGES_OF_ONE:
        page = PAGES_OF_ONE[head](reader, name, query)
    elif not name and head in PAGES:
        page = PAGES[head](reader, query)
    else:
        raise unknown("page", path, [f"/{known}" for known in PAGES])
    asked = formatting.sanitize(query.get("q", ""), formatting.SHORT_TEXT)
    return _html(page, head, asked, as_of(reader, reader.views()))


def render_error(title: str, lines: Sequence[str]) -> str:
    """Return the HTML of a page that cannot be shown: a title, and why."""
    return _html(WebPage(title, lines))


def _html(page: WebPage, here: str | None = None, asked: str = "", as_of: str = "") -> str:
    menu = [path for path in PAGES if path != "why"]
    return _template().render(
        page=page, here=here, menu=menu, asked=asked, as_of=as_of, version=__version__
    )


@cache
def _template() -> Template:
    loader = PackageLoader("provisioner.web")
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"bar": lambda parts: Markup(svg.bar(parts)), "sentence": tables.sentence}
    return made.get_template("page.html")


def _answer(
    question: RecordQuestion,
    reader: Reader,
    query: Query,
    subject: str | None = None,
    limit: str | None = None,
) -> Any:
    """Return the answer to the parameters of a page, of which commas separate several values."""
    given = {
        key: value.split(",") for key, value in query.items() if key not in tables.TABLE_PARAMETERS
    }
    if limit is not None:
        given["limit"] = [str(parsed(tables.row_limit, "limit", limit))]
    return question(reader, read_request(question, subject, given)[0])


def _document(title: str, document: Document, query: Query, *lines: str) -> WebPage:
    """Return the page of a document: facts, then its parts; the parameters sort the main one."""
    parts = [
        page_table(part, query if key == document.main else None)
        for key, part in document.parts.items()
        if part.title
    ]
    # the title has them
    others = [fact for fact in document.facts if fact.key not in ("id", "name", "site")]
    return WebPage(title, lines, facts=tables.facts(replace(document, facts=others)), tables=parts)


def _shown(columns: Iterable[Column], *keys: str, **heads: str) -> list[Column]:
    """Return the columns, of which people see those with these keys, some with headings of their own."""
    seen = (*keys, *heads)
    return [
        replace(c, level=0 if c.key in seen else 2, head=heads.get(c.key) or c.head or c.fact)
        for c in columns
    ]


def _named(kind: str, name: str) -> str:
    return f"{kind} {formatting.sanitize(name, 80)}"


# -----------------------------------------------------------------------------------------------------------------
# now

STATE_GROUPS: Mapping[str, Sequence[DroneState]] = {
    "starting": model.ON_THE_WAY,
    "running": (DroneState.BUSY,),
    "idle": (DroneState.IDLE,),
    "draining": (DroneState.DRAINING, DroneState.STOPPING),
}


CHART_USES = {
    "running": "with jobs",
    "idle": "no job",
    "starting": "drones that boot",
    "draining": "drones that leave",
    "waiting": "drones in the site's queue",
}
"""Uses of the GPUs in a chart, with their meaning."""
USE_OF_STATE: Mapping[str, str] = {
    DroneState.BUSY: "running",
    DroneState.BOOTING: "starting",
    DroneState.JOINED: "starting",
    DroneState.STOPPING: "draining",
    **dict.fromkeys(model.WAITING, "waiting"),
}
"""The use where it is not the state itself."""
NEVER_STARTS = (reasons.Category.CONFIGURATION, reasons.Category.NOTHING_FITS)
"""Jobs that wait for such reasons are no demand that a drone could serve."""
YOUNG_S = 7200.0
"""A chart of a record that is not older has its minutes."""


def _gpu_charts(reader: Reader, *labels: str) -> PageCharts | None:
    """Return the chart of the last day, or those by site with the label ``site``; None if nothing is on record."""
    span_s = 86400.0
    step_s = 600.0
    gpus = charts.TimeSteps(reader, "provisioner_gpus", now(), span_s, step_s)
    if gpus.first_at > now() - YOUNG_S:
        span_s = YOUNG_S
        step_s = 60.0
        gpus = charts.TimeSteps(reader, "provisioner_gpus", now(), span_s, step_s)
    found = gpus.by(*labels, "state", groups=USE_OF_STATE)
    meanings = CHART_USES
    none = [0.0] * len(gpus.times)
    if not labels:
        wanted = charts.TimeSteps(reader, "provisioner_gpus_wanted", now(), span_s, step_s)
        found.pop(("waiting",), None)
        if by_category := wanted.by("category"):
            able = [v for (category,), v in by_category.items() if category not in NEVER_STARTS]
            found["waiting",] = [sum(step) for step in zip(none, *able, strict=True)]
        meanings = {**CHART_USES, "waiting": "GPUs for waiting jobs that fit a drone type"}
    places = {
        ", ".join(place): [
            Layer(use, use, found.get((*place, use), none), meaning, use == "waiting")
            for use, meaning in meanings.items()
        ]
        for place in sorted({key[:-1] for key in found})
    }
    title = f"GPUs in the last {span_s / charts.HOUR_S:.0f} hours"
    return PageCharts.of(title, "GPUs", gpus.times, places) if places else None


_DEMAND_SHOWN = ("id", "vo", "waiting", "running", "drones", "oldest_s", "why")


def _now(reader: Reader, query: Query) -> WebPage:
    rest = {key: value for key, value in query.items() if key != "vo"}
    document = _answer(status, reader, {**rest, "output": "table"})
    troubles = document.parts["troubles"]
    vo, choices = _vos(document.of.waiting, query)
    waiting = _waiting_of_vo(reader, vo) if vo else document.parts["demand"]
    verdict = document.scope.partition(": ")[0] if troubles.rows else "All is well"
    parts = {key: document.parts[key] for key in ("views", "events")}
    page = _document(verdict, replace(document, parts=parts), query)
    return replace(
        page,
        choices=choices,
        troubles=page_table(troubles) if troubles.rows else None,
        charts=_gpu_charts(reader),
        tables=[
            _types_now(reader, document.parts["sites"]),
            _by_reason(waiting),
            *page.tables,
        ],
        verdict=troubles.rows[0].severity if troubles.rows else "well",
    )


def _vos(waiting: Iterable[model.JobClass], query: Query) -> tuple[str, list[list[Choice]]]:
    """Return the chosen VO, and links to those with most waiting jobs; without VOs no link."""
    jobs = Counter[str]()
    for each in waiting:
        jobs[each.vo] += each.idle
    asked = query.get("vo", "")
    known = [vo for vo, _ in jobs.most_common(MOST_VOS) if vo]
    words = {vo: _named("VO", vo) for vo in (*known, asked) if vo}
    vo, links = _choices(query, "vo", {"": "all VOs", **words}, "")
    return vo, [links] if words else []


def _waiting_of_vo(reader: Reader, vo: str) -> Any:
    asked = demand.DemandQuery(
        vo=vo, waiting=True, sort="-waiting", limit=MAX_SHOWN, output=Format.TABLE
    )
    found: Any = demand.demand(reader, asked)
    return replace(found, title=f"Waiting jobs of {_named('VO', vo)}")


def _by_reason(waiting: Listing) -> PageTable:
    """Return the classes of a list under the main reasons for their waits, each of which is said once."""
    shows: Mapping[str, Callable[[demand.ClassRow], str]] = {
        "id": lambda row: row.name.rpartition(" (")[0],
        "why": lambda row: row.reasons[0].describe() if row.reasons else demand.why_waiting(row),
    }
    columns = [
        replace(c, show=shows.get(c.key, c.show), tail=False)
        for c in _shown(waiting.columns, *_DEMAND_SHOWN)
    ]
    made = tables.grouped(page_table(replace(waiting, columns=columns)))
    reasons_said = formatting.count(len(made.groups), "reason")
    return made._replace(title=f"{made.title}, for {reasons_said}") if made.groups else made


SITE_SHOWN = ("site", "enabled", "breaker", "drones", "max_drones", "owner", "view_age_s")


def _types_now(reader: Reader, of_sites: Listing) -> PageTable:
    """Return the drone types under their sites, those that are configured and those that still have drones."""
    live = Counter({(each.type, each.state): each.drones for each in reader.live_counts()})
    views = reader.views()
    newest = newest_plan(reader)
    configured = {kind.key: kind for kind in views.types} if views else {}
    by_name: dict[str, sites.SiteRow] = {row.name: row for row in of_sites.rows}
    known = {*configured, *(kind for kind, _ in live)}
    row_of = {key: by_name[site_of(key)] for key in sorted(known) if site_of(key) in by_name}
    at = _refused_at(newest)
    refused = {key: _refused(at, row, key) for key, row in row_of.items()}

    def free(key: TypeKey) -> str:
        places = _free_places(row_of[key], configured[key]) if key in configured else None
        return "?" if places is None else str(places)

    def counts(key: TypeKey) -> dict[str, int]:
        return {
            group: sum(live[key, state] for state in states)
            for group, states in STATE_GROUPS.items()
        }

    def in_group(group: str) -> Column:
        return whole(group, f"Drones that are {group}.", lambda key: counts(key)[group])

    columns = (
        ident("type", "Drone type.", str, show=type_name),
        whole("free", "Number of drones that could start now.", free),
        *map(in_group, STATE_GROUPS),
        data("share", "Share of the drones in each state.", counts),
        whole(
            "refused",
            "Waiting jobs for which the newest plan starts no drone of this type.",
            lambda key: refused[key][0],
        ),
        words("why", "Reason of most of them.", lambda key: refused[key][1]),
    )
    shown = [replace(column, level=0) for column in columns]
    made = page_table(Listing("", shown, list(row_of), title="Drones by site and type"))
    keyed = [
        h._replace(kind=f"amount key {h.text.lower()}") if h.text.lower() in STATE_GROUPS else h
        for h in made.heads
    ]
    of_site = [replace(column, spare=0) for column in _shown(of_sites.columns, *SITE_SHOWN)]
    about = dict(zip(by_name, page_table(replace(of_sites, columns=of_site)).rows, strict=True))
    first = {row.name: n for n, row in reversed([*enumerate(row_of.values())])}
    return made._replace(heads=keyed, groups={n: about[site] for site, n in first.items()})


def _free_places(row: sites.SiteRow, kind: model.DroneType) -> int | None:
    """Return how many drones of a type could start at a site by its newest view."""
    from provisioner.planner.owner import FreeResources

    if row.view is not None and row.view.nodes:
        blocking = row.policy.blocking if row.policy else ()
        return FreeResources.of(row.view.nodes, blocking).count(kind)
    return (
        row.view.free.get(kind.name, 0)
        if row.view is not None and row.view.free is not None
        else None
    )


def _refused_at(newest: model.Plan | None) -> Mapping[str, Mapping[Reason, int]]:
    """Return the refused jobs by the drone type or site that a reason names, and by the reason."""
    found = defaultdict[str, Counter[Reason]](Counter)
    for refusal in newest.refusals if newest else ():
        names = ("type", "scope", "site", "nearest", "view")
        for place in {getattr(refusal.reason, name, "") for name in names}:
            found[place][refusal.reason] += refusal.count
    return found


def _refused(
    at: Mapping[str, Mapping[Reason, int]], row: sites.SiteRow, key: TypeKey
) -> tuple[int, str]:
    """Return the jobs that the newest plan refuses for a type or its site, and the reason of most of them."""
    known: dict[Reason, int] = {}
    for place in (key, row.name, f"site:{row.name}"):
        known |= at.get(place, {})
    by_reason: Counter[str] = Counter()
    for reason, count in known.items():
        by_reason[reason.describe()] += count
    if by_reason:
        return by_reason.total(), by_reason.most_common(1)[0][0]
    breakers = [b for b in (row.breaker, *row.type_breakers) if str(b.scope) in (row.name, key)]
    troubled = next((b for b in breakers if b.state is not model.BreakerState.ACTIVE), None)
    return 0, plan.breaker_words(troubled) if troubled else ""


# -----------------------------------------------------------------------------------------------------------------
# why

WHY_HELP = (
    "Why does a job wait? Why is a drone in its state, and what happens next?",
    "Write its id into the box at the top: a job (204.17, schedd#204.17), a drone (its id, number, id at the site "
    "or slot), a job class, or a site.",
)


def _why(reader: Reader, query: Query) -> WebPage:
    """Return the answer for an id of any kind, or the ones to choose from."""
    asked = query.get("q", "").strip()
    if not asked:
        return WebPage("Why", WHY_HELP)

    def page_of(kind: str) -> Callable[[str], WebPage]:
        return lambda any_id: PAGES_OF_ONE[kind](reader, any_id, {})

    found, lines = things_of_id(asked, {kind: page_of(kind) for kind in FINDERS})
    if len(found) == 1:
        return next(iter(found.values()))
    links = [Choice(page.title, tables.address(f"/{kind}/", asked)) for kind, page in found.items()]
    told = ["This is the id of more than one thing."] if found else [*lines, WHY_HELP[1]]
    return WebPage(_named("Why:", asked), told, [links])


DRONE_PLACE = ("type", "for_class", "job_filter", "node", "site_slot", "remote_id", "slot")
DRONE_VERDICTS = {"red": "critical", "yellow": "warning", "green": "well"}


def _drone(reader: Reader, any_id: str, query: Query) -> WebPage:
    """Return the page of a drone: its state and what is wrong, then facts, life and last output."""
    document = _answer(drones.show_drone, reader, {}, any_id)
    drone: Drone = document.of
    life = document.parts["history"]
    output = "\n".join(map(formatting.sanitize, document.parts["console_output"].rows))
    groups: dict[str, list[Column]] = {"State and work": [], "Place": [], "Times": []}
    facts = {fact.key: fact for fact in document.facts if fact.key != "id"}
    (state,) = facts.pop("state").texts([drone])
    for fact in facts.values():
        kind = "Times" if fact.key.endswith("_at") else "State and work"
        groups["Place" if fact.key in DRONE_PLACE else kind].append(fact)
    why = drones.drone_note(drone)
    if drone.state.ended and life.rows:
        why = life.rows[-1].transition.reason.describe()
    links = [Choice(f"job {job}", tables.address("/job/", job)) for job in _jobs_in(reader, drone)]
    links += [Choice("last output", "#output")] if output else []
    shown = {name: tables.facts(replace(document, facts=each)) for name, each in groups.items()}
    return WebPage(
        f"Drone {document.name}",
        [*filter(None, (state, why))],
        [links] if links else (),
        fact_groups={name: found for name, found in shown.items() if found},
        life=page_table(life),
        output=output,
        verdict=DRONE_VERDICTS.get(drones.STATE_TINTS.get(drone.state, ""), "note"),
    )


def _jobs_in(reader: Reader, drone: Drone) -> list[str]:
    """Return the ids of the jobs that run in a drone."""
    if not drone.jobs or drone.state.ended:
        return []
    of_drone = (slot.job_ids for slot in reader.slots() if slot.drone_id == drone.id)
    return [job for ids in of_drone for job in ids.split(",") if explain.parse_job_id(job)]


def _class(reader: Reader, class_id: str, query: Query) -> WebPage:
    document = _answer(explain.explain_class, reader, {}, class_id)
    why = document.scope.removeprefix(f"class {document.name}").removeprefix(": ")
    return _document(f"Class {document.name}", document, query, why)


def _job(reader: Reader, job_id: str, query: Query) -> WebPage:
    """Return the page of one job for its user: it has nothing on other users."""
    document = _answer(explain.explain_job, reader, {}, job_id)
    title = _named("Job", job_id)
    public = replace(
        document, facts=[fact for fact in document.facts if fact.key in JOB_FACTS_SHOWN]
    )
    if document.schema != explain.CLASS_SCHEMA:
        return _document(
            f"{title} {JOB_STATES[document.of.state]}", public, query, document.of.said
        )
    said = [_public(reason) for reason in document.parts["said"].rows]
    advice = [
        replace(each, why=each.why and _public(each.why)) for each in document.parts["advice"].rows
    ]
    parts = {
        "advice": replace(document.parts["advice"], rows=advice),
        "said": replace(document.parts["said"], rows=said),
        "types": document.parts["types"],
    }
    first = said[0].describe() if said else demand.NO_PLAN_YET
    return _document(f"{title} waits", replace(public, parts=parts), query, first)


def _public(reason: Reason) -> Reason:
    """Return a reason without names of operators and other users, the words of a site and those of an error of ours."""
    if isinstance(reason, reasons.NodeReserved):
        return replace(reason, class_name=reason.class_id[:SHORTEST_CLASS_ID])
    if isinstance(reason, reasons.SiteDisabled) and reason.by:
        return replace(reason, by="an operator")
    if isinstance(reason, reasons.PlannerFailed):
        return replace(reason, error="")
    return replace(reason, message="") if isinstance(reason, WITH_WORDS_OF_SITES) else reason


WITH_WORDS_OF_SITES = (
    reasons.BackingOff,
    reasons.StartsUnmatched,
    reasons.ExclusiveOnly,
    reasons.StartBlocked,
    reasons.StaleView,
)
JOB_FACTS_SHOWN = ("drone", "needs", "waiting", "running", "drones")
JOB_STATES = {"running": "runs", "held": "is held", "done": "is done"}
FINDERS = ("drone", "job", "class", "sites", "services")
"""Kinds of ids, in the order in which they are looked for."""


# -----------------------------------------------------------------------------------------------
# sites and their owners

OWNER_SHOWN = {
    "site": "site",
    "claims": "waiting jobs",
    "claims_gpu_milli": "GPUs wanted",
    "owner_jobs": "running jobs",
    "owner_gpu_milli": "GPUs held",
}
"""Columns with their headings."""
GIVING_WAY_SHOWN = ("id", "type", "state", "node", "notice_at", "grace_used_s", "at_risk_gpu_s")


def _sites(reader: Reader, query: Query) -> WebPage:
    listing = replace(_answer(sites.sites, reader, query), title="All sites")
    of_sites = _gpu_charts(reader, "site")
    return WebPage("Sites", charts=of_sites, tables=[page_table(listing, query)])


def _site(reader: Reader, name: str, query: Query) -> WebPage:
    page = _document(_named("Site", name), _answer(sites.show_site, reader, query, name), query)
    of_sites = _gpu_charts(reader, "site")
    if of_sites is None or name not in of_sites.charts:
        return page
    return replace(page, charts=of_sites._replace(charts={"": of_sites.charts[name]}))


def _owner(reader: Reader, query: Query) -> WebPage:
    listing = _answer(sites.sites, reader, query)
    owned = [row for row in listing.rows if row.view and (row.view.owner_runs or row.view.claims)]
    columns = _shown(listing.columns, **OWNER_SHOWN)
    owners = replace(listing, columns=columns, rows=owned, title="Sites with an owner's jobs")
    hazards = [each for each in reader.hazards(now() - sites.WEEK_S, now()) if each.preempted]
    claims = [
        (row.name, claim) for row in listing.rows for claim in (row.view.claims if row.view else ())
    ]
    site_column = text("site", "Site.", lambda pair: pair[0], level=0)
    of_claim = [replace(c, of=lambda pair, of=c.of: of(pair[1])) for c in sites.CLAIM_COLUMNS]
    leaving = reader.drones(having="notice_at")
    made = (
        page_table(owners, query),
        page_table(
            Listing("", [site_column, *of_claim], claims, title="Waiting jobs of the owner")
        ),
        page_table(
            Listing(
                "",
                _shown(drones.DRONE_COLUMNS, *GIVING_WAY_SHOWN),
                leaving,
                title="Drones that leave for the owner",
            )
        ),
        page_table(
            Listing("", sites.HAZARD_COLUMNS, hazards, title="Preempted in the last 7 days")
        ),
    )
    return WebPage(
        "Owner", ["The owner's jobs come first: drones leave when these jobs wait."], tables=made
    )


# -------------------------------------------------------------------------------------------------------
# inference services


def _services(reader: Reader, query: Query) -> WebPage:
    listing = replace(_answer(services.services, reader, query), title="Inference services")
    return WebPage("Services", [listing.scope], tables=[page_table(listing, query)])


def _service(reader: Reader, name: str, query: Query) -> WebPage:
    document = _answer(services.explain_service, reader, query, name)
    return _document(_named("Service", name), document, query, document.of.why)


# -------------------------------------------------------------------------------------------------------
# use and waste

PERIODS = {"1d": "last day", "7d": "last 7 days", "30d": "last 30 days"}
BAR_S = {"1d": 1800.0, "7d": 3 * 3600.0, "30d": 86400.0}
"""Length of a bar in the chart of a period, in seconds."""
USE_SHOWN = (
    *("name", "jobs", "held_gpu_s", "vram_p95_mib", "vram_asked_mib", "cpu_efficiency"),
    *("memory_peak_mib", "memory_asked_mib", "fits", "saved_gpu_s"),
)
USE_HEADS = {"mean": "mean use", "use_p95": "95% of runs below"}


def _choices(
    query: Query, key: str, words: Mapping[str, str], usual: str
) -> tuple[str, list[Choice]]:
    """Return the value of a parameter that has few, and links to all. Raises :class:`VerbError` for another value."""
    given = query.get(key, usual)
    if given not in words:
        raise unknown(key, given, list(words), code=Exit.USAGE)
    links = [
        Choice(text, f"?{urlencode({**query, key: value})}", value == given)
        for value, text in words.items()
    ]
    return given, links


def _use(reader: Reader, query: Query) -> WebPage:
    period, periods = _choices(query, "since", PERIODS, "7d")
    by, groupings = _choices(
        query,
        "by",
        {str(each): f"by {'VO' if each == 'vo' else each}" for each in usage.Grouping},
        "class",
    )
    limit = "100" if by == usage.Grouping.DRONE else None
    document = _answer(usage.usage, reader, {**query, "since": period, "by": by}, limit=limit)
    items = document.parts["items"]
    report = document.of
    document = replace(
        document,
        parts={"items": replace(items, columns=_shown(items.columns, *USE_SHOWN, **USE_HEADS))},
    )
    held = f"{svg.amount(report.total_s / 3600)} GPU-hours of drones in the {PERIODS[period]}"
    used = (
        f"jobs used {report.used_s / report.measured_s:.0%} of what they held"
        if report.measured_s
        else ""
    )
    page = _document("Use", document, query, f"{held}; {used or 'no run was measured'}.")
    return replace(page, choices=(periods, groupings))


WASTE_METRIC = "provisioner_gpu_seconds_total"
LOST_METRIC = "provisioner_lost_gpu_seconds_total"
USES: Mapping[str, str] = {
    "good": "done work",
    "service": "inference services",
    "idle": "no job",
    "boot": "starting",
    "lost": "work cut short",
    "draining": "leaving",
}
"""Uses of GPU time, in the order of the chart, with their meaning."""


def _waste(reader: Reader, query: Query) -> WebPage:
    period, periods = _choices(query, "since", PERIODS, "1d")
    until = now()
    gpu_s, lost_s = (
        charts.TimeSteps(reader, metric, until, parse_duration(period), BAR_S[period])
        for metric in (WASTE_METRIC, LOST_METRIC)
    )
    found = gpu_s.by("site", "use")
    lost = lost_s.by("site")
    none = [0.0] * len(gpu_s.times)
    for site in {site for site, _ in found}:
        good_and_lost = _good_and_lost(found.pop((site, "busy"), none), lost.get((site,), none))
        found[site, "good"], found[site, "lost"] = good_and_lost
    steps = {
        use: zip(none, *(each for key, each in found.items() if key[1] == use), strict=True)
        for use in USES
    }
    hours = [
        Layer(use, f"use-{use}", [sum(each) / 3600 for each in of_use], USES[use])
        for use, of_use in steps.items()
    ]
    total = sum(sum(each.values) for each in hours)
    parts = (
        ", ".join(f"{each.name} {sum(each.values) / total:.0%}" for each in hours)
        if total
        else "none on record"
    )
    words = PERIODS[period]
    title = f"GPU-hours in the {words}"
    unit = f"GPU-hours per {formatting.duration(BAR_S[period])}"
    begun = max(60.0, until - gpu_s.times[-1]) / BAR_S[period]  # else it looks like a collapse
    drawn = [each._replace(values=[*each.values[:-1], each.values[-1] / begun]) for each in hours]
    chart = PageCharts.of(title, unit, gpu_s.times, {"": drawn})
    chart = chart._replace(table=charts.figures(title, hours, gpu_s.times))
    return WebPage(
        "Waste",
        [f"{svg.amount(total)} GPU-hours in the {words}: {parts}."],
        (periods,),
        charts=chart if total else None,
        tables=[page_table(_hours_by_site(found), query)],
    )


def _good_and_lost(busy: Sequence[float], lost: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the parts of the busy time, each by step. A loss counts at the end of its drone, after the busy time."""
    good = [*busy]
    cut = [0.0] * len(busy)
    due = 0.0
    for n in reversed(range(len(busy))):
        due += lost[n]
        cut[n] = min(due, busy[n])
        good[n] -= cut[n]
        due -= cut[n]
    return good, cut


def _hours_by_site(gpu_s: Mapping[tuple[str, ...], Sequence[float]]) -> Listing:
    """Return a row for each site of the increases by site and use."""

    def hours(key: str, doc: str, *uses: str) -> Column:
        def found(site: str) -> float:
            return sum(sum(gpu_s.get((site, use), ())) for use in uses)

        return number(key, doc, found, level=0, unit=lambda gpu_s: svg.amount(gpu_s / 3600))

    columns = (
        ident("site", "Site.", str),
        hours("total", "GPU-hours that drones held.", *USES),
        *(hours(use, f"GPU-hours: {words}.", use) for use, words in USES.items()),
    )
    return Listing("", columns, sorted({site for site, _ in gpu_s}), title="GPU-hours by site")


MONTHS_SHOWN = 6
LEDGER_USES = {
    "completed": "good",
    "failed": "good",
    "preempted": "lost",
    "stopped": "lost",
    "evicted": "lost",
    "boot": "boot",
    "draining": "draining",
    "idle": "idle",
    "service": "service",
}
"""Uses of the chart by account of the ledger."""


def _accounting(reader: Reader, query: Query) -> WebPage:
    newest = accounting.this_month()
    months = [accounting.months_before(newest, n) for n in range(MONTHS_SHOWN)]
    month, links = _choices(query, "month", dict(zip(months, months, strict=True)), newest)
    words = {name: f"by {'VO' if name == 'vo' else name}" for name in REPORT_GROUPINGS}
    by, groupings = _choices(query, "by", words, "vo")
    document = _answer(accounting.report, reader, {**query, "month": month, "by": by})
    report = document.of
    hours = svg.amount(report.life / GPU_HOUR)
    final = "final" if report.is_final else "not final"
    page = _document("Accounting", document, query, f"{hours} GPU-hours in {month}, {final}.")
    chart = _ledger_chart(reader, month) if report.life else None
    return replace(page, choices=(links, groupings), charts=chart)


def _ledger_chart(reader: Reader, month: str) -> PageCharts:
    """Return a chart of the GPU-hours of each day of a month by use."""
    first, end = accounting.parse_month(month)
    hours = {use: [0.0] * (end - first) for use in USES}
    for day, account, amount in reader.ledger_days(first, end):
        if account in LEDGER_USES:
            hours[LEDGER_USES[account]][day - first] += max(0, amount) / GPU_HOUR
    layers = [Layer(use, f"use-{use}", hours[use], USES[use]) for use in USES]
    times = [float(day * SECONDS_A_DAY) for day in range(first, end)]
    title = f"GPU-hours in {month}"
    chart = PageCharts.of(title, "GPU-hours per day", times, {"": layers})
    return chart._replace(table=charts.figures(title, layers, times))


# ----------------------------------------------------------------------------------------------------------------
# lists


def _plan(reader: Reader, query: Query) -> WebPage:
    given = {key: value for key, value in query.items() if key != "only"}
    document = _answer(plan.plan, reader, given)
    items = document.parts["items"]
    counts = Counter(row.kind for row in items.rows)
    words = {kind: f"{kind} ({n})" for kind, n in counts.most_common()}
    only, links = _choices(query, "only", {"": f"all ({len(items.rows)})", **words}, "")
    rows = [row for row in items.rows if only in ("", row.kind)]
    # those of 10,000 classes would be 8 MB
    table = page_table(replace(items, rows=rows), {"limit": "200", **query})
    lead = f"Next tick: {plan.plan_summary(document.of)}."
    return WebPage("Plan", [lead], [links], tables=[table])


def _drones(reader: Reader, query: Query) -> WebPage:
    shown, links = _choices(query, "show", {"live": "live", "ended": "ended", "all": "all"}, "live")
    filters = {
        key: value for key, value in query.items() if key not in ("show", *tables.TABLE_PARAMETERS)
    }
    asked = filters if shown == "live" else {**filters, shown: "true"}
    page = {"limit": "500", **query}
    listing = _answer(
        drones.drones, reader, asked, limit=None if "sort" in query else page["limit"]
    )
    columns = [replace(c, level=2) if c.key in DRONE_NOT_SHOWN else c for c in listing.columns]
    only = [f"{key}: {', '.join(value.split(','))}" for key, value in filters.items()]
    title = "; ".join(
        [formatting.count(listing.total or 0, "drone"), *map(formatting.sanitize, only)]
    )
    table = page_table(replace(listing, title=title, columns=columns), page)
    return WebPage("Drones", choices=[links], tables=[table])


DRONE_NOT_SHOWN = ("remote_id", "site_slot", "slot")
"""Shown where ``columns`` names them."""

PAGES: Mapping[str, Callable[[Reader, Query], WebPage]] = {
    "": _now,
    "sites": _sites,
    "drones": _drones,
    "services": _services,
    "owner": _owner,
    "use": _use,
    "waste": _waste,
    "accounting": _accounting,
    "plan": _plan,
    "why": _why,
}
PAGES_OF_ONE: Mapping[str, Callable[[Reader, str, Query], WebPage]] = {
    "sites": _site,
    "drone": _drone,
    "job": _job,
    "class": _class,
    "services": _service,
}
