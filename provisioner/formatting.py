"""Words at the edge: one English line per reason with its numbers, words for states, times, ages and sizes.

A line depends on the reason alone. Times are ISO-8601 in UTC (but see :func:`local_times`), ages short (``3d4h``).
Text that comes from a site or the pool is untrusted and passes :func:`sanitize`: no control sequence reaches
a terminal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from math import isfinite
from typing import assert_never
from urllib.parse import unquote

from provisioner import reasons as r
from provisioner.model import BreakerState, DrainMode, DroneState
from provisioner.reasons import Reason

SHORT_TEXT = 200
"""Longest piece of foreign text inside a line; JSON keeps the whole."""


class Category(StrEnum):
    """Category of a reason; refusals are ordered from "change something" to "wait"."""

    STEP = "step"
    """A fact about a drone."""
    START = "start"
    LEAVE = "leave"
    CONFIGURATION = "configuration"
    NOTHING_FITS = "nothing-fits"
    LIMIT = "limit"
    BACK_OFF = "back-off"
    WAITING_SITE = "waiting-site"
    WAITING_NEGOTIATION = "waiting-negotiation"


# ------------------------------------------------------------------------------------------------------------- numbers


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
    if not minutes:
        return f"{rest}s"
    if minutes < 60:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h" if hours and days < 100 else f"{days}d"


def ago(at: float, now: float) -> str:
    """Return how long ago ``at`` was: short age, ``-`` for never, ``0s`` if the clock was set back since."""
    return age(max(0.0, now - at)) if at else "-"


def number(value: float) -> str:
    """Return ``40``, ``0.5``: no trailing zeros, no exponent for what people count."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if value == value and abs(value) < 1e15 else str(value)


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


def excerpt(text: str) -> str:
    """Return a message of a site or pool for people: sanitised, cut, the exit report of a drone decoded."""
    return sanitize(_last_words(text), SHORT_TEXT).strip()


_OUTCOME = re.compile(r"drone=\S*(?: [a-z_]+=\S*)+")


def _last_words(text: str) -> str:
    """Decode a drone's exit report, alone or within a sentence.

    ``drone=kit-1 exit=0 reason=idle ... why=no%20claim`` becomes ``idle: no claim``.
    """
    return _OUTCOME.sub(_decoded, text) if "drone=" in text else text


def _decoded(outcome: re.Match[str]) -> str:
    fields = dict(word.partition("=")[::2] for word in outcome[0].split(" "))
    if not fields.get("reason"):
        return outcome[0]
    return ": ".join(unquote(fields[key]) for key in ("reason", "why") if fields.get(key))


def _tail(text: str, joint: str = ": ") -> str:
    """Return foreign text as the tail of a sentence, if there is any."""
    text = excerpt(text)
    return f"{joint}{text}" if text else ""


def amounts(wanted: str, offered: str) -> tuple[str, str]:
    """Return both amounts in the unit that people use, unless they would then look the same."""
    told = _in_gib(wanted), _in_gib(offered)
    return told if told[0] != told[1] else (wanted, offered)


def _in_gib(text: str) -> str:
    mib, _, unit = text.partition(" ")
    return size(int(mib)) if unit == "MiB" and mib.isascii() and mib.isdecimal() and len(mib) < 16 else text


def _q(text: str) -> str:
    """Return a foreign name within a sentence."""
    return sanitize(text, SHORT_TEXT).strip() or "?"


# ----------------------------------------------------------------------------------------------------------- node names

_NUMBERED = re.compile(r"(?P<before>[^.\[\],]*?)(?P<number>[0-9]{1,15})(?P<after>[^0-9.\[\],]*(?:\.[^\[\],]*)?)")
"""The last number in the part before the first dot; names with a bracket or a comma in them are left alone."""


