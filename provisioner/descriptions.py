"""Words for states, credentials and advice, for people."""

from __future__ import annotations

from provisioner.formatting import SHORT_TEXT, age, amounts, count, iso, sanitize, short
from provisioner.model import BreakerState, Credential, DrainMode, DroneState
from provisioner.reasons import RequestAdvice, StartForecast, StartOutcome

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
        return f"no change of the request helps: {advice.why.describe()}{when}"
    change = _ADVISED_CHANGES.get(advice.dimension)
    if change is None:
        asked = f"drop the requirement {short(advice.requested)}"
    else:
        requested, advised = amounts(_in_age(advice.requested), _in_age(advice.advised))
        asked = change.format(short(advised), short(requested))
    if advice.now.wait_s is not None and advice.then.wait_s is not None:
        return f"{asked}: {_when(advice.then)} instead of {about(advice.now.wait_s)}"
    return f"{asked}: {_when(advice.then)}. As it is, {_when(advice.now)}"


def _in_age(text: str) -> str:
    span_s, _, unit = text.partition(" ")
    return age(float(span_s)) if unit == "s" else text
