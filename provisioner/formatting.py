"""Words at the edge: one English line per reason with its numbers, words for states, times, ages and sizes.

A line depends on the reason alone. Times are ISO-8601 in UTC (but see :func:`local_times`), ages
short (``3d4h``). Text that comes from a site or the pool is untrusted and passes :func:`sanitize`:
no control sequence reaches a terminal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from datetime import UTC, datetime
from enum import StrEnum
from itertools import groupby
from math import isfinite
from string import Formatter
from typing import Any
from urllib.parse import unquote

from provisioner import reasons as r
from provisioner.model import BreakerState, Credential, DrainMode, DroneState
from provisioner.reasons import EXIT_WORDS, Reason, RequestAdvice, StartForecast, StartOutcome

SHORT_TEXT = 200
"""Longest piece of foreign text inside a line; JSON keeps the whole."""


class Category(StrEnum):
    """Category of a reason: first those that need a person, then those that only take time."""

    CONFIGURATION = "configuration"
    NOTHING_FITS = "nothing-fits"
    LIMIT = "limit"
    BACK_OFF = "back-off"
    START = "start"
    WAITING_SITE = "waiting-site"
    WAITING_NEGOTIATION = "waiting-negotiation"
    LEAVE = "leave"
    STEP = "step"
    """A fact about a drone."""


_local: ContextVar[bool] = ContextVar("local", default=False)


@contextmanager
def local_times(wanted: bool) -> Iterator[None]:
    """Have :func:`iso` write times of the local zone (TZ), with their offset, instead of UTC, if ``wanted``."""
    before = _local.set(wanted)
    try:
        yield
    finally:
        _local.reset(before)


def iso(at: float) -> str:
    """Return ``2026-01-31T12:00:00Z``; ``-`` for 0 (never) and for what is no time at all."""
    if not at:
        return "-"
    try:
        if _local.get():
            return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "-"


def age(seconds: float) -> str:
    """Return a duration in its two largest units: ``45s``, ``12m5s``, ``3d4h``; from 100 days on in days."""
    if not isfinite(seconds):
        return "-"
    if seconds <= -1:
        return f"-{age(-seconds)}"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days >= 100:
        return f"{days}d"
    units = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    first = next((i for i, (amount, _) in enumerate(units) if amount), 3)
    return "".join(f"{amount}{unit}" for amount, unit in units[first : first + 2] if amount) or "0s"


def duration(seconds: float) -> str:
    """Return a duration as people write it: ``45 s``, ``2 h 40 min``, ``3 d 4 h``."""
    parts = re.findall(r"(-?\d+)([dhms])", age(seconds))
    return " ".join(f"{amount} {'min' if unit == 'm' else unit}" for amount, unit in parts) or "-"


def ago(at: float, now: float) -> str:
    """Return how long ago ``at`` was: short age, ``-`` for never, ``0s`` if the clock was set back since."""
    return age(max(0.0, now - at)) if at else "-"


def number(value: float) -> str:
    """Return ``40``, ``0.5``: no trailing zeros, no exponent for what people count."""
    return (
        f"{value:.3f}".rstrip("0").rstrip(".")
        if value == value and abs(value) < 1e15
        else str(value)
    )


def seconds(value: float) -> str:
    """Return ``612 s``; from two hours on with the age: ``90000 s (1d1h)``."""
    text = f"{number(round(value, 1))} s"
    return text if abs(value) < 7200 or not isfinite(value) else f"{text} ({age(value)})"


def gpus(milli: int) -> str:
    """Return milli-GPUs as GPUs: ``1``, ``0.2``."""
    return number(milli / 1000)


def size(mib: int) -> str:
    """Return MiB as ``512 MiB`` or, from 1 GiB on, ``40 GiB``."""
    return f"{mib} MiB" if abs(mib) < 1024 else f"{number(round(mib / 1024, 1))} GiB"


def capability(tenths: int) -> str:
    """Return a CUDA compute capability: 80 is ``8.0``."""
    return f"{tenths // 10}.{tenths % 10}" if tenths else "-"


def driver(version: int) -> str:
    """Return the newest CUDA version of a driver: 12040 is ``12.4``."""
    return f"{version // 1000}.{version % 1000 // 10}" if version else "-"


def count(number_of: int, noun: str, plural: str = "") -> str:
    """Return ``1 job``, ``2 jobs``."""
    return f"{number_of} {noun if number_of == 1 else plural or noun + 's'}"


def sanitize(text: str, most: int = 0) -> str:
    """Return ``text`` on one line without control, format or undecodable characters, cut to ``most`` if given."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(_visible(c) for c in text)
    return text if not most or len(text) <= most else text[: most - 3] + "..."