def fold_hostlist(names: Iterable[str]) -> str:
    """Return node names as Slurm and pdsh write them: ``topas-a100-[1-3,7].example.org``.

    Names that differ only in the last number of their first part stand together.
    """
    alone: set[str] = set()
    series: dict[tuple[str, str], set[str]] = {}
    for name in names:
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None:
            alone.add(name)
        else:
            series.setdefault((numbered["before"], numbered["after"]), set()).add(numbered["number"])
    parts = sorted(alone)
    for (before, after), numbers in sorted(series.items()):
        parts += [f"{before}{inner}{after}" for inner in _by_width(numbers)]
    return ",".join(parts)


def _by_width(numbers: set[str]) -> Iterable[str]:
    """Yield ranges; numbers with leading zeros only together with those of the same width."""
    padded = {len(n) for n in numbers if n.startswith("0") and len(n) > 1}
    for width in sorted({len(n) if len(n) in padded else 0 for n in numbers}):
        these = sorted(int(n) for n in numbers if (len(n) if len(n) in padded else 0) == width)
        inner = ",".join(_ranges(these, width))
        yield f"[{inner}]" if len(these) > 1 else inner


def _ranges(numbers: list[int], width: int) -> Iterable[str]:
    first = last = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == last + 1:
            last = number
            continue
        ends = [f"{n:0{width}d}" for n in (first, last)]
        yield ends[0] if first == last else ("-" if last > first + 1 else ",").join(ends)
        first = last = number


# -------------------------------------------------------------------------------------------------------------- states


def state_words(state: DroneState) -> str:
    """Return the meaning of a drone's state."""
    match state:
        case DroneState.REQUESTED:
            return "recorded and being asked for; the site has not confirmed it"
        case DroneState.SUBMITTED:
            return "the site took the order"
        case DroneState.QUEUED:
            return "waits at the site"
        case DroneState.BOOTING:
            return "the site runs it; it is not in the pool yet"
        case DroneState.JOINED:
            return "in the pool, checking its GPUs; takes no jobs yet"
        case DroneState.IDLE:
            return "in the pool, ready for jobs, none runs"
        case DroneState.BUSY:
            return "runs jobs"
        case DroneState.DRAINING:
            return "takes no new jobs; running ones may end"
        case DroneState.STOPPING:
            return "the site was asked to end it; not confirmed gone"
        case DroneState.DONE:
            return "ended: in order"
        case DroneState.CANCELLED:
            return "ended: taken back, because no job needed it or an operator asked"
        case DroneState.PREEMPTED:
            return "ended: the site took its resources back"
        case DroneState.FAILED:
            return "ended: could not start or broke"
        case DroneState.LOST:
            return "lost: disappeared from site and pool without an exit status"
        case DroneState.JOIN_TIMEOUT:
            return "ended: the site ran it but it never came to the pool"
        case DroneState.UNUSED:
            return "ended: was in the pool but never had a job"
        case _:
            assert_never(state)


def breaker_words(state: BreakerState) -> str:
    """Return the meaning of the state of a circuit breaker."""
    match state:
        case BreakerState.ACTIVE:
            return "works"
        case BreakerState.DEGRADED:
            return "failed lately, still used"
        case BreakerState.BANNED:
            return "not used until its time is up"
        case BreakerState.PROBING:
            return "one drone is tried"
        case _:
            assert_never(state)


def mode_words(mode: DrainMode) -> str:
    """Return the effect of a drain mode on running jobs."""
    match mode:
        case DrainMode.NONE:
            return "let it run out"
        case DrainMode.PEACEFUL:
            return "no new jobs, running ones end by themselves"
        case DrainMode.GRACEFUL:
            return "no new jobs, running ones are asked to leave"
        case DrainMode.FAST:
            return "no new jobs, running ones are killed"
        case DrainMode.RESUME:
            return "take it back into service"
        case _:
            assert_never(mode)


# ------------------------------------------------------------------------------------------------------------- reasons


