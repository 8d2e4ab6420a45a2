"""Queue and local site together: what an operator sees on a laptop."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from adapters.embedded import EmbeddedOverlay, queue
from adapters.embedded.queue import JobState
from adapters.local import LocalSite
from adapters.local import LocalSiteConfig as SiteConfig
from provisioner.adapter_tests import eventually
from provisioner.model import DroneId, EndKind, StartOrder, StopOrder
from tests.embedded.drones import KIND, config


async def test_a_drone_killed_by_its_site_gives_its_job_to_the_next(path: Path, tmp_path: Path) -> None:
    controller = f"emb{os.getpid()}"
    told = tmp_path / "told"
    queue.submit(path, ["sh", "-c", f"echo $PROVISIONER_DRONE_ID >> {told}; [ $(wc -l < {told}) -gt 1 ] || sleep 1000"])
    options = {"root": str(tmp_path / "site"), "gpus": [{"count": 2}], "cpus": 8, "memory": "16 GiB", "disk": "1 GiB"}
    site = LocalSite("here", SiteConfig.model_validate(options), [KIND], controller)
    overlay = EmbeddedOverlay(config(path), controller)
    first, second = DroneId(f"{controller}-abcd-1"), DroneId(f"{controller}-abcd-2")

    async def start(drone_id: DroneId) -> None:
        order = StartOrder(drone_id, KIND, 60.0, 2.0)
        await site.start([replace(order, bootstrap=await overlay.bootstrap(order))])

    async def at_work() -> bool:
        return lines(told) == 1

    async def done() -> bool:
        return queue.counts(path)[JobState.DONE] == 1

    async def over() -> bool:
        return all(drone.end is not None for drone in (await site.poll()).drones.values())

    async with site, overlay:
        await start(first)
        await eventually("the job runs on the first", at_work, 60)
        await site.stop([StopOrder(first, "", kill=True)])
        await start(second)
        await eventually("the job is done on the second, once its lease has run out", done, 60)
        await site.stop([StopOrder(second, "")])
        await eventually("both are gone", over, 60)
        ends = {drone_id: drone.end for drone_id, drone in (await site.poll()).drones.items()}

    [job] = queue.jobs(path)
    assert (job.state, job.attempts, job.drone_id) == (JobState.DONE, 2, second)
    assert {end.kind for end in ends.values() if end is not None} == {EndKind.STOPPED}
    left = ends[second]
    assert left is not None
    assert (left.exit_code, left.message) == (0, "left: asked to leave")


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0