def _visible(char: str) -> str:
    match unicodedata.category(char):
        case "Cc" | "Zl" | "Zp":
            return " " if char in "\n\r\t\u2028\u2029\x0b\x0c" else "\ufffd"
        case "Zs":
            return " "
        case "Cf" | "Cs" | "Co" | "Cn":
            return "\ufffd"
        case _:
            return char


_EXIT_REPORT = re.compile(r"drone=\S*(?: [a-z_]+=\S*)+")


def excerpt(text: str) -> str:
    """Return a message of a site or pool for people: sanitised, cut, the exit report of a drone decoded.

    ``drone=kit-1 exit=0 reason=idle ... why=no%20claim``, alone or within a sentence, becomes
    ``idle: no claim``.
    """
    if "drone=" in text:
        text = _EXIT_REPORT.sub(_decoded, text)
    return sanitize(text, SHORT_TEXT).strip()


def _decoded(report: re.Match[str]) -> str:
    fields = dict(word.partition("=")[::2] for word in report[0].split(" "))
    if not fields.get("reason"):
        return report[0]
    return ": ".join(unquote(fields[key]) for key in ("reason", "why") if fields.get(key))


def _tail(text: str, joint: str = ": ") -> str:
    """Return foreign text as the tail of a sentence, if there is any."""
    text = excerpt(text)
    return f"{joint}{text}" if text else ""


def amounts(wanted: str, offered: str) -> tuple[str, str]:
    """Return both amounts in the unit that people use, unless they would then look the same."""
    rounded = _in_gib(wanted), _in_gib(offered)
    return rounded if rounded[0] != rounded[1] else (wanted, offered)


def _in_gib(text: str) -> str:
    mib, _, unit = text.partition(" ")
    return (
        size(int(mib))
        if unit == "MiB" and mib.isascii() and mib.isdecimal() and len(mib) < 16
        else text
    )


def _q(text: str) -> str:
    return sanitize(text, SHORT_TEXT).strip() or "?"


_NUMBERED = re.compile(
    r"(?P<before>[^.\[\],]*?)(?P<number>[0-9]{1,15})(?P<after>[^0-9.\[\],]*(?:\.[^\[\],]*)?)"
)
"""The last number in the part before the first dot; names with a bracket or a comma in them are left alone."""


def fold_hostlist(names: Iterable[str]) -> str:
    """Return node names as Slurm and pdsh write them: ``topas-a100-[1-3,7].example.org``.

    Names that differ only in the last number of their first part stand together, if the numbers
    have as many digits.
    """
    alone: set[str] = set()
    series: dict[tuple[str, str, int], set[int]] = {}
    for name in names:
        if numbered := _NUMBERED.fullmatch(name):
            key = numbered["before"], numbered["after"], len(numbered["number"])
            series.setdefault(key, set()).add(int(numbered["number"]))
        else:
            alone.add(name)
    parts = sorted(alone)
    for (before, after, width), numbers in sorted(series.items()):
        runs = [
            [n for _, n in run]
            for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
        ]
        spans = [
            f"{run[0]:0{width}}" + (f"-{run[-1]:0{width}}" if len(run) > 1 else "") for run in runs
        ]
        parts.append(
            f"{before}[{','.join(spans)}]{after}"
            if len(numbers) > 1
            else f"{before}{spans[0]}{after}"
        )
    return ",".join(parts)