def describe(reason: Reason) -> str:
    """One line for people, with the numbers of the reason; never longer than a few foreign texts of 200 characters."""
    match reason:
        # what happened to a drone
        case r.Accepted(remote_id=remote):
            return f"the site took the order{_tail(remote, ' as ')}"
        case r.OrderRefused(fault=fault, message=message):
            return f"the site refused the order ({_q(fault)}){_tail(message)}"
        case r.DrainRefused(fault=fault, message=message):
            return f"the overlay refused the order to drain{f' ({_q(fault)})' if fault else ''}{_tail(message)}"
        case r.DrainRepeated(after_s=after_s, message=message):
            return f"asked again: it still takes jobs {seconds(after_s)} after it was asked to drain{_tail(message)}"
        case r.OutcomeUnknown(message=message):
            return f"nobody knows yet whether the order was carried out; the next listing tells{_tail(message)}"
        case r.SeenAtSite(site_state=state, site_reason=why):
            return f"the site lists it as {_q(state)}{_tail(why)}"
        case r.SeenInPool(slot_state=state, jobs=jobs, after_s=after_s):
            return f"in the pool, {_q(state)} with {count(jobs, 'job')}, {seconds(after_s)} after it was asked for"
        case r.NotInListing():
            return "missing from a fresh listing of the site; not yet taken for gone"
        case r.NeverArrived(waited_s=waited_s, limit_s=limit_s):
            return f"the order never arrived: not in the site's listings for {_over(waited_s, limit_s)}"
        case r.Disappeared(missing_s=missing_s, limit_s=limit_s):
            return f"gone from the site: missing from its listings for {_over(missing_s, limit_s)}"
        case r.EndedAtSite():
            return _ended(reason)
        # why a drone leaves
        case r.IdleTimeout(idle_s=idle_s, limit_s=limit_s, by=by):
            why = idle_words(by)
            return f"idle {_over(idle_s, limit_s)}" + (f", {why}" if why else "")
        case r.DrainAtRisk(site=site, lost=lost, tolerated=tolerated):
            return (
                f"ends what it runs and takes no more: the owner of {_q(site)} is likely to take its place, and "
                f"waiting jobs would lose {lost:.1%} of their work there, where they accept {tolerated:.1%}"
            )
        case r.BlackHoleDrone(failed=failed, good=good, owners=owners, node=node, message=message):
            on = f" on {_q(node)}" if node else ""
            return (
                f"eats jobs{on}: {count(failed, 'start')} of jobs of {count(owners, 'user')} failed within seconds or "
                f"ended in a hold, {count(good, 'job')} went well{_tail(message)}"
            )
        case r.BlackHoleNode(node=node, until=until, failures=failures, message=message):
            return (
                f"its node {_q(node)} is avoided until {iso(until)}: {count(failures, 'drone')} on it ate jobs"
                f"{_tail(message)}"
            )
        case r.Unneeded(state=state):
            return f"no waiting job needs it any more, and it was only {_q(state)}"
        case r.StateTimeout(state=state, for_s=for_s, limit_s=limit_s):
            return f"{_q(state)} for {_over(for_s, limit_s)}"
        case r.LeftPool(for_s=for_s, limit_s=limit_s):
            return f"out of the pool for {_over(for_s, limit_s)} while the site still runs it"
        case r.OperatorRequested(by=by, text=text):
            return f"{_q(by)} asked{_tail(text)}"
        case r.PreemptedForOwner():
            return _owner_claim(reason)
        case r.Preempted():
            return _taken_back(reason)
        case r.PreemptionNotice(message=message):
            return f"its site has told it to leave{_tail(message)}"
        case r.ReserveReclaimed(node=node):
            return f"it stands on what {_q(node)} keeps for a free GPU, and a GPU job waits"
        case r.TypeRemoved(type=kind):
            return f"drone type {_q(kind)} is no longer in the configuration"
        case r.Orphan(recorded_end=end):
            known = f"on record it ended as {_q(end)}" if end else "there is no record of it"
            return f"carries our tag at the site, but {known}"
        case r.DemandReturned(class_id=class_id, waiting=waiting):
            return f"back into service: {count(waiting, 'job')} of class {_q(class_id)} wait that it can run"
        # why a drone is started
        case r.JobsWaiting(class_id=class_id, waiting=waiting, covered=covered, starts=starts):
            wait = "waits" if waiting == 1 else "wait"
            return (
                f"{count(waiting, 'job')} of class {_q(class_id)} {wait}, {covered} of them taken care of: "
                f"{count(starts, 'drone')} of this type more"
            )
        case r.HeadroomShort(name=name, wanted=wanted, covered=covered, starts=starts):
            return (
                f"headroom {_q(name)}: room for {count(wanted, 'job')} is kept warm, there is some for {covered}: "
                f"{count(starts, 'drone')} of this type more"
            )
        # why something is not done
        case r.BadRequest(message=message):
            return f"no slot can ever offer what the jobs ask for{_tail(message)}"
        case r.PlannerFailed(error=error):
            return f"the planner fails on this and leaves it out{_tail(error)}. Report it with `provisioner snapshot`"
        case r.InvalidAction(promise=promise):
            return f"left out of the plan as invalid{_tail(promise)}. Report it with `provisioner snapshot`"
        case r.NothingFits(nearest=nearest, dimension=dimension, requested=wanted, available=offered):
            wanted, offered = amounts(wanted, offered)
            near = f"nearest is {_q(nearest)} with {_q(offered)}" if nearest else "there is no drone type at all"
            return f"no drone type fits: {_q(dimension)} must be {_q(wanted)}; {near}"
        case r.LimitReached(limit=limit, scope=scope, used=used, allowed=allowed):
            return f"limit {_q(limit)} of {_q(scope)} is reached: {number(used)}/{number(allowed)}"
        case r.GroupQuota(group=group, used_gpus=used, quota_gpus=quota):
            return (
                f"group {_q(group)} has used up its quota ({number(used)}/{number(quota)} GPUs) and takes no surplus: "
                "the negotiator would match no more of its jobs"
            )
        case r.OwnerRisk(site=site, typical_s=typical, waited_s=waited, tolerated=tolerated):
            return (
                f"the owner of {_q(site)} comes back too often for jobs of typically {seconds(typical)}: more than "
                f"{tolerated:.1%} of their work would be lost, which is what jobs accept that have waited for "
                f"{seconds(waited)}"
            )
        case r.AwaitingCheaperType(type=kind, waited_s=waited, more_s=more):
            return (
                f"a drone of {_q(kind)} holds its GPUs for long before its first job: one is started if nothing "
                f"cheaper comes before the jobs have waited for {seconds(more)} together ({seconds(waited)} so far)"
            )
        case r.ExistingDronesSuffice(mean_s=mean, running=running):
            return f"such jobs run for {seconds(mean)}: drones that are there take them soon ({running} run now)"
        case r.HeadroomYields(name=name, wanted=wanted):
            return f"headroom {_q(name)} (room for {count(wanted, 'job')}) waits: real jobs or the owner come first"
        case r.BackingOff(scope=scope, until=until, fault=fault, message=message):
            return f"{_q(scope)} is not used until {iso(until)} ({_q(fault)}){_tail(message)}"
        case r.StartsUnmatched(type=kind, until=until, failures=failures, message=message):
            return (
                f"the pool gave none of these jobs to drones of {_q(kind)} that were started for them ({failures} in a "
                f"row): the next one is tried at {iso(until)}; other jobs are not affected{_tail(message)}"
            )
        case r.PoolLimit(message=message):
            return f"the pool would match no more of these jobs, whatever slots came{_tail(message)}"
        case r.SiteFull(type=kind, lack=lack):
            return f"the site shows no free place for {_q(kind)} or any other type that fits{_tail(lack)}"
        case r.GpusStranded():
            return _stranded(reason)
        case r.SiteQuota(type=kind):
            return f"the site's quota leaves no place for {_q(kind)} or any other type that fits"
        case r.StartBlocked(type=kind, fault=fault, message=message):
            return f"the site lets no more of {_q(kind)} start ({_q(fault)}){_tail(message)}"
        case r.Downtime(site=site, at=at, left_s=left, wanted_s=wanted):
            return f"{_q(site)} goes down at {iso(at)}: {seconds(left)} are left, {seconds(wanted)} are wanted"
        case r.OwnerWaits(site=site, jobs=jobs, gpus=gpus):
            asked = f" for {number(gpus)} GPUs" if gpus else ""
            return f"the owner's jobs come first: {count(jobs, 'job')} of theirs get room at {_q(site)}{asked}"
        case r.ReserveKept(type=kind, free_gpus=gpus):
            return f"not enough room for {_q(kind)}: its CPUs and memory are reserved for {number(gpus)} free GPUs"
        case r.SiteDisabled(site=site):
            return f"site {_q(site)} is disabled in the configuration"
        case r.DemandCovered(jobs=jobs, drones=drones):
            return f"{count(jobs, 'job')} will be taken by free slots and {count(drones, 'drone')} on the way"
        case r.AwaitingNegotiation(fresh=fresh):
            return f"{count(fresh, 'job')} so new that no negotiation cycle has seen them"
        case r.StaleView(view=view, age_s=age_s, limit_s=limit_s, message=message):
            how = _how_stale(age_s, limit_s)
            return f"the view of {_q(view)} {how}: what depends on it is left alone{_tail(message)}"
        case r.AllVanished(site=site, drones=drones):
            return f"all {count(drones, 'drone')} vanished from the listing of {_q(site)} at once: not believed yet"
        case r.TooManyUnhealthy(unhealthy=unhealthy, drones=drones, fraction=fraction):
            return (
                f"{unhealthy} of {count(drones, 'drone')} look unhealthy, more than {number(100 * fraction)} %: "
                "nothing is done, the fault is probably ours"
            )
        case r.Probing(scope=scope):
            return f"{_q(scope)} is tried with one drone before more are started"
        case r.UnknownDrone(drone_id=drone_id):
            return f"no live drone {_q(drone_id)} is on record"
        case r.NotDraining(drone_id=drone_id, state=state):
            return f"{_q(drone_id)} is {_q(state)}: only a draining drone can be taken back into service"
        case _:
            assert_never(reason)


