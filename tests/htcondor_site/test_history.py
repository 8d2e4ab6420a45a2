"""The owner's use is the sum of what jobs held; rows that make no sense add nothing to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import classad2
import pytest

from adapters.htcondor.classads import Ad, holds
from adapters.htcondor.site import history
from adapters.htcondor.site.client import HTCondorClient
from adapters.htcondor.site.history import site_history
from adapters.htcondor.site.nodes import machines_of
from adapters.htcondor.site.settings import HTCondorOwnerConfig
from provisioner.history import PastStart, SiteHistoryView
from provisioner.interfaces import UnavailableError
from tests.htcondor_site.slot_ads import NOW, pslot

NODE = "topas-1.etp.test"
OWNER = HTCondorOwnerConfig(schedds=("one", "two"))
SINCE = NOW - 86400.0


def ran(start: object, end: object, **more: object) -> Ad:
    values = {
        "JobStatus": 4,
        "JobCurrentStartDate": start,
        "CompletionDate": end,
        "LastRemoteHost": f"slot1_1@{NODE}",
        "RequestGPUs": 2,
    }
    return classad2.ClassAd({**values, **more})


class Histories:
    """Schedds with histories and queues; "" is ours."""

    def __init__(
        self, past: dict[str, list[Ad]], queues: dict[str, list[Ad]] | None = None
    ) -> None:
        self.past, self.queues = past, queues or {}
        self.stops: list[str] = []

    async def history(
        self, schedd: str, constraint: str, names: object, stop: str, limit: int
    ) -> Sequence[Ad]:
        self.stops.append(stop)
        if schedd and schedd not in self.past:
            raise UnavailableError(f"{schedd} is down")
        return self.past.get(schedd, [])

    async def ads(
        self, kind: str, constraint: str, projection: Sequence[str], schedd: str = ""
    ) -> Sequence[Ad]:
        return self.queues.get(schedd, [])

    async def told(self, owner: HTCondorOwnerConfig | None = OWNER) -> SiteHistoryView:
        machines = machines_of([pslot(NODE)], 0)
        return await site_history(cast(HTCondorClient, self), owner, "true", machines, SINCE, NOW)


async def test_jobs_of_all_schedds_that_ran_here_add_up() -> None:
    one = [
        ran(NOW - 900, NOW - 600),
        ran(NOW - 99999, NOW - 80000),
        ran(NOW - 700, NOW - 500, GPUsProvisioned=1),
    ]
    one += [ran(NOW - 700, NOW - 500, LastRemoteHost="slot1@elsewhere.test")]
    killed = {"JobStatus": 3, "LastJobStatus": 2, "EnteredCurrentStatus": NOW - 300}
    two = [ran(NOW - 400, 0, **killed), ran(NOW - 400, 0, **killed | {"LastJobStatus": 1})]
    runs = {"JobStatus": 2, "RemoteHost": f"slot1_2@{NODE.upper()}"}
    told = await Histories({"one": one, "two": two}, {"two": [ran(NOW - 350, 0, **runs)]}).told()
    steps = [(at - NOW, gpu_milli // 1000) for at, gpu_milli in told.owner_steps]
    assert steps == [(-300, 2)], "unknown before the oldest end of each schedd"
    told = await Histories({"one": one, "two": [*two, ran(NOW - 99999, NOW - 80000)]}).told()
    steps = [(at - NOW, gpu_milli // 1000) for at, gpu_milli in told.owner_steps]
    assert steps == [(-80000, 0), (-900, 2), (-700, 3), (-600, 1), (-500, 0), (-400, 2), (-300, 0)]


async def test_jobs_that_held_no_gpu_here_tell_no_use_of_0() -> None:
    elsewhere = ran(NOW - 900, NOW - 600, LastRemoteHost="slot1@elsewhere.test")
    assert (await Histories({"one": [elsewhere], "two": []}).told()).owner_steps == ()
    late = ran(NOW - 900, NOW - 600, LeaveJobInQueue=True)
    assert (await Histories({"one": [late], "two": []}).told()).owner_steps == (), (
        "it came at an unknown time"
    )


async def test_jobs_that_stay_in_their_queue_count_and_come_late_into_the_history() -> None:
    spooled = {
        "LeaveJobInQueue": classad2.ExprTree("JobStatus == 4 && time() - CompletionDate < 864000")
    }
    past = [
        ran(NOW - 700, NOW - 600),
        ran(NOW - 50000, NOW - 40000, **spooled),
        ran(NOW - 900, NOW - 800),
    ]
    told = await Histories(
        {"one": past, "two": []}, {"one": [ran(NOW - 500, NOW - 400, **spooled)]}
    ).told()
    steps = [(at - NOW, gpu_milli // 1000) for at, gpu_milli in told.owner_steps]
    assert steps == [(-800, 0), (-700, 2), (-600, 0), (-500, 2), (-400, 0)]


async def test_a_late_entry_does_not_end_the_reading() -> None:
    asked = Histories({"one": [], "two": []})
    await asked.told()
    assert len(asked.stops) == 3 and len(set(asked.stops)) == 1
    old = {"EnteredCurrentStatus": SINCE - 9}
    spooled = {"LeaveJobInQueue": classad2.ExprTree("JobStatus == 4")}
    for ends, more in (
        (True, old),
        (False, old | spooled),
        (True, old | {"LeaveJobInQueue": False}),
        (False, {}),
    ):
        assert (
            holds(
                asked.stops[0],
                ran(0, 0, **{"EnteredCurrentStatus": NOW, **more}),
                classad2.ClassAd(),
            )
            is ends
        )


async def test_a_job_holds_no_more_gpus_than_its_machine_has() -> None:
    forged = ran(NOW - 900, NOW - 600, RequestGPUs=10**12)
    told = await Histories({"one": [forged, ran(NOW - 5000, NOW - 4000)], "two": []}).told()
    assert (
        max(gpu_milli for _, gpu_milli in told.owner_steps)
        == machines_of([pslot(NODE)], 0)[0].all.gpus * 1000
    )


async def test_a_schedd_that_is_silent_leaves_the_use_unknown() -> None:
    with pytest.raises(UnavailableError, match="two is down"):
        await Histories({"one": [ran(NOW - 900, NOW - 600)]}).told()
    assert await Histories({}).told(None) == SiteHistoryView(), "no owner"
    assert (await Histories({"one": [], "two": []}).told()).owner_steps == (), (
        "nothing remembered is no use of 0"
    )


@pytest.mark.parametrize(
    ("start", "end", "more"),
    [
        (NOW - 500, NOW - 900, {}),
        (-5, NOW - 600, {}),
        ("yesterday", NOW - 600, {}),
        (None, NOW - 600, {}),
        (float("nan"), NOW - 600, {}),
        (NOW - 900, NOW - 600, {"RequestGPUs": -4}),
        (NOW - 900, NOW - 600, {"RequestGPUs": "many", "LastRemoteHost": 7}),
    ],
)
async def test_rows_that_make_no_sense_add_nothing(
    start: object, end: object, more: dict[str, object]
) -> None:
    sound = ran(NOW - 5000, NOW - 4000)
    told = await Histories({"one": [sound, ran(start, end, **more)], "two": [sound]}).told()
    assert {gpu_milli for _, gpu_milli in told.owner_steps} == {0}


async def test_drones_that_started_tell_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def drone(kind: object, queued: object, started: object) -> Ad:
        return classad2.ClassAd({"DroneType": kind, "QDate": queued, "JobStartDate": started})

    ours = [
        drone("a100", NOW - 900, NOW - 860),
        drone("a100", NOW - 900, 0),
        drone("a100", NOW - 900, NOW - 950),
    ]
    ours += [drone("a100", -1, NOW - 860), drone("", NOW - 900, NOW - 860), drone(5, "x", [])]
    told = await Histories({"": ours}).told(None)
    assert told.starts == (PastStart("a100", NOW - 860, 40.0),) and not told.left_out
    monkeypatch.setattr(history, "MAX_HISTORY_ROWS", 6)
    assert (await Histories({"": ours}).told(None)).left_out
