"""Blame for failures on shared GPUs, and the users whose jobs get exclusive GPUs for it.

A fatal fault of one job on a GPU that is shared by MPS ends the jobs beside it. Those are
*collateral*: recorded, and never held against their users. The record of a user is a breaker:
``banned`` means exclusive GPUs only, ``degraded`` that there are failures on record.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from provisioner import model
from provisioner.model import (
    Blame,
    Breaker,
    Breakers,
    BreakerState,
    Fault,
    FaultKind,
    JobClass,
    JobFailure,
    Policy,
    Scope,
    Snapshot,
)
from provisioner.planner.matching import CompatibleTypes
from provisioner.reasons import ExclusiveOnly
from provisioner.values import frozen

COLLATERAL_LIMIT = 2
"""A job that neighbours ended this often runs alone next."""
ALONE_S = 86400.0
"""It does so for at most this time, in case it never completes."""
SAME_FAILURE_S = 120.0
"""Reports of one job in one drone that are closer than this are one failure: clocks of nodes differ."""
DRONES_FOR_BAN = 2
"""A ban needs faults in so many drones: what one drone reports may be forged by a job in it."""
MAX_FAILURES_KEPT = 50
"""Failures in the record of a user, of each blame."""
_ByClass = Mapping[str, CompatibleTypes]


def judge_users(
    snapshot: Snapshot,
    moves: Sequence[model.StateChange],
    known: Breakers,
) -> Iterator[Breaker]:
    """Yield the changed breakers of users after what this snapshot shows."""
    view = snapshot.overlay.view
    news = defaultdict[Scope, list[JobFailure]](list)
    for failure in view.mishaps if view is not None else ():
        if failure.blame is not Blame.UNKNOWN and model.USER_NAME.fullmatch(failure.owner):
            news[Scope(user=failure.owner)].append(failure)
    users = dict.fromkeys(scope for scope in (*known, *news) if scope.user)
    ended = (view.completions if view and users else None) or ()
    completed = {job.job_id: job.ended_at for job in ended if not job.unfinished}
    for scope in users:
        before = known.get(scope) or Breaker(scope)
        after = _judged(before, news[scope], completed, snapshot)
        if after != before:
            yield after


def _judged(
    before: Breaker,
    news: Iterable[JobFailure],
    completed: Mapping[str, float],
    snapshot: Snapshot,
) -> Breaker:
    """Return the breaker of a user after newly reported failures and completed jobs."""
    oldest = snapshot.now - snapshot.policy.fault_window_s
    faults = _newest(_settled(_with_news(before, news, oldest), completed))
    if not faults:
        return Breaker(before.scope, since=before.since if before.since > oldest else 0.0)
    # A job that runs again and faults again is still one job: it counts by its first fault.
    by_job = {each.job_id: each for each in reversed(faults) if each.blame is Blame.JOB}
    blamed = sorted(by_job.values(), key=attrgetter("at"))
    until, shown = _ban(faults, blamed, snapshot)
    message = f"job {shown.job_id} in {shown.drone_id}: {shown.cause}"
    return Breaker(
        before.scope,
        BreakerState.BANNED if until else BreakerState.DEGRADED,
        before.since,
        len(blamed),
        until,
        Fault(FaultKind.JOBS, message, shown.at),
        faults=tuple(faults),
    )


def _with_news(before: Breaker, news: Iterable[JobFailure], oldest: float) -> list[JobFailure]:
    """Return the failures on record and the new ones, without those before the window or the last reset."""
    faults = [each for each in before.faults if each.at > oldest]
    for new in sorted(news, key=attrgetter("at", "job_id")):
        reported = any(_is_same(each, new) for each in faults)
        if new.at > max(oldest, before.since) and not reported:
            faults.append(new)
    return faults


def _is_same(one: JobFailure, other: JobFailure) -> bool:
    """Return True if two reports are about the same failure."""
    same_job = (one.drone_id, one.job_number) == (other.drone_id, other.job_number)
    return same_job and abs(one.at - other.at) < SAME_FAILURE_S


def _settled(faults: Iterable[JobFailure], completed: Mapping[str, float]) -> Iterator[JobFailure]:
    """Yield the failures, with those that neighbours caused as settled once the job has completed."""
    for each in faults:
        done = completed.get(each.job_id, 0.0) > each.at - SAME_FAILURE_S
        collateral = each.blame is Blame.COLLATERAL
        yield replace(each, blame=Blame.SETTLED) if done and collateral else each


def _ban(
    faults: Sequence[JobFailure], blamed: Sequence[JobFailure], snapshot: Snapshot
) -> tuple[float, JobFailure]:
    """Return the end of the time on exclusive GPUs, 0 if there is none, and the failure to show for it."""
    limit = snapshot.policy.fault_limit
    drones = {each.drone_id for each in blamed}
    if 0 < limit <= len(blamed) and len(drones) >= DRONES_FOR_BAN:
        return blamed[-limit].at + snapshot.policy.fault_window_s, blamed[-1]
    times = Counter(each.job_id for each in faults if each.blame is Blame.COLLATERAL)
    ended_often = [each for each in faults if times[each.job_id] >= COLLATERAL_LIMIT]
    if ended_often and ended_often[-1].at + ALONE_S > snapshot.now:
        return ended_often[-1].at + ALONE_S, ended_often[-1]
    return 0.0, (blamed or faults)[-1]


def _newest(faults: Iterable[JobFailure]) -> list[JobFailure]:
    """Return the newest failures of each blame, oldest first: those of neighbours must not push out a user's own."""
    kept = list[JobFailure]()
    counts = Counter[Blame]()
    for each in sorted(faults, key=attrgetter("at"))[::-1]:
        counts[each.blame] += 1
        if counts[each.blame] <= MAX_FAILURES_KEPT:
            kept.append(each)
    return kept[::-1]


@frozen
class ExclusiveUsers:
    """Users whose jobs get no GPUs that they would share, and their classes that could."""

    users: frozenset[str]
    """Users whom new shared drones refuse."""
    why: Mapping[str, ExclusiveOnly]
    """By class id, of classes that fit shared types."""
    compatible: _ByClass

    @classmethod
    def of(
        cls,
        policy: Policy,
        breakers: Breakers,
        classes: Iterable[JobClass],
        compatible: _ByClass,
    ) -> ExclusiveUsers:
        """Collect the users and their classes. A job without blame shares a GPU if no exclusive type fits."""
        banned = {
            scope.user: each
            for scope, each in breakers.items()
            if scope.user and each.state is BreakerState.BANNED
        }
        users = set(banned)
        why = dict[str, ExclusiveOnly]()
        left = dict[str, CompatibleTypes]()
        for job in classes if banned else ():
            breaker = banned.get(job.owner)
            fits = compatible[job.id]
            exclusive = fits.only(kind for kind in fits.kinds if not kind.shares_faults)
            if breaker is None or breaker.fault is None or exclusive.kinds == fits.kinds:
                continue
            blamed = breaker.failures if breaker.failures >= policy.fault_limit else 0
            if blamed or exclusive.kinds:
                why[job.id] = ExclusiveOnly(
                    blamed, policy.fault_window_s, breaker.until, breaker.fault.message
                )
                left[job.id] = exclusive
            else:
                users.discard(job.owner)
        return cls(frozenset(users), why, left)