def _over(value_s: float, limit_s: float) -> str:
    """Return ``612 s > 600 s``, with decimals where rounding would hide the difference."""
    sign = ">" if value_s > limit_s else "<" if value_s < limit_s else "="
    left, right = seconds(_whole(value_s)), seconds(_whole(limit_s))
    if sign != "=" and left == right:
        left, right = f"{value_s:.3f} s", f"{limit_s:.3f} s"
    return f"{left} {sign} {right}"


def _whole(value: float) -> float:
    return float(round(value)) if isfinite(value) else value


def _how_stale(age_s: float, limit_s: float) -> str:
    if age_s < 0:
        return "was never obtained"
    if age_s > limit_s:
        return f"is {_over(age_s, limit_s)} old"
    return f"could not be renewed, the newest is {seconds(_whole(age_s))} old"


def _owner_claim(reason: r.PreemptedForOwner) -> str:
    where = f" on {_q(reason.node)}" if reason.node else ""
    size = f", {number(reason.gpus)} GPUs each," if reason.gpus else ","
    cost = f"; {number(reason.lost_gpu_s)} {_q(reason.unit)} of work go" if reason.lost_gpu_s else ""
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
    grace = f" {seconds(reason.notice_s)} after the notice (of {seconds(reason.grace_s)})" if reason.notice_s else ""
    jobs = count(reason.lost_jobs, "job")
    lost = f"{jobs}, {number(reason.lost_gpu_s)} {_q(reason.unit)}" if reason.lost_jobs else "no work"
    return f"taken back for the owner{grace}, {lost} lost{_tail(reason.message)}"


