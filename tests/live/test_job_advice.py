"""Explain twenty idle jobs of a real pool: table and JSON agree, and the advised change starts the job."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from provisioner.answers.columns import Document
from provisioner.answers.errors import VerbError
from provisioner.answers.explain import explained_class, explained_job
from provisioner.model import (
    Blame,
    Breaker,
    BreakerState,
    Drone,
    DroneId,
    DroneState,
    Fault,
    FaultKind,
    JobFailure,
    Scope,
)
from provisioner.store.writer import SqlStore
from tests.labs.controller import A100, BIG, LabController, LabSite, Settings
from tests.labs.htcondor import Pool, gpu_job, until

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "why-is-my-job-idle.md"
POOL = """
GROUP_NAMES = physics, guests
GROUP_QUOTA_physics = 2
GROUP_QUOTA_guests = 100
LICENCE_LIMIT = 1
"""
OF_PHYSICS = "accounting_group = physics\naccounting_group_user = alice"
OF_GUESTS = OF_PHYSICS.replace("physics", "guests")
LICENCE = "concurrency_limits = licence"


@dataclass(frozen=True)
class OddSite(LabSite):
    """A site with further settings."""

    more: Mapping[str, Any] = frozenset()  # type: ignore[assignment]
    gpus: int = 64
    env: Mapping[str, str] = frozenset()  # type: ignore[assignment]
    """Without a path its drones find no HTCondor."""

    def settings(self, controller: LabController) -> Settings:
        settings = {**super().settings(controller), **dict(self.more)}
        gpus = {**settings["options"]["gpus"][0], "count": self.gpus}
        env = {**settings["options"].get("env", {}), **dict(self.env)}
        return {**settings, "options": {**settings["options"], "gpus": [gpus], "env": env}}


SITES = (
    replace(BIG, most=8, type={"walltime": "1h"}),
    OddSite("closed", "a100", A100, 4, more={"enabled": False}),
    OddSite("lost", "a100", A100, 4, env={"PATH": "/nowhere"}),
    OddSite("capped", "a100", A100, 4, most=1),
    OddSite("full", "a100", A100, 4, gpus=1),
    OddSite("slices", "a100", A100, 4, type={"sharing": "time-sliced", "shares": 4}),
)


class Case(NamedTuple):
    """A job, the reason why it waits, and the advised change (dimension, amount); none: no change helps."""

    why: str
    change: tuple[str, str] = ("", "")
    asks: Mapping[str, Any] = {}
    more: str = ""
    remedy: str = ""
    """Line to submit it again with instead of ``more``, where the words say so."""
    identity: str = "alice"


def at(site: str) -> str:
    return f'requirements = TARGET.SiteName == "{site}"'


SITE_IS = 'TARGET.SiteName == "{}"'.format
CASES = {
    "memory": Case("nothing-fits", ("memory", "512 MiB"), {"memory_mib": 700}),
    "disk": Case("nothing-fits", ("disk", "2048 MiB"), more="request_disk = 3GB"),
    "cpus": Case("nothing-fits", ("cpus", "2"), {"cpus": 3}),
    "gpus": Case("nothing-fits", ("gpus", "1"), {"gpus": 2}),
    "vram": Case("nothing-fits", ("vram", "47104 MiB"), more="gpus_minimum_memory = 60000"),
    "capability": Case("nothing-fits", ("capability", "8.0"), more="gpus_minimum_capability = 9.5"),
    "walltime": Case(
        "nothing-fits", ("walltime", "3420 s"), more=f"allowed_job_duration = 7200\n{at('big')}"
    ),
    "model": Case(
        "nothing-fits", ("no-gpu-model", ""), more='require_gpus = regexp("H100", DeviceName)'
    ),
    "site": Case("nothing-fits", ("no-requirements", ""), more=at("elsewhere")),
    "software": Case(
        "nothing-fits", ("no-requirements", ""), more="requirements = TARGET.HasCVMFS"
    ),
    "two wishes": Case(
        "nothing-fits",
        more="requirements = TARGET.HasCVMFS && TARGET.HasSquid",
        remedy="priority = 0",
    ),
    "half a gpu": Case("bad-request", asks={"gpus": 0.5}, remedy="request_gpus = 1"),
    "no number": Case(
        "bad-request", more="request_memory = NoSuch * 2", remedy="request_memory = 128MB"
    ),
    "disabled": Case("site-disabled", ("no-requirements", ""), more=at("closed")),
    "back-off": Case("backing-off", ("no-requirements", ""), more=at("lost")),
    "limit": Case("limit-reached", ("no-requirements", ""), more=at("capped")),
    "room": Case("site-full", ("no-requirements", ""), more=at("full")),
    "user": Case(
        "exclusive-only",
        ("no-requirements", ""),
        more=f"+GpuMilli = 250\n{at('slices')}",
        identity="admin",
    ),
    "quota": Case("group-quota", ("group", "guests"), {"cpus": 2}, more=OF_PHYSICS),
    "licence": Case("pool-limit", more=LICENCE),
}
IN_QUEUE = {
    "memory": ("RequestMemory", 1.0),
    "disk": ("RequestDisk", 1024.0),
    "cpus": ("RequestCpus", 1.0),
    "gpus": ("RequestGPUs", 1.0),
    "vram": ("GPUsMinMemory", 1.0),
    "capability": ("GPUsMinCapability", 1.0),
    "walltime": ("AllowedJobDuration", 1.0),
}
"""Attribute of each advised amount, and how many of its units are one of the advised ones."""


def submit(pool: Pool, case: Case, more: str) -> int:
    return pool.submit(gpu_job(1, **{**case.asks, "more": more}), identity=case.identity)


def apply(pool: Pool, case: Case, cluster: int, advice: Mapping[str, Any]) -> int:
    """Make the change of the advice as the guide says; return the cluster of the job."""
    if advice["dimension"] in IN_QUEUE:
        attribute, units = IN_QUEUE[advice["dimension"]]
        assert f"condor_qedit 204.17 {attribute} " in GUIDE.read_text()
        amount = float(advice["advised"].partition(" ")[0]) * units
        text = f"{amount:.1f}" if attribute == "GPUsMinCapability" else f"{amount:.0f}"
        pool.run("condor_qedit", f"{cluster}.0", attribute, text, identity=case.identity)
        return cluster
    pool.remove(cluster, case.identity)
    kept = [
        line
        for line in case.more.splitlines()
        if not line.startswith(("require", "accounting_group ="))
    ]
    if advice["dimension"] == "group":
        kept.append(f"accounting_group = {advice['advised']}")
    if case.remedy:
        kept, case = [case.remedy], case._replace(asks={})
    return submit(pool, case, "\n".join(kept))


def blame(controller: LabController) -> None:
    """Put the faults of a user's jobs on shared GPUs on record, before the controller begins."""
    now = time.time()
    faults = [
        JobFailure(DroneId(f"lab-old-{n}"), f"{n}.0", now - n, "admin", "CUDA error 700", Blame.JOB)
        for n in (2, 1)
    ]
    fault = Fault(FaultKind.JOBS, "job 1.0 in lab-old-1: CUDA error 700", now)
    breaker = Breaker(
        Scope(user="admin"), BreakerState.BANNED, 0.0, 2, now + 86400, fault, faults=tuple(faults)
    )

    async def record() -> None:
        async with SqlStore(
            controller.directory / "provisioner.db", controller.name, keep_s=1e6, snapshots=10
        ) as store:
            await store.record_results(0, [], [breaker])

    controller.write()
    asyncio.run(record())


