"""``provisioner accounting``: reports of the ledger by month, and the statement for the owner of a site."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Annotated

from provisioner import formatting
from provisioner.accounting.entries import SECONDS_A_DAY, Outcome
from provisioner.accounting.reports import (
    GPU_HOUR,
    RATE_DAYS,
    REPORT_GROUPINGS,
    AccountingReport,
    BudgetUse,
    accounting_report,
    budget_use,
)
from provisioner.accounting.verification import Finding
from provisioner.answers.columns import (
    Document,
    Listing,
    flag,
    ident,
    now,
    number,
    picked,
    rounded,
    text,
    time_at,
    whole,
    words,
)
from provisioner.answers.errors import Exit, parsed, unknown
from provisioner.answers.query import ListQuery, option, question
from provisioner.model import AccountingPolicy, GpuBudget
from provisioner.settings import WHOLE_GPU
from provisioner.store.reader import Reader
from provisioner.values import frozen

REPORT_SCHEMA = "provisioner.accounting-report/1"
STATEMENT_SCHEMA = "provisioner.accounting-statement/1"
EPOCH_DAY = date(1970, 1, 1).toordinal()


def day_of(each: date) -> int:
    """Return a day as the ledger counts them."""
    return each.toordinal() - EPOCH_DAY


def parse_month(month: str) -> tuple[int, int]:
    """Return the first day of ``2026-11`` and that of the next month. Raises ValueError."""
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month):
        raise ValueError("write a month as 2026-11")
    year, number = int(month[:4]), int(month[5:])
    after = date(year + number // 12, number % 12 + 1, 1)
    return day_of(date(year, number, 1)), day_of(after)


def this_month() -> str:
    return f"{datetime.fromtimestamp(now(), UTC):%Y-%m}"


def months_before(month: str, number: int) -> str:
    """Return the month so many before another one."""
    year, name = map(int, month.split("-"))
    found = year * 12 + name - 1 - number
    return f"{found // 12}-{found % 12 + 1:02}"


def _hours(amount: float) -> str:
    return formatting.number(round(amount / GPU_HOUR, 1))


def _to_gpu_s(amount: float) -> float:
    return round(amount / WHOLE_GPU, 3)


_gpu_s = partial(number, convert=_to_gpu_s, unit=_hours)
_plain = partial(number, null=True, convert=rounded, unit=lambda value: f"{value:,.1f}")
_part = partial(number, null=True, convert=rounded, unit="{:.0%}".format)
_kwh = partial(number, convert=rounded, unit=lambda joules: f"{joules / 3.6e6:,.1f}")
REPORT_COLUMNS = (
    ident("name", "VO, site, ... by `--by`; `none`: jobs without one.", head="OF", least=16),
    whole("runs", "Ended runs of jobs.", level=0),
    _gpu_s("held_gpu_s", "GPUs that they held, GPU-seconds.", "held", head="GPU-H"),
    _gpu_s(
        "lost_gpu_s",
        "Of those, held by runs that were preempted, stopped or evicted.",
        "lost",
        head="LOST",
    ),
    _gpu_s("used_gpu_s", "Of those, used.", "used", head="GPU-H USED", level=1),
    _part("mean", "Used part of what measured runs held; null: none was measured.", head="USE"),
    _kwh("energy_j", "Energy of runs that report it, joules; people get kWh.", head="KWH"),
    _kwh(
        "modelled_j",
        "Energy of the others by `power` of their types, joules; people get kWh.",
        head="KWH MODELLED",
        spare=2,
    ),
    _gpu_s(
        "energy_unknown_gpu_s",
        "GPU-seconds held whose energy is neither measured nor modelled.",
        "unknown",
    ),
    whole("cpu_s", "CPU time used, seconds."),
    _plain(
        "weighted",
        "GPU-hours times the benchmark of `policy.accounting.weight`; null: a type has no result.",
        head="WEIGHTED",
        spare=3,
    ),
    _plain("cost", "GPU-hours times `price` of the types.", head="COST", spare=4),
    _plain("pledge_h", "Pledged GPU-hours of the month; null: none.", head="PLEDGE", spare=1),
    _part("delivered", "Held part of the pledge; null: none.", head="DELIVERED", spare=1),
)
_period = (
    time_at("since_at", "Begin of the month.", "since"),
    time_at("until_at", "Its end.", "until"),
)
REPORT_FACTS = (
    *_period,
    flag("final", "All days have settled: no figure changes any more.", "is_final", head="final"),
    _gpu_s(
        "life_gpu_s",
        "GPU-seconds of all drones: the sum of the next five.",
        "life",
        head="GPU-h of drones",
    ),
    _gpu_s("jobs_gpu_s", "Held by ended runs.", "jobs", head="GPU-h of jobs"),
    _gpu_s("boot_gpu_s", "Before drones joined the pool.", "boot", head="GPU-h of starts"),
    _gpu_s(
        "draining_gpu_s", "Without a job, in drones that leave.", "draining", head="GPU-h draining"
    ),
    _gpu_s("idle_gpu_s", "Without an ended run.", "idle", head="GPU-h idle"),
    _gpu_s(
        "service_gpu_s",
        "Servers of inference services, ready for requests.",
        "service",
        head="GPU-h of services",
    ),
)
BUDGET_COLUMNS = (
    ident("site", "Site.", "budget.site"),
    text("since", "First day.", "budget.since", level=0),
    text("until", "Last day.", "budget.until", level=0),
    _plain("gpu_hours", "Granted GPU-hours.", "budget.gpu_hours", head="GRANTED"),
    _plain("used_h", "GPU-hours of drones in that time.", head="USED"),
    _plain("left_h", "GPU-hours that are left.", head="LEFT"),
    _plain("a_day_h", f"GPU-hours a day, mean of the last {RATE_DAYS} days.", head="A DAY"),
    _plain(
        "left_days",
        "Days until nothing is left at this rate; null: nothing is used.",
        head="DAYS LEFT",
    ),
)


def report_document(report: AccountingReport, scope: str = "") -> Document:
    listing = Listing(
        "", REPORT_COLUMNS, report.rows, lambda row: row.name, title="GPU-hours of jobs"
    )
    budgets = Listing(
        "", BUDGET_COLUMNS, report.budgets, lambda use: use.budget.site, title="Budgets"
    )
    return Document(
        REPORT_SCHEMA,
        REPORT_FACTS,
        report,
        {"items": listing, "budgets": budgets},
        main="items",
        scope=scope,
    )


_MONTH = option("YYYY-MM", "The month (UTC). Default: this one.")


class ReportQuery(ListQuery):
    """GPU-hours of a month."""

    month: Annotated[str, _MONTH] = ""
    by: Annotated[str, option("A,B", f"What a row is: {', '.join(REPORT_GROUPINGS)}.")] = "vo"


@question(
    "accounting report", "/accounting/report", lambda: [report_document(AccountingReport(0.0, 0.0))]
)
def report(reader: Reader, query: ReportQuery) -> Document:
    """Report the GPU-hours of a month: who held them, at which site, what they used and cost.

    The figures come from the ledger, in which drones are booked when they have ended, and each midnight. Those above
    the table are of all drones and add up. A month is final a week after its end.

    \b
    Examples:
      provisioner accounting report --by vo,site,type --month 2026-11
      provisioner accounting report --by site,outcome -o csv
    """
    by = [name.strip() for name in query.by.split(",")]
    for name in by:
        if name not in REPORT_GROUPINGS:
            raise unknown("grouping", name, [*REPORT_GROUPINGS], code=Exit.USAGE)
    month = query.month or this_month()
    days = parsed(parse_month, "--month", month)
    views = reader.views()
    policy = views.policy.accounting if views else AccountingPolicy()
    types = views.types if views else ()
    budgets = budget_uses(reader, policy)
    open_day = reader.ledger_open_day()
    sums = reader.ledger_sums(*days)
    made = accounting_report(sums, by, types, policy, days, open_day, budgets)
    document = report_document(made, f"{', '.join(by)} of {month}")
    listing = picked(document.parts["items"], query.sort, query.limit)
    return replace(document, parts={**document.parts, "items": listing})


def budget_uses(reader: Reader, policy: AccountingPolicy) -> list[BudgetUse]:
    """Return the use of each budget, as far as it is booked."""
    return [_budget_use(reader, each) for each in policy.budgets]


def _budget_use(reader: Reader, budget: GpuBudget) -> BudgetUse:
    first = day_of(date.fromisoformat(budget.since))
    end = day_of(date.fromisoformat(budget.until)) + 1
    today = int(now() // SECONDS_A_DAY)
    lately = reader.ledger_lives(budget.site, max(first, today - RATE_DAYS), min(end, today))
    return budget_use(budget, reader.ledger_lives(budget.site, first, end), lately)


WAIT_METRIC = "provisioner_owner_wait_seconds_total"


@frozen
class OwnerStatement:
    """Runs on the GPUs of a site in a month, and the wait of its owner for drones."""

    site: str
    report: AccountingReport
    preempted_runs: int = 0
    within_s: float = 0.0
    over_s: float = 0.0


_wait = partial(number, convert=rounded, unit=formatting.duration)
STATEMENT_FACTS = (
    text("site", "Site.", head="site"),
    time_at("since_at", "Begin of the month.", "report.since"),
    time_at("until_at", "Its end.", "report.until"),
    _gpu_s("life_gpu_s", "GPU-seconds of its drones.", "report.life", head="GPU-h of drones"),
    _gpu_s("jobs_gpu_s", "Of those, held by ended runs.", "report.jobs", head="GPU-h of jobs"),
    whole("preempted_runs", "Runs that ended for the owner.", head="runs that gave way"),
    _wait(
        "wait_within_s",
        "Time in which the owner waited for drones that were asked to leave, within the grace.",
        "within_s",
        head="owner waited, within the grace",
    ),
    _wait(
        "wait_over_s", "The same, after the grace.", "over_s", head="owner waited, after the grace"
    ),
)


def statement_document(made: OwnerStatement) -> Document:
    rows = made.report.rows
    listing = Listing("", REPORT_COLUMNS, rows, lambda row: row.name, title="What ran there")
    return Document(STATEMENT_SCHEMA, STATEMENT_FACTS, made, {"items": listing}, main="items")


class StatementQuery(ListQuery):
    """Runs on an owner's GPUs in a month."""

    owner: Annotated[str, option("SITE", "The site whose owner gets the statement.")] = ""
    month: Annotated[str, _MONTH] = ""