def _ended(reason: r.EndedAtSite) -> str:
    code = "" if reason.exit_code is None else f", exit code {reason.exit_code}{_exit_words(reason.exit_code)}"
    lived = f" after {seconds(_whole(reason.lived_s))} and {count(reason.jobs_started, 'job')}"
    return f"ended at the site ({_q(reason.end)}{code}){lived}{_tail(reason.message)}"


EXIT_WORDS = {
    64: "wrong call or missing input",
    71: "GPU check failed",
    72: "GPU check hung",
    73: "could not join the pool",
    74: "HTCondor programs missing or not starting",
    75: "the pool was lost",
}
"""Meanings of the drone's own exit codes (the contract of the drone script)."""


def _exit_words(code: int) -> str:
    return f": {EXIT_WORDS[code]}" if code in EXIT_WORDS else ""


_IDLE_WORDS = {
    "gaps": "the time-out that would have cost least over the known gaps between jobs at its site",
    "start-cost": "what another start costs at its site, learned from the drones that came there",
    "time-out": "the configured time-out",
    "slow-start": "as long as the drone took to come, at most three times the configured time-out",
    "fixed": "the configured time-out, which is fixed",
}


def idle_words(by: str) -> str:
    """Return where the limit of an idle drone comes from, in words; empty if that is not known."""
    return _IDLE_WORDS.get(by, "")


