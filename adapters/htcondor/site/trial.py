"""Trial submits through computing elements: only they show that an element takes our jobs."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence

from adapters.htcondor.classads import HELD, text, whole
from adapters.htcondor.site import grid, submission
from adapters.htcondor.site.client import HTCondorClient
from adapters.htcondor.site.listing import is_spooling
from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.shared.printing import printable
from provisioner.interfaces import AuditFinding, RejectedError
from provisioner.model import DroneId, DroneType

TAKEN_WITHIN_S = 22.0
_ASK_EVERY_S = 1.0
_MOST_WORDS = 200
_NOT_TAKEN = "it was not taken: {}. Correct `grid_resource` or the credentials"
_ATTRIBUTES = (
    "ClusterId",
    "JobStatus",
    "HoldReason",
    "HoldReasonCode",
    *grid.GRID_PROJECTION.split(),
)


async def try_submits(
    client: HTCondorClient, config: HTCondorSiteConfig, kinds: Sequence[DroneType]
) -> Sequence[AuditFinding]:
    """Submit a job that ends at once to each element, and return those that do not take it."""
    by_element: dict[str, DroneType] = {}
    for kind in kinds:
        element = grid.bare_names(config.commands(kind))["grid_resource"]
        by_element.setdefault(element, kind)
    answers = await asyncio.gather(
        *(_try_submit(client, config, kind) for kind in by_element.values())
    )
    return [
        AuditFinding("", "submit", f"{element}: {why}")
        for element, why in zip(by_element, answers, strict=True)
        if why
    ]


async def _try_submit(client: HTCondorClient, config: HTCondorSiteConfig, kind: DroneType) -> str:
    """Return why an element has not taken a job; "" if it has."""
    name = DroneId(f"check-{secrets.token_hex(8)}")
    try:
        cluster = await client.submit(submission.trial(config, kind, name))
    except RejectedError as error:  # our own schedd reads proxies, too
        return _NOT_TAKEN.format(error)
    try:
        return await _refusal(client, cluster)
    finally:
        await client.remove([f"{cluster}.0"], "provisioner: checked")


async def _refusal(client: HTCondorClient, cluster: int) -> str:
    end = time.monotonic() + TAKEN_WITHIN_S
    while True:
        ads = await client.ads("jobs", f"ClusterId == {cluster}", _ATTRIBUTES)
        if not ads or text(ads[0], "GridJobId"):
            return ""
        job = ads[0]
        if whole(job, "JobStatus") == HELD and not is_spooling(job):
            why = printable(text(job, "HoldReason", _MOST_WORDS), _MOST_WORDS)
            return _NOT_TAKEN.format(why)
        if time.monotonic() > end:
            break
        await asyncio.sleep(_ASK_EVERY_S)
    if grid.obstacle(job):
        return "it does not answer. Look at the network, the credentials, and its schedd or web service"
    return f"it was not taken within {TAKEN_WITHIN_S:.0f} s. Look at GridmanagerLog on the host of the schedd"
