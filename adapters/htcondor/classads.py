"""Reading of values out of ads that anybody may have written: bounded, printable, never an exception."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from adapters.htcondor import classad2
from adapters.shared.printing import LONGEST, printable
from provisioner.interfaces import UnavailableError

LARGEST_NUMBER = 10**12  # beyond this a number from an ad is nonsense
SAME_CLOCK_S = 2  # clocks closer than this count as one: times in ads are whole seconds
# JobStatus
IDLE = 1
RUNNING = 2
REMOVED = 3
COMPLETED = 4
HELD = 5
TRANSFERRING_OUTPUT = 6
SUSPENDED = 7
# JobUniverse of jobs that a dedicated scheduler starts on several machines; they have no RemoteHost
PARALLEL = 11
IN_SLOT = frozenset({RUNNING, TRANSFERRING_OUTPUT, SUSPENDED})  # JobStatus of a job in a slot

Ad: TypeAlias = "classad2.ClassAd"


def attribute_names(text: str) -> tuple[str, ...]:
    """Return the words of ``text``."""
    return tuple(text.split())


def value(ad: Ad, name: str) -> object:
    """Return the value of attribute ``name``; None where it is missing, undefined or an error."""
    try:
        found: object = ad.eval(name)
    except (KeyError, ValueError, TypeError, RuntimeError, classad2.ClassAdException):
        return None
    return None if isinstance(found, classad2.Value) else found


def number(ad: Ad, name: str) -> float | None:
    """Return a finite number; None for anything else."""
    return as_number(value(ad, name))


def as_number(found: object) -> float | None:
    """Return ``found`` if it is a finite number; None for anything else. Booleans are not numbers."""
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)


def moment(ad: Ad, name: str) -> float:
    """Return a time, in seconds since the epoch; 0.0 where the ad has none that a calendar knows."""
    found = number(ad, name)
    return found if found is not None and 0 < found <= LARGEST_NUMBER else 0.0


def whole(ad: Ad, name: str) -> int:
    """Return a count, rounded up; 0 where the ad has no sensible one."""
    return math.ceil(moment(ad, name))


def text(ad: Ad, name: str, limit: int = LONGEST) -> str:
    """Return a string fit to be shown; "" where the ad has none."""
    found = value(ad, name)
    return printable(found, limit) if isinstance(found, str) else ""


def slot_state(ad: Ad) -> tuple[str, str]:
    return str(value(ad, "State")).lower(), str(value(ad, "Activity")).lower()


def job_id(ad: Ad) -> str:
    return f"{whole(ad, 'ClusterId')}.{whole(ad, 'ProcId')}"


def routed_from(ad: Ad) -> str:
    """Return the id of the job whose routed copy a job is; empty: of none."""
    return text(ad, "RoutedFromJobId", 30)


_AT_REST = ("", "undefined", "false")
"""Values of LeaveJobInQueue of jobs that enter the history when they end; others (of
``condor_submit -spool``) may do as much as ten days later."""


def history_end(since: float) -> str:
    """Return the expression that ends the reading of a history, newest first, once all older entries ended before."""
    values = ", ".join(f'"{each}"' for each in _AT_REST)
    return (
        f"(EnteredCurrentStatus < {int(since)} && member(unparse(LeaveJobInQueue), {{{values}}}))"
    )


def clock_ahead_s(ad: Ad, now: float) -> float:
    """Return how far the clock of a job's schedd is ahead of ours, by the time in its answer; 0.0 if they agree."""
    theirs = moment(ad, "ServerTime")
    return theirs - now if theirs and abs(theirs - now) > SAME_CLOCK_S else 0.0


def our_moment(ad: Ad, name: str, now: float) -> float:
    """Return a time in a job's ad by our clock; 0.0 where the ad has none."""
    theirs = moment(ad, name)
    return theirs - clock_ahead_s(ad, now) if theirs else 0.0