@pytest.mark.matrix
@pytest.mark.timeout(840)
@pytest.mark.parametrize("lab", [POOL], indirect=True)
def test_twenty_idle_jobs_are_explained_alike_and_start_as_advised(
    lab: tuple[Pool, LabController],
) -> None:
    pool, controller = lab
    controller.sites, controller.idle_s = SITES, 20
    blame(controller)
    controller.start(write=False)
    end = pool.file("end")
    asked = [
        at("capped"),
        at("full"),
        *(f"{more}\n{at('big')}" for more in (OF_PHYSICS, OF_GUESTS, LICENCE)),
    ]
    occupants = [pool.submit(gpu_job(cpus=2, more=more, until_there=end)) for more in asked]
    until(
        lambda: all(pool.statuses(each) == [2] for each in occupants), 120, what="the occupants run"
    )
    clusters = {name: submit(pool, case, case.more) for name, case in CASES.items()}
    assert len(clusters) == 20
    explained(controller, clusters["licence"], CASES["licence"])
    until(
        lambda: not idle_drones(controller),
        120,
        what="a drone for the job without a licence has left",
    )
    told = {name: explained(controller, clusters[name], case) for name, case in CASES.items()}
    for name, case in CASES.items():
        (advice,) = told[name]["advice"]
        amount = "" if case.change[0].startswith("no-") else case.change[1]
        assert (advice["dimension"], advice["advised"]) == (case.change[0], amount), (
            f"{name}: {advice}"
        )
        if not case.change[0]:
            assert advice["text"].startswith("no change of the request helps: "), name
    assert "write request_gpus = 1" in told["half a gpu"]["advice"][0]["text"]
    assert told["site"]["advice"][0]["requested"] == SITE_IS("elsewhere")

    helped = {name: case for name, case in CASES.items() if case.change[0] or case.remedy}
    again = {
        name: apply(pool, case, clusters[name], told[name]["advice"][0])
        for name, case in helped.items()
    }
    for name, cluster in again.items():
        until(
            lambda cluster=cluster: not pool.jobs(cluster),
            240,
            what=f"{name}: the changed job has run",
            every_s=1,
        )
    assert pool.statuses(clusters["licence"]) == [1], "no change would have helped"
    end.touch()
    end.chmod(0o644)
    until(lambda: not pool.jobs(), 120, what="all are done", every_s=1)