STATE_WORDS = {
    DroneState.REQUESTED: "recorded and being asked for; the site has not confirmed it",
    DroneState.SUBMITTED: "the site took the order",
    DroneState.QUEUED: "waits at the site",
    DroneState.BOOTING: "the site runs it; it is not in the pool yet",
    DroneState.JOINED: "in the pool, checking its GPUs; takes no jobs yet",
    DroneState.IDLE: "in the pool, ready for jobs, none runs",
    DroneState.BUSY: "runs jobs",
    DroneState.DRAINING: "takes no new jobs; running ones may end",
    DroneState.STOPPING: "the site was asked to end it; not confirmed gone",
    DroneState.DONE: "ended: in order",
    DroneState.CANCELLED: "ended: taken back, because no job needed it or an operator asked",
    DroneState.PREEMPTED: "ended: the site took its resources back",
    DroneState.FAILED: "ended: could not start or broke",
    DroneState.LOST: "lost: disappeared from site and pool without an exit status",
    DroneState.JOIN_TIMEOUT: "ended: the site ran it but it never came to the pool",
    DroneState.UNUSED: "ended: was in the pool but never had a job",
}
BREAKER_WORDS = {
    BreakerState.ACTIVE: "works",
    BreakerState.DEGRADED: "failed lately, still used",
    BreakerState.BANNED: "not used",
    BreakerState.PROBING: "tried with one drone",
}
DRAIN_MODE_WORDS = {
    DrainMode.NONE: "let it run out",
    DrainMode.PEACEFUL: "no new jobs, running ones end by themselves",
    DrainMode.GRACEFUL: "no new jobs, running ones are asked to leave",
    DrainMode.FAST: "no new jobs, running ones are killed",
    DrainMode.RESUME: "take it back into service",
}
"""Effect of each mode on running jobs."""
IDLE_LIMIT_WORDS = {
    "gaps": "the time-out that would have cost least over the known gaps between jobs at its site",
    "start-cost": "what another start costs at its site, learned from the drones that came there",
    "time-out": "the configured time-out",
    "slow-start": "as long as the drone took to come, at most three times the configured time-out",
    "fixed": "the configured time-out, which is fixed",
    "refused-jobs": "waiting jobs that it refuses lack its room, and none waits that it takes",
}
"""Source of the limit of an idle drone."""


REFUSAL_RULE_WORDS = {
    "avoids": "it takes none of their user, who would lose more to the owner of the site there than a wait costs",
    "min_gpus": "it takes only jobs of several GPUs, as it was started for one",
    "kept": "it is new, and kept at first for the jobs that it was started for",
    "ends": "it ends before their walltime would",
}
"""Causes for which an idle drone refuses jobs."""


def _over(value_s: float, limit_s: float) -> str:
    """Return ``612 s > 600 s``, with decimals where rounding would hide the difference."""
    sign = ">" if value_s > limit_s else "<" if value_s < limit_s else "="
    left, right = seconds(_whole(value_s)), seconds(_whole(limit_s))
    if sign != "=" and left == right:
        left, right = f"{value_s:.3f} s", f"{limit_s:.3f} s"
    return f"{left} {sign} {right}"


def _whole(value: float) -> float:
    return float(round(value)) if isfinite(value) else value


def _black_hole(reason: r.BlackHoleDrone) -> str:
    on = f" on {_q(reason.node)}" if reason.node else ""
    return (
        f"eats jobs{on}: {count(reason.failed, 'start')} of jobs of {count(reason.owners, 'user')} failed within "
        f"seconds or ended in a hold, {count(reason.good, 'job')} went well{_tail(reason.message)}"
    )


def _exclusive_only(reason: r.ExclusiveOnly) -> str:
    why = f"{count(reason.faults, 'fault')} on shared GPUs in {age(reason.window_s)}: exclusive GPUs only"
    if not reason.faults:
        why = "neighbours on shared GPUs ended a job twice, without its fault: an exclusive GPU until it is done, or"
    return f"{why} until {iso(reason.until)}{_tail(reason.message)}"


def _nothing_fits(reason: r.NothingFits) -> str:
    wanted, offered = amounts(reason.requested, reason.available)
    nearest = (
        f"nearest is {_q(reason.nearest)} with {_q(offered)}"
        if reason.nearest
        else "there is no drone type at all"
    )
    remedy = "; a CPU drone type (`gpus: 0`) of their size would do" if reason.gpu_optional else ""
    return f"no drone type fits: {_q(reason.dimension)} must be {_q(wanted)}; {nearest}{remedy}"


def credential_trouble(credential: Credential, now: float) -> str:
    """Return why a credential cannot be used, or when it ends if that is soon; empty: it can be used."""
    name, who = f"`{credential.name}`: ", sanitize(credential.identity or credential.source, 200)
    if credential.problem:
        return name + sanitize(credential.problem, SHORT_TEXT)
    left_s = credential.not_after - now
    if not credential.not_after or left_s > credential.warning_s:
        return ""
    ends = f"expires at {iso(credential.not_after)}, in {age(left_s)}"
    if left_s <= 0:
        ends = f"expired at {iso(credential.not_after)}"
    return f"{name}the credential of {who} {ends}. Renew {credential.source}"


