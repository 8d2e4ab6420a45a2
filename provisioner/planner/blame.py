"""Blame for failures on shared GPUs, and the users whose jobs get exclusive GPUs for it.

A fatal fault of one job on a GPU that is shared by MPS ends the jobs beside it. Those are
*collateral*: recorded, and never held against their users. The record of a user is a breaker:
``banned`` means exclusive GPUs only, ``degraded`` that there are failures on record.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from provisioner import model
from provisioner.model import (
    Blame,
    Breaker,
    BreakerState,
    Fault,
    FaultKind,
    JobClass,
    JobFailure,
    Policy,
    Scope,
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
    snapshot: model.Snapshot, known: Mapping[Scope, Breaker]
) -> Mapping[Scope, Breaker]:
    """Return the changed breakers of users after what this snapshot shows."""
    view = snapshot.overlay.view
    news: dict[Scope, list[JobFailure]] = defaultdict(list)
    for failure in view.mishaps if view is not None else ():
        if failure.blame is not Blame.UNKNOWN and model.USER_NAME.fullmatch(failure.owner):
            news[Scope(user=failure.owner)].append(failure)
    before = {scope: each for scope, each in known.items() if scope.user}
    before |= {scope: Breaker(scope) for scope in news.keys() - before.keys()}
    ended = (view.completions if view and before else None) or ()
    completed = {job.job_id: job.ended_at for job in ended if not job.unfinished}
    after = {
        scope: _judged(each, news[scope], completed, snapshot) for scope, each in before.items()
    }
    return {scope: each for scope, each in after.items() if each != before[scope]}


def _judged(
    before: Breaker,
    news: Iterable[JobFailure],
    completed: Mapping[str, float],
    snapshot: model.Snapshot,
) -> Breaker:
    window_s, limit = snapshot.policy.fault_window_s, snapshot.policy.fault_limit
    oldest = snapshot.now - window_s
    faults = [each for each in before.faults if each.at > oldest]
    for new in sorted(news, key=lambda each: (each.at, each.job_id)):
        near = [
            each.job_number
            for each in faults
            if abs(each.at - new.at) < SAME_FAILURE_S and each.drone_id == new.drone_id
        ]
        if new.at > max(oldest, before.since) and new.job_number not in near:
            faults.append(new)
    for n, each in enumerate(faults):
        if (
            each.blame is Blame.COLLATERAL
            and completed.get(each.job_id, 0.0) > each.at - SAME_FAILURE_S
        ):
            faults[n] = replace(each, blame=Blame.SETTLED)
    faults = _newest(faults)
    if not faults:
        return Breaker(before.scope, since=before.since if before.since > oldest else 0.0)
    # A job that runs again and faults again is still one job: it counts by its first fault.
    by_job = {each.job_id: each for each in faults[::-1] if each.blame is Blame.JOB}
    blamed = sorted(by_job.values(), key=lambda each: each.at)
    times = Counter(each.job_id for each in faults if each.blame is Blame.COLLATERAL)
    alone = [each for each in faults if times[each.job_id] >= COLLATERAL_LIMIT]
    until, shown = 0.0, (blamed or faults)[-1]
    if 0 < limit <= len(blamed) and len({each.drone_id for each in blamed}) >= DRONES_FOR_BAN:
        until = blamed[-limit].at + window_s
    elif alone and alone[-1].at + ALONE_S > snapshot.now:
        until, shown = alone[-1].at + ALONE_S, alone[-1]
    fault = Fault(
        FaultKind.JOBS, f"job {shown.job_id} in {shown.drone_id}: {shown.cause}", shown.at
    )
    state = BreakerState.BANNED if until else BreakerState.DEGRADED
    return Breaker(
        before.scope, state, before.since, len(blamed), until, fault, faults=tuple(faults)
    )


def _newest(faults: Iterable[JobFailure]) -> list[JobFailure]:
    """Return the newest failures of each blame, oldest first: those of neighbours must not push out a user's own."""
    kept, counts = list[JobFailure](), Counter[Blame]()
    for each in sorted(faults, key=lambda each: each.at)[::-1]:
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
        breakers: Mapping[Scope, Breaker],
        classes: Iterable[JobClass],
        compatible: _ByClass,
    ) -> ExclusiveUsers:
        """Collect the users and their classes. A job without blame shares a GPU if no exclusive type fits."""
        banned = {
            scope.user: each
            for scope, each in breakers.items()
            if scope.user and each.state is BreakerState.BANNED
        }
        users, why, left = set(banned), dict[str, ExclusiveOnly](), dict[str, CompatibleTypes]()
        for job in classes if banned else ():
            breaker, fits = banned.get(job.owner), compatible[job.id]
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