def idle_drones(controller: LabController) -> list[Drone]:
    """Return the drones without a job: a job that one of them takes would start sooner than in a new one."""
    return [drone for drone in controller.record.drones() if drone.state is not DroneState.BUSY]


def explained(controller: LabController, cluster: int, case: Case) -> dict[str, Any]:
    """Return the JSON once it gives the reason and the table of the same moment says the same."""

    def found() -> dict[str, Any] | None:
        try:
            document = plain(explained_job(controller.record, f"{cluster}.0"))
        except VerbError:  # it is too new
            return None
        kinds = [each["reason"]["kind"] for each in document["said"]]
        if [kind for kind in kinds if kind != "idle-drone-refuses"] != [case.why]:
            return None
        words = " ".join(controller.prints("explain", "job", f"{cluster}.0").split())
        agree = all(each["text"] in words for each in (*document["said"], *document["advice"]))
        return (
            document
            if agree and plain(explained_class(controller.record, document["id"])) == document
            else None
        )

    def plain(answer: Document) -> dict[str, Any]:
        parts: dict[str, Any] = json.loads(json.dumps(answer.plain()))
        for each in parts.get("advice", ()):
            del each["wait_s"], each["then_wait_s"]  # they change with each tick
        # So does the effective priority of a user.
        told = [each for each in parts.get("said", ()) if each["reason"]["kind"] != "user-turn"]
        return {"id": parts.get("id", []), "said": told, "advice": parts.get("advice", [])}

    document: dict[str, Any] = until(found, 90, what=f"{cluster} is {case.why}", every_s=0.5)
    assert document["advice"][0]["reason"]["kind"] == case.why
    return document
