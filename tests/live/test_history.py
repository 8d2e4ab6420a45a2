"""The past of a real pool: the owner's use, queue times of drones, completed jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.htcondor.site import HTCondorSite
from provisioner.history import HISTORY_S, MAX_HISTORY_ROWS
from provisioner.interfaces import SupportsRunHistory, SupportsSiteHistory, UnavailableError
from tests.htcondor_overlay.live import overlay_on
from tests.htcondor_site.orders import A100, CONTROLLER
from tests.labs.htcondor import Pool, StartDrone, gpu_job, until
from tests.live.test_site_tools import config

DRONE = f"""My.ProvisionerController = "{CONTROLLER}"
My.DroneSite = "topas"
My.DroneId = "{CONTROLLER}-ab12-1"
My.DroneType = "a100"
"""


def remembering(pool: Pool, work: Path, transport: str, schedd: str) -> HTCondorSite:
    tools: dict[str, Any] = {} if transport == "tools" else {"tools": {}}
    owner: Any = {"schedds": [schedd], "jobs": 'Owner == "alice"'}
    return HTCondorSite(
        "topas", config(pool, work, transport=transport, owner=owner, **tools), [A100], CONTROLLER
    )


async def test_a_pool_tells_its_owners_use_its_drones_and_its_jobs(
    new_pool: Callable[[], Pool], drone_on: StartDrone, tmp_path: Path
) -> None:
    pool = new_pool()
    begun = time.time()
    drone_on(pool, "kit-1")  # in the place of a node of the site
    for more in ("", DRONE):
        cluster = pool.submit(gpu_job(3, more=more))
        until(lambda cluster=cluster: not pool.jobs(cluster), 120, what="a job is done")  # type: ignore[misc]
    runs = pool.submit(gpu_job(600))
    until(lambda: pool.statuses(runs) == [2], 90, what="another runs")
    removed = pool.submit(gpu_job(600, gpus=9))
    pool.run("condor_rm", str(removed), identity="alice")
    (schedd,) = pool.run("condor_status", "-schedd", "-af", "Name").split()
    now = time.time()
    for transport in ("tools", "bindings"):
        async with remembering(pool, tmp_path, transport, schedd) as site:
            assert isinstance(site, SupportsSiteHistory)
            past = await site.history(now - HISTORY_S)
        (start,) = past.starts
        assert (start.type, past.left_out) == ("a100", False) and 0 <= start.queue_s < 120
        assert begun < start.started_at + 2 and start.started_at < now + 2
        held = [gpu_milli for _, gpu_milli in past.owner_steps]
        assert held[-1] == 1000 and set(held) == {0, 1000}, (
            "one job after the other, and one that runs"
        )
        assert all(begun < at + 2 for at, _ in past.owner_steps), (
            "unknown before the end of the oldest"
        )
    async with overlay_on(pool) as overlay:
        assert isinstance(overlay, SupportsRunHistory)
        told = await overlay.history(now - HISTORY_S)
        assert [(run.owner, run.gpu_milli, run.unfinished) for run in told.runs] == [
            ("alice", 1000, False)
        ] * 2
        assert all(3 <= run.run_s < 60 for run in told.runs) and not told.left_out
        assert (await overlay.history(time.time() + 5)).runs == ()
    async with remembering(pool, tmp_path, "tools", "nowhere@etp.test") as site:
        with pytest.raises(UnavailableError):
            await site.history(now - HISTORY_S)
    assert MAX_HISTORY_ROWS > 1000