def category(reason: Reason) -> Category:
    """Return the category of a reason."""
    match reason:
        case (
            r.Accepted()
            | r.OrderRefused()
            | r.DrainRefused()
            | r.OutcomeUnknown()
            | r.SeenAtSite()
            | r.SeenInPool()
            | r.NotInListing()
            | r.NeverArrived()
            | r.Disappeared()
            | r.EndedAtSite()
            | r.DemandReturned()
            | r.Preempted()
            | r.PreemptionNotice()
        ):
            return Category.STEP
        case r.JobsWaiting() | r.HeadroomShort():
            return Category.START
        case (
            r.IdleTimeout()
            | r.DrainAtRisk()
            | r.Unneeded()
            | r.StateTimeout()
            | r.LeftPool()
            | r.OperatorRequested()
            | r.PreemptedForOwner()
            | r.TypeRemoved()
            | r.Orphan()
            | r.ReserveReclaimed()
            | r.DrainRepeated()
            | r.BlackHoleDrone()
            | r.BlackHoleNode()
        ):
            return Category.LEAVE
        case (
            r.BadRequest()
            | r.SiteDisabled()
            | r.UnknownDrone()
            | r.NotDraining()
            | r.PlannerFailed()
            | r.InvalidAction()
        ):
            return Category.CONFIGURATION
        case r.NothingFits():
            return Category.NOTHING_FITS
        case r.LimitReached() | r.SiteQuota() | r.GroupQuota() | r.PoolLimit():
            return Category.LIMIT
        case r.BackingOff() | r.StartsUnmatched() | r.Probing() | r.TooManyUnhealthy():
            return Category.BACK_OFF
        case (
            r.SiteFull()
            | r.StartBlocked()
            | r.Downtime()
            | r.OwnerWaits()
            | r.ReserveKept()
            | r.DemandCovered()
            | r.StaleView()
            | r.AllVanished()
            | r.GpusStranded()
            | r.HeadroomYields()
            | r.OwnerRisk()
            | r.AwaitingCheaperType()
            | r.ExistingDronesSuffice()
        ):
            return Category.WAITING_SITE
        case r.AwaitingNegotiation():
            return Category.WAITING_NEGOTIATION
        case _:
            assert_never(reason)