@question(
    "accounting statement",
    "/accounting/statement",
    lambda: [statement_document(OwnerStatement("", AccountingReport(0.0, 0.0)))],
)
def statement(reader: Reader, query: StatementQuery) -> Document:
    """Report what ran on the GPUs of a site in a month, and how long its owner waited because of drones.

    The wait is the time in which a drone was asked to leave for the owner and was still there. It is known for
    `store.series`, as hourly sums.

    \b
    Examples:
      provisioner accounting statement --owner topas --month 2026-11
    """
    days = parsed(parse_month, "--month", query.month or this_month())
    views = reader.views()
    sums = [each for each in reader.ledger_sums(*days) if each.site == query.owner]
    sites = views.policy.sites if views else {}
    if not sums and query.owner not in sites:
        raise unknown("site", query.owner, [*sites])
    policy = AccountingPolicy(weight=views.policy.accounting.weight if views else "")
    types = views.types if views else ()
    made = accounting_report(sums, ("vo",), types, policy, days, reader.ledger_open_day())
    waits = {"within": 0.0, "over": 0.0}
    for each in reader.series(
        WAIT_METRIC, days[0] * SECONDS_A_DAY, days[1] * SECONDS_A_DAY, 3600.0
    ):
        if each.labels.get("site") == query.owner:
            waits[each.labels["grace"]] += sum(value for _, value in each.points)
    preempted = sum(each.runs for each in sums if each.account == Outcome.PREEMPTED)
    made_statement = OwnerStatement(query.owner, made, preempted, waits["within"], waits["over"])
    return statement_document(made_statement)