def _stale(reason: r.StaleView) -> str:
    how = f"could not be renewed, the newest is {seconds(_whole(reason.age_s))} old"
    if reason.age_s < 0:
        how = "was never obtained"
    elif reason.age_s > reason.limit_s:
        how = f"is {_over(reason.age_s, reason.limit_s)} old"
    return f"the view of {_q(reason.view)} {how}: what depends on it is left alone{_tail(reason.message)}"


def _owner_claim(reason: r.PreemptedForOwner) -> str:
    where = f" on {_q(reason.node)}" if reason.node else ""
    size = f", {number(reason.gpus)} GPUs each," if reason.gpus else ","
    cost = (
        f"; {number(reason.lost_gpu_s)} {_q(reason.unit)} of work go" if reason.lost_gpu_s else ""
    )
    waits = f"{count(reason.waiting, 'job')} of theirs{size} waiting {seconds(reason.waited_s)}"
    return f"the owner of the hardware needs it{where}: {waits}{cost}"


def _stranded(reason: r.GpusStranded) -> str:
    show = number if reason.dimension == "cpus" else size
    where = f"{number(reason.free_gpus)} GPUs are free on {count(reason.nodes, 'node')}"
    return (
        f"{where}, but others hold the {_q(reason.dimension)} there: {_q(reason.type)} wants {show(reason.wanted)}, "
        f"at most {show(reason.free)} left"
    )


def _taken_back(reason: r.Preempted) -> str:
    grace = (
        f" {seconds(reason.notice_s)} after the notice (of {seconds(reason.grace_s)})"
        if reason.notice_s
        else ""
    )
    jobs = count(reason.lost_jobs, "job")
    lost = (
        f"{jobs}, {number(reason.lost_gpu_s)} {_q(reason.unit)}" if reason.lost_jobs else "no work"
    )
    return f"taken back for the owner{grace}, {lost} lost{_tail(reason.message)}"


def _ended(reason: r.EndedAtSite) -> str:
    code = "" if reason.exit_code is None else f", exit code {reason.exit_code}"
    code += f": {EXIT_WORDS[reason.exit_code]}" if reason.exit_code in EXIT_WORDS else ""
    lived = f" after {seconds(_whole(reason.lived_s))} and {count(reason.jobs_started, 'job')}"
    return f"ended at the site ({_q(reason.end)}{code}){lived}{_tail(reason.message)}"


class _SentenceFormatter(Formatter):
    """Formatter of sentences: a spec is a unit, ``tail`` for foreign text at the end, or a noun that is counted."""

    UNITS: Mapping[str, Callable[[Any], str]] = {
        "tail": _tail,
        "seconds": seconds,
        "time": iso,
        "percent": "{:.1%}".format,
    }

    def format_field(self, value: Any, spec: str) -> str:
        if not spec:
            return _q(value) if isinstance(value, str) else number(value)
        return self.UNITS[spec](value) if spec in self.UNITS else count(value, spec)


