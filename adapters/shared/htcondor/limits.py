"""Concurrency limits that are used up, as the negotiator told the schedd of the jobs that it refused for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from adapters.shared.htcondor.ads import Ad, moment, text, whole

LIMITS_PROJECTION = ("ConcurrencyLimits", "LastRejMatchReason", "LastRejMatchTime")
"""Attributes of jobs that :func:`refusals` looks at, beside ``JobStatus`` and ``ServerTime``."""
_IDLE = 1
_LASTS_S = 900.0
"""A refusal counts for so long. The negotiator repeats it in each cycle, for one job of those that are alike."""


Refusal = tuple[float, bool]
"""Time of the newest refusal by the schedd's clock, and True if a limit was its reason."""


def refusals(job_ads: Iterable[Ad], now: float) -> dict[str, Refusal]:
    """Return the newest refusal of a waiting job for each value of ConcurrencyLimits."""
    newest: dict[str, Refusal] = {}
    for ad in job_ads:
        limits, refused_at = text(ad, "ConcurrencyLimits", 80), moment(ad, "LastRejMatchTime")
        lately = refused_at > (moment(ad, "ServerTime") or now) - _LASTS_S
        if limits and lately and whole(ad, "JobStatus") == _IDLE:
            for_limit = text(ad, "LastRejMatchReason").lower().startswith("concurrency limit")
            newest[limits] = max(newest.get(limits, (0.0, False)), (refused_at, for_limit))
    return newest


def used_up(*told: Mapping[str, Refusal]) -> frozenset[str]:
    """Return the values of ConcurrencyLimits for which the negotiator refused a job when it looked last, by what
    schedds have ``told`` of refusals."""
    newest: dict[str, Refusal] = {}
    for each in told:
        for limits, refusal in each.items():
            newest[limits] = max(newest.get(limits, (0.0, False)), refusal)
    return frozenset(limits for limits, (_, for_limit) in newest.items() if for_limit)