def iso_day(day: int) -> str:
    """Return a day of the ledger as ``2026-11-07``."""
    return date.fromordinal(day + EPOCH_DAY).isoformat()


FINDINGS_SCHEMA = "provisioner.accounting-findings/1"
LEDGER_FINDING_COLUMNS = (
    text("kind", "What is wrong.", "kind.value", level=0, choices=tuple(Finding)),
    text("day", "Day (UTC).", lambda each: iso_day(each.day), level=0),
    ident("job_id", "Job; empty: none.", head="JOB"),
    ident("drone_id", "Drone; empty: none.", head="DRONE", spare=1),
    words("text", "What differs.", head="WHAT", least=20),
)

RUNS_SCHEMA = "provisioner.accounting-runs/1"
LEDGER_RUN_COLUMNS = (
    ident("job_id", "Job.", head="JOB"),
    ident("drone_id", "Drone.", head="DRONE", spare=3),
    text("site", "Site.", level=0),
    text("type", "Drone type.", level=0),
    text("gpu_model", "GPU model.", "model"),
    text("vo", "VO.", level=0),
    text("group", "Accounting group.", "accounting_group", level=1),
    text("user", "User.", "owner", level=1),
    text("outcome", "How it ended.", level=0),
    time_at("begun_at", "Begin.", level=1),
    time_at("ended_at", "End.", head="ENDED"),
    whole("gpu_milli", "Thousandths of GPUs held.", "milli"),
    _gpu_s("held_gpu_s", "GPU-seconds held.", "held", head="GPU-H"),
    whole("used_gpu_ms", "GPU-milliseconds used; null: not measured.", "used", null=True),
    whole("energy_j", "Energy, joules; null: not measured.", null=True),
    whole("cpu_s", "CPU time, seconds; null: not measured.", null=True),
    whole("memory_peak_mib", "Peak of memory; null: not measured.", "memory_mib", null=True),
)


class RunsQuery(ListQuery):
    """Runs that ended in a month."""

    month: Annotated[str, _MONTH] = ""


@question(
    "accounting runs", "/accounting/runs", lambda: [Listing(RUNS_SCHEMA, LEDGER_RUN_COLUMNS, [])]
)
def runs(reader: Reader, query: RunsQuery) -> Listing:
    """List the runs that ended in a month, as the ledger has them.

    Entries of single runs are kept for store.keep, at least 40 days.

    \b
    Examples:
      provisioner accounting runs --month 2026-11 -o csv > runs.csv
    """
    days = parsed(parse_month, "--month", query.month or this_month())
    found = reader.ledger_runs(*days)
    listing = Listing(RUNS_SCHEMA, LEDGER_RUN_COLUMNS, found, lambda run: run.job_id)
    return picked(listing, query.sort, query.limit)