_SENTENCES: Mapping[Category, Mapping[type, str | Callable[[Any], str]]] = {
    Category.STEP: {
        r.Accepted: lambda x: f"the site took the order{_tail(x.remote_id, ' as ')}",
        r.OrderRefused: "the site refused the order ({fault}){message:tail}",
        r.DrainRefused: lambda x: (
            f"the overlay refused the order to drain{f' ({_q(x.fault)})' if x.fault else ''}{_tail(x.message)}"
        ),
        r.OutcomeUnknown: "no answer to the order; it counts as carried out until a poll settles it{message:tail}",
        r.SeenAtSite: "the site lists it as {site_state}{site_reason:tail}",
        r.SeenInPool: "in the pool, {slot_state} with {jobs:job}, {after_s:seconds} after it was asked for",
        r.NotInListing: "missing from a fresh listing of the site; not yet taken for gone",
        r.NeverArrived: lambda x: (
            f"the order never arrived: not in the site's listings for {_over(x.waited_s, x.limit_s)}"
        ),
        r.Disappeared: lambda x: (
            f"gone from the site: missing from its listings for {_over(x.missing_s, x.limit_s)}"
        ),
        r.EndedAtSite: _ended,
        r.DemandReturned: "back into service: {waiting:job} of class {class_id} wait that it can run",
        r.Preempted: _taken_back,
        r.PreemptionNotice: "its site has asked it to leave{message:tail}",
    },
    Category.START: {
        r.JobsWaiting: lambda x: (
            f"{count(x.waiting, 'job')} of class {_q(x.class_id)} {'waits' if x.waiting == 1 else 'wait'}, {x.covered} "
            f"of them taken care of: {count(x.starts, 'drone')} of this type more"
        ),
        r.HeadroomShort: "headroom {name}: room for {wanted:job} is kept warm, there is some for {covered}: "
        "{starts:drone} of this type more",
        r.ShadowOnly: "a shadow starts nothing: a controller would now start {drones:drone} of {type}, beside what the "
        "other system has",
    },
    Category.LEAVE: {
        r.DrainRepeated: "asked again: it still takes jobs {after_s:seconds} after it was asked to drain{message:tail}",
        r.IdleTimeout: lambda x: ", ".join(
            [f"idle {_over(x.idle_s, x.limit_s)}", *filter(None, [IDLE_LIMIT_WORDS.get(x.by)])]
        ),
        r.OptionalJobsOnly: lambda x: (
            f"takes no more jobs: for {_over(x.idle_s, x.limit_s)} none that needs its GPU, only jobs for which it is"
            " optional"
        ),
        r.DrainAtRisk: "ends what it runs and takes no more: the owner of {site} is likely to take its place, and "
        "waiting jobs would lose {lost:percent} of their work there, where they accept {tolerated:percent}",
        r.BlackHoleDrone: _black_hole,
        r.BlackHoleNode: "its node {node} is avoided until {until:time}: {failures:drone} on it ate jobs{message:tail}",
        r.Unneeded: "no waiting job needs it any more, and it was only {state}",
        r.StateTimeout: lambda x: f"{_q(x.state)} for {_over(x.for_s, x.limit_s)}",
        r.LeftPool: lambda x: (
            f"out of the pool for {_over(x.for_s, x.limit_s)} while the site still runs it"
        ),
        r.OperatorRequested: "{by} asked{text:tail}",
        r.PreemptedForOwner: _owner_claim,
        r.ReserveReclaimed: "it stands on what {node} keeps for a free GPU, and a GPU job waits",
        r.TypeRemoved: "drone type {type} is no longer in the configuration",
        r.Orphan: lambda x: (
            "carries our tag at the site, but "
            + (
                f"on record it ended as {_q(x.recorded_end)}"
                if x.recorded_end
                else "there is no record of it"
            )
        ),
    },
    Category.CONFIGURATION: {
        r.BadRequest: "no slot can ever offer what the jobs ask for{message:tail}",
        r.PlannerFailed: "the planner fails on this and leaves it out{error:tail}. Report it with "
        "`provisioner snapshot`",
        r.InvalidAction: "left out of the plan as invalid{promise:tail}. Report it with `provisioner snapshot`",
        r.SiteDisabled: lambda x: (
            f"site {_q(x.site)} is disabled "
            + (f"by {_q(x.by)}{_tail(x.text)}" if x.by else "in the configuration")
        ),
        r.UnknownDrone: "no live drone {drone_id} is on record",
        r.OrphansKept: "{drones:drone} named {record}-* at {site} are not on record: neither used nor stopped. If the "
        "record was lost, adopt them with `provisioner sites adopt-orphans SITE`; else `stop-orphans`. Those without "
        "a job are stopped at {until:time}",
        r.LiveTwin: "another controller of this name is alive (record {record}, {evidence}): nothing is started or "
        "stopped. End one of the two, or give it another name (`controller:`)",
        r.NotDraining: "{drone_id} is {state}: only a draining drone can be taken back into service",
    },
    Category.NOTHING_FITS: {r.NothingFits: _nothing_fits},
    Category.LIMIT: {
        r.LimitReached: "limit {limit} of {scope} is reached: {used}/{allowed}",
        r.GroupQuota: "group {group} has used up its quota ({used_gpus}/{quota_gpus} GPUs) and takes no surplus: the "
        "negotiator would match no more of its jobs",
        r.PoolLimit: "the pool would match no more of these jobs, whatever slots came{message:tail}",
        r.IdleDroneRefuses: lambda x: (
            f"refused by {count(x.drones, 'idle drone')} of fitting types ({_q(x.drone)} of {_q(x.type)}): "
            f"{REFUSAL_RULE_WORDS.get(x.rule, _q(x.rule))}; until {iso(x.until)}, or longer if other jobs come for it"
        ),
        r.SiteQuota: "the site's quota leaves no place for {type} or any other type that fits",
    },
    Category.BACK_OFF: {
        r.BackingOff: "{scope} is not used until {until:time} ({fault}){message:tail}",
        r.StartsUnmatched: "the pool gave none of these jobs to drones of {type} that were started for them "
        "({failures} in a row): the next one is tried at {until:time}; other jobs are not affected{message:tail}",
        r.ExclusiveOnly: _exclusive_only,
        r.NegotiatorSilent: "the pool has run no negotiation cycle for {silent_s:seconds}: no job starts anywhere "
        "until its administrator has repaired the negotiator",
        r.CredentialUnusable: lambda x: (
            f"nothing is started with a credential of {_q(x.used_by)} that cannot be used: {_q(x.name)}"
            + (f" of {_q(x.identity)}" if x.identity else "")
            + (f" expired at {iso(x.expired_at)}" if x.expired_at else _tail(x.problem))
        ),
        r.Probing: "{scope} is tried with one drone before more are started",
        r.TooManyUnhealthy: lambda x: (
            f"{x.unhealthy} of {count(x.drones, 'drone')} look unhealthy, more than {number(100 * x.fraction)} %: "
            "nothing is done, the fault is probably ours"
        ),
    },
    Category.WAITING_SITE: {
        r.OwnerRisk: "jobs of typically {typical_s:seconds} would lose more than {tolerated:percent} of their work to "
        "the owner of {site}: waiting for a place without an owner costs less (expected wait {safe_s:seconds}, waited "
        "so far {waited_s:seconds})",
        r.AwaitingCheaperType: "a drone of {type} holds its GPUs for long before its first job: one is started if "
        "nothing cheaper comes before the jobs have waited for {more_s:seconds} together ({waited_s:seconds} so far)",
        r.ExistingDronesSuffice: "such jobs run for {mean_s:seconds}: to wait for drones that are there costs less "
        "than to start more ({running} run now)",
        r.HeadroomYields: "headroom {name} (room for {wanted:job}) waits: real jobs or the owner come first",
        r.SiteFull: "the site shows no free place for {type} or any other type that fits{lack:tail}",
        r.GpusStranded: _stranded,
        r.StartBlocked: "the site lets no more of {type} start ({fault}){message:tail}",
        r.Downtime: "{site} goes down at {at:time}: {left_s:seconds} are left, {wanted_s:seconds} are wanted",
        r.OwnerWaits: lambda x: (
            f"the owner's jobs come first: {count(x.jobs, 'job')} of theirs get room at {_q(x.site)}"
            + (f" for {number(x.gpus)} GPUs" if x.gpus else "")
        ),
        r.NodeReserved: lambda x: (
            f"node {_q(x.node)} at {_q(x.site)} is reserved for a job of class {_q(x.class_id)} with"
            f" {number(x.gpus)} GPUs: its room is expected to be free at {iso(x.at)}"
            + (
                f", {age(x.overran_s)} later than promised, as a running job overran"
                if x.overran_s
                else ""
            )
        ),
        r.UserTurn: "when drones are started, the user of these jobs comes as number {place} of {users} with waiting "
        "jobs: they hold {gpus} GPUs, which count {factor} times by their effective priority",
        r.ReserveKept: "nodes have room for {type}, but `blocking` reserves it for their {free_gpus} free GPUs",
        r.DemandCovered: lambda x: (
            f"{count(x.jobs, 'job')} will be taken by free slots and {count(x.drones, 'drone')} on the way"
            + (f" ({number(x.delayed)} delayed" if x.delayed else "")
            + (
                f"; no other is started: {_q(x.held_back)})"
                if x.held_back
                else ")"
                if x.delayed
                else ""
            )
        ),
        r.AwaitingIdleGpu: lambda x: (
            "a GPU is optional for these jobs: they wait for an idle GPU"
            + (f" or a CPU slot (drone type {_q(x.cpu_type)}" if x.cpu_type else "")
            + (f": {_q(x.held_back)})" if x.cpu_type and x.held_back else ")" if x.cpu_type else "")
            + "; no GPU drone is started for them"
        ),
        r.StaleView: _stale,
        r.AllVanished: "{drones:drone} vanished from the listing of {site} at once: not believed yet",
    },
    Category.WAITING_NEGOTIATION: {
        r.AwaitingNegotiation: "{fresh:job} so new that no negotiation cycle has seen them"
    },
}
"""Sentence of each reason, by category: a text with its fields, or a function of the reason."""
_CATEGORIES = {kind: category for category, sentences in _SENTENCES.items() for kind in sentences}
_SENTENCE_FORMATTER = _SentenceFormatter()