def source(ad: Ad, name: str) -> str:
    """Return the expression of attribute ``name`` as text; "" where it is missing."""
    try:
        return str(ad.lookup(name))
    except KeyError:
        return ""


def expression(source_text: str) -> classad2.ExprTree | None:
    """Return ``source_text`` parsed anew (one that an ad owns is not to be evaluated in others); None if broken."""
    try:
        return classad2.ExprTree(source_text)
    except (ValueError, classad2.ClassAdException):
        return None


def is_expression(source_text: str) -> bool:
    """Return False if ``source_text`` is certainly no expression; without the bindings nothing is certain."""
    try:
        return expression(source_text) is not None
    except UnavailableError:
        return True


def _checked_expression(source_text: str) -> str:
    if not is_expression(source_text):
        examples = '`Owner != "test"`, or of a slot `TARGET.Memory > 4096`'
        raise ValueError(
            f"`{source_text[:60]}` is not a ClassAd expression: write, say, {examples}"
        )
    return source_text


# an expression as an option of the configuration
Expression = Annotated[str, AfterValidator(_checked_expression)]


def evaluated(what: str | classad2.ExprTree | None, my: Ad, target: Ad) -> object:
    """Return the value of an expression of ``my`` against ``target``; None where it is undefined or an error."""
    parsed = expression(what) if isinstance(what, str) else what
    try:
        found: object = None if parsed is None else parsed.eval(my, target)
    except (ValueError, TypeError, RuntimeError, classad2.ClassAdException):
        return None
    return None if isinstance(found, classad2.Value) else found


def evaluated_number(what: str | classad2.ExprTree | None, my: Ad, target: Ad) -> float | None:
    """Return the value of an expression if it is a finite number; None for anything else."""
    return as_number(evaluated(what, my, target))


def holds(what: str | classad2.ExprTree | None, my: Ad, target: Ad) -> bool:
    """Return True if an expression is true for a pair of ads; undefined and error are not."""
    return evaluated(what, my, target) is True


def references(source_text: str, ad: Ad | None = None) -> list[str]:
    """Return the attributes outside ``ad`` that an expression looks at, with their scopes (``TARGET.Memory``)."""
    parsed = expression(source_text)
    within = classad2.ClassAd() if ad is None else ad
    return [] if parsed is None else [str(name) for name in within.externalRefs(parsed)]


LIMITS_PROJECTION = ("ConcurrencyLimits", "LastRejMatchReason", "LastRejMatchTime")
"""Attributes of jobs that :func:`refusals` looks at, beside ``JobStatus`` and ``ServerTime``."""
_REFUSAL_COUNTS_S = 900.0
"""A refusal counts for so long. The negotiator repeats it in each cycle, for one job of those that are alike."""

Refusal: TypeAlias = tuple[float, bool]
"""Time of the newest refusal by the schedd's clock, and True if a limit was its reason."""


def refusals(job_ads: Iterable[Ad], now: float) -> dict[str, Refusal]:
    """Return the newest refusal of a waiting job for each value of ConcurrencyLimits."""
    newest: dict[str, Refusal] = {}
    for ad in job_ads:
        limits = text(ad, "ConcurrencyLimits", 80)
        refused_at = moment(ad, "LastRejMatchTime")
        lately = refused_at > (moment(ad, "ServerTime") or now) - _REFUSAL_COUNTS_S
        if limits and lately and whole(ad, "JobStatus") == IDLE:
            for_limit = text(ad, "LastRejMatchReason").lower().startswith("concurrency limit")
            newest[limits] = max(newest.get(limits, (0.0, False)), (refused_at, for_limit))
    return newest


def used_up(*known: Mapping[str, Refusal]) -> frozenset[str]:
    """Return the ConcurrencyLimits for which the negotiator refused a job when it looked last, by several schedds."""
    limits = {name for each in known for name in each}
    return frozenset(
        name for name in limits if max(each[name] for each in known if name in each)[1]
    )
