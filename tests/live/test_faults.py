"""What goes wrong in a real pool: drones that die at once, forged ads, hostile jobs, a controller that is killed."""

from __future__ import annotations

import pytest

from tests.labs.controller import SMALL, LabController
from tests.labs.htcondor import Pool, gpu_job, until

pytestmark = pytest.mark.timeout(840)


def test_a_drone_that_dies_at_once_slows_its_type_and_says_so(
    lab: tuple[Pool, LabController],
) -> None:
    pool, controller = lab
    controller.sites = (SMALL,)
    controller.condor_prefix = "/nonexistent"
    controller.start()
    job = pool.submit(gpu_job(1))

    def banned() -> str:
        note = str(controller.site_row()["note"])
        return note if "small/v100 banned" in note else ""

    note = until(banned, 120, what="`sites` says that the type is banned", every_s=0.5)
    assert "no-condor: there is no condor_master below /nonexistent" in note, note
    tried = controller.drones()
    assert [d["state"] for d in tried] == ["failed"] * 3, "three in a row, one at a time"
    controller.ticks(10)
    assert {d["id"] for d in controller.drones()} == {d["id"] for d in tried}, (
        "and no more while it is banned"
    )

    [waits] = controller.json("demand")["items"]
    assert "small/v100 is not used until" in waits["why"] and "no condor_master" in waits["why"], (
        waits
    )
    shown = controller.call("drones", "show", tried[0]["id"]).stdout
    assert "74" in shown and "condor_master" in shown, shown
    told = controller.call("explain", "job", f"{job}.0").stdout
    assert "small/v100" in told, told
    until(lambda: not controller.processes(), what="no process on the host")
    assert pool.statuses(job) == [1]


FORGED = """\
MyType = "Machine"
Name = "{name}"
Machine = "host"
MyAddress = "<127.0.0.1:1>"
SlotType = "Partitionable"
State = "Unclaimed"
Activity = "Idle"
Start = true
Requirements = false
SiteName = "small"
DroneType = "v100"
DroneId = "{drone}"
{more}
"""

# Cpus, which weigh a slot, are left sensible: a NaN there ends all matching in the pool, which is
# HTCondor's affair.
NONSENSE = """\
Cpus = 0
Memory = 9223372036854775807
Disk = -9223372036854775808
GPUs = 1e308
JobStarts = 9223372036854775807
MyCurrentTime = -1e308
NumDynamicSlots = 9223372036854775807
DaemonStartTime = 1e400
GPUs_Capability = real("INF")
GPUs_DeviceName = "\udcff\udcfe"
DroneRetiresAt = 1e300
"""


def test_forged_slots_and_hostile_jobs_are_told_and_nothing_more(
    lab: tuple[Pool, LabController],
) -> None:
    """Whoever has a drone's token can advertise what he likes, and whoever may submit can write what he likes."""
    pool, controller = lab
    # `check --live` starts a process for its look, on a busy host slowly
    controller.options = {"deadline": "10s"}
    controller.start()
    canary = pool.file("canary")
    shell = f"touch {canary}"
    forged = {
        "x; rm -rf /": "",
        f"$({shell})": "",
        f"{controller.name}-`{shell}`": "",
        f"{controller.name}-forged-1": NONSENSE,
        f"{controller.name}-forged-2": f'GPUs_DeviceName = "{"y" * 1_000_000}"',
        "other-1": 'SiteName = "K\udcf6ln"',
    }

    def advertise() -> None:
        for at, (drone, more) in enumerate(forged.items()):
            name = f"slot{at}@x; {shell}; `{shell}`@$({shell})"
            pool.advertise(FORGED.format(name=name, drone=drone, more=more), identity="drone")

    advertise()
    hostile = [
        pool.submit(gpu_job(1, more=more))
        for more in (
            f'+AcctGroup = "x; {shell}; \'$({shell})`{shell}`"\nrequire_gpus = Capability >= 9.9',
            "+RequestMemory = 1e308",
            "+JobPrio = 1e300\n+QDate = -1e308\nrequire_gpus = GlobalMemoryMb >= 1e308",
            '+AllowedJobDuration = real("NaN")\nrequirements = TARGET.No == "\\x1b[2J\u202e" && false',
        )
    ]
    honest = pool.submit(gpu_job(1, n=2))

    until(lambda: not pool.jobs(honest), 120, what="honest jobs are done all the same", every_s=0.5)
    advertise()  # the pool forgets them in half a minute
    controller.ticks(3)
    assert len(pool.slots('Machine == "host"')) == len(forged)
    assert not controller.overlay()["fault"]
    told = controller.json("check", "--live")["items"]
    overlay = next(each["text"] for each in told if each["view"] == "overlay")
    assert "'x; rm -rf /' is not a drone id" in overlay, overlay
    for words in (
        ("status",),
        ("demand",),
        ("sites",),
        ("drones", "--all"),
        ("events",),
        ("plan",),
    ):
        assert not {"\x1b", "\u202e"} & set(controller.prints(*words)), words
    assert len(controller.json("demand")["items"]) >= len(hostile)
    assert {d["type"] for d in controller.drones()} <= {"small/v100", "big/a100"}
    assert not any("forged" in d["id"] for d in controller.drones())
    assert not canary.exists(), "nothing of it was carried out"
    assert "Traceback" not in controller.log()
    assert all(status == 1 for cluster in hostile for status in pool.statuses(cluster))


def test_a_killed_controller_finds_its_drones_again(lab: tuple[Pool, LabController]) -> None:
    pool, controller = lab
    controller.idle_s = 600
    controller.start()
    flag = pool.file("enough")
    job = pool.submit(gpu_job(n=2, until_there=flag))
    until(lambda: pool.statuses(job) == [2, 2], 120, what="two jobs run")
    controller.settles({"busy": 2})
    drones = {d["id"]: d["remote_id"] for d in controller.drones()}
    masters = {pid for pid, command in controller.processes().items() if "condor_master" in command}
    assert len(masters) >= 2

    controller.kill()
    more = pool.submit(gpu_job(1))  # comes while nobody looks
    controller.start(write=False)
    controller.ticks(3)
    until(lambda: not pool.jobs(more), 120, what="the new job is done")
    assert pool.statuses(job) == [2, 2], "the old ones go on"
    live = {d["id"]: d["remote_id"] for d in controller.live()}
    assert drones.items() <= live.items(), "the same drones"
    assert len(live) == 3 and len(controller.drones()) == 3, "one more for the new job, none twice"
    assert masters <= controller.processes().keys(), "the same processes"

    flag.touch()
    flag.chmod(0o644)
    until(lambda: not pool.jobs(job), 60, what="the old jobs are done")
    assert [(ad["JobStatus"], ad["NumJobStarts"]) for ad in pool.history(job)] == [
        (4, 1),
        (4, 1),
    ], "started once"