def category(reason: Reason) -> Category:
    """Return the category of a reason."""
    return _CATEGORIES[type(reason)]


def describe(reason: Reason) -> str:
    """Return one line for people, with the numbers of the reason; foreign texts are cut to :data:`SHORT_TEXT`."""
    sentence = _SENTENCES[category(reason)][type(reason)]
    if callable(sentence):
        return sentence(reason)
    return _SENTENCE_FORMATTER.vformat(
        sentence, (), {f.name: getattr(reason, f.name) for f in fields(reason)}
    )


_ADVISED_CHANGES = {
    "memory": "ask for {0} of memory instead of {1}, if the program can do with it",
    "disk": "ask for {0} of disk instead of {1}, if the program can do with it",
    "vram": "ask for GPUs with {0} of memory instead of {1}, if the program can do with it",
    "cpus": "ask for {0} CPU instead of {1}",
    "gpus": "ask for {0} GPU instead of {1}",
    "capability": "ask for GPUs of compute capability {0} instead of {1}, if the program can do with it",
    "driver": "ask for CUDA {0} instead of {1}, if the program can do with it",
    "walltime": "declare a run time of {0} instead of {1}",
    "optional": "declare the GPU as optional, if the program can do without one",
    "priority": "raise the priority of the job from {1} to {0}, above that of your other jobs",
    "group": "submit it for the group {0} instead of {1}",
}
"""Advised changes, of the advised and the requested amount; all others drop a requirement."""
_START_OUTCOMES = {
    StartOutcome.STARTS: "it starts as soon as its place is ready, how soon is unknown",
    StartOutcome.WAITS: "it waits for a free place, how long is unknown",
    StartOutcome.NEVER: "it never starts",
}
"""Outcomes with an unknown waiting time."""


def about(wait_s: float) -> str:
    """Return a waiting time as people say it: ``17 minutes``, ``9 hours``, ``3 days``."""
    for unit_s, least_s, unit in (
        (86400.0, 172800.0, "day"),
        (3600.0, 7200.0, "hour"),
        (60.0, 0.0, "minute"),
    ):
        if wait_s >= least_s:
            return count(max(1, round(wait_s / unit_s)), unit)
    return "-"


def _when(forecast: StartForecast) -> str:
    if forecast.wait_s is None:
        return _START_OUTCOMES[forecast.outcome]
    return (
        f"it starts in about {about(forecast.wait_s)}"
        if forecast.wait_s >= 1
        else "it starts at once"
    )


def advise(advice: RequestAdvice) -> str:
    """Return the advice in one sentence for the job's owner, who need not know what a drone is."""
    if advice.then is None:
        if advice.why is None:
            return f"no change is needed: {_when(advice.now)}"
        when = "" if advice.now.wait_s is None else f"; {_when(advice.now)}"
        return f"no change of the request helps: {describe(advice.why)}{when}"
    change = _ADVISED_CHANGES.get(advice.dimension)
    if change is None:
        asked = f"drop the requirement {_q(advice.requested)}"
    else:
        requested, advised = amounts(_in_age(advice.requested), _in_age(advice.advised))
        asked = change.format(_q(advised), _q(requested))
    if advice.now.wait_s is not None and advice.then.wait_s is not None:
        return f"{asked}: {_when(advice.then)} instead of {about(advice.now.wait_s)}"
    return f"{asked}: {_when(advice.then)}. As it is, {_when(advice.now)}"


def _in_age(text: str) -> str:
    span_s, _, unit = text.partition(" ")
    return age(float(span_s)) if unit == "s" else text
