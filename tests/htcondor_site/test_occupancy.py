"""What the queue says and what the slots say are a moment apart; together they tell one truth."""

from __future__ import annotations

from dataclasses import replace

import classad2

from adapters.htcondor.classads import Ad
from adapters.htcondor.site.listing import list_drones
from adapters.htcondor.site.nodes import (
    PoolMachine,
    SlotResources,
    carved,
    corrections,
    machines_of,
    nodes,
)
from adapters.htcondor.site.owner import dynamic_slots, group_jobs, without_matched
from provisioner.model import DroneId, DroneType, EndKind, RemoteDrone, RemoteEnd, RemoteState
from tests.htcondor_site.slot_ads import NOW, pslot

NODE = "topas-a100-1.etp.test"
A100 = DroneType("topas", "a100", 1000, 8, 20480, 0)
SHAPES = {"a100": SlotResources(1, 8, 20480, 0)}


def children(
    *slots: tuple[int, str, str, str], gpus: int = 8, entered_s_ago: int = 60
) -> tuple[PoolMachine, ...]:
    """The node with slots carved from it: number, state, activity, user; one GPU, 8 CPUs, 20 GiB each."""
    names = ",".join(f'"slot1_{n}@{NODE}"' for n, *_ in slots)
    more = f"NumDynamicSlots = {len(slots)}\nChildName = {{ {names} }}\n"
    for name, at in (("State", 1), ("Activity", 2), ("RemoteUser", 3)):
        more += f"Child{name} = {{ {','.join(repr(s[at]).replace(chr(39), chr(34)) for s in slots)} }}\n"
    amounts = {
        "GPUs": 1,
        "Cpus": 8,
        "Memory": 20480,
        "Disk": 1024,
        "EnteredCurrentState": NOW - entered_s_ago,
    }
    for name, amount in amounts.items():
        more += f"Child{name} = {{ {','.join([str(amount)] * len(slots))} }}\n"
    left = (gpus - len(slots), 192 - 8 * len(slots), 1048576 - 20480 * len(slots))
    return machines_of([pslot(free=left, more=more)], NOW - 900)


def drone(
    number: int, state: RemoteState = RemoteState.RUNNING, ended_at: float = 0.0
) -> RemoteDrone:
    end = RemoteEnd(EndKind.PREEMPTED, ended_at) if ended_at else None
    slot = f"slot1_{number}@{NODE}"
    return RemoteDrone(
        DroneId(f"kit-{number}"), state, f"{number}.0", "a100", end=end, node=NODE, slot=slot
    )


def free_gpus(
    site: tuple[PoolMachine, ...],
    *drones: RemoteDrone,
    owners: tuple[tuple[str, SlotResources], ...] = (),
) -> int:
    [node] = nodes(site, [A100], {}, corrections(site, drones, SHAPES, owners, {"grid@site"}, NOW))
    return node.free_gpu_milli // 1000


def test_slots_and_queue_that_agree_need_no_correction() -> None:
    site = children((1, "Claimed", "Busy", "grid@site"))
    assert carved(site) == {NODE: frozenset({f"slot1_1@{NODE}"})}
    assert corrections(site, [drone(1)], SHAPES) == {}
    assert free_gpus(site, drone(1)) == 7


def test_who_runs_in_a_slot_not_told_of_yet_holds_its_gpu() -> None:
    site = children((1, "Claimed", "Busy", "grid@site"))
    assert free_gpus(site, drone(1), drone(2), drone(3)) == 5
    assert free_gpus(children(), drone(1)) == 7, "nor if no slot was carved at all"
    assert free_gpus(children(), owners=((f"slot1_4@{NODE}", SlotResources(3, 24, 61440)),)) == 5, (
        "an owner's job"
    )
    full = children(*((n, "Claimed", "Busy", "grid@site") for n in range(1, 8)))
    assert free_gpus(full, drone(8), drone(9), drone(10)) == 0


def test_the_slot_of_an_ended_drone_is_free_if_it_is_our_users_and_not_for_long() -> None:
    """Whether it began before or after the end are two clocks' words."""
    for user, ended_s_ago, entered_s_ago, free in (
        ("grid@site", 1, 300, 8),
        ("grid@site", 61, 300, 7),
        ("x@etp", 1, 300, 7),
        ("grid@site", 30, 10, 7),  # one of that name that began later is somebody else's
    ):
        site = children((1, "Claimed", "Busy", user), entered_s_ago=entered_s_ago)
        assert free_gpus(site, drone(1, RemoteState.ENDED, NOW - ended_s_ago)) == free, (
            user,
            ended_s_ago,
        )


def test_the_last_drone_of_several_in_one_slot_tells_when_it_became_free() -> None:
    first, last = (drone(1, RemoteState.ENDED, NOW - ended_s_ago) for ended_s_ago in (400, 5))
    first = replace(first, drone_id=DroneId("kit-0"))
    site = children((1, "Claimed", "Busy", "grid@site"), entered_s_ago=100)
    assert free_gpus(site, first, last) == free_gpus(site, last, first) == 8


def test_a_node_that_does_not_name_its_slots_is_taken_at_its_word() -> None:
    site = machines_of([pslot(free=(5, 100, 500_000), more="NumDynamicSlots = 3")], NOW - 900)
    assert site[0].carved is None and carved(site) == {}
    assert free_gpus(site, drone(1)) == 5


def test_a_removed_job_whose_slot_is_gone_is_gone_whatever_its_lease_says() -> None:
    ad = classad2.ClassAd(
        {
            "ClusterId": 1,
            "ProcId": 0,
            "JobStatus": 3,
            "DroneId": "kit-1",
            "DroneType": "a100",
            "DroneGraceS": 10,
        }
        | {
            "RemoteHost": f"slot1_1@{NODE}",
            "EnteredCurrentStatus": NOW - 3,
            "ServerTime": NOW,
            "NumJobStarts": 1,
        }
        | {"RemoveReason": "provisioner: asked to leave"}
    )
    there = carved(children((1, "Preempting", "Vacating", "grid@site")))
    gone = carved(children())
    assert (
        list_drones([ad], "kit", {}, NOW, there).drones[DroneId("kit-1")].state
        is RemoteState.RUNNING
    )
    assert (
        list_drones([ad], "kit", {}, NOW, gone).drones[DroneId("kit-1")].state is RemoteState.ENDED
    )


def job(number: int, user: str = "student@etp", gpus: int = 1) -> Ad:
    return classad2.ClassAd(
        {
            "ClusterId": number,
            "ProcId": 0,
            "JobStatus": 1,
            "User": user,
            "QDate": NOW - 100 + number,
        }
        | {"RequestGPUs": gpus, "RequestCpus": 4, "RequestMemory": 4096}
    )


def test_an_owners_job_that_has_its_slot_already_claims_no_more_room() -> None:
    """Its slot is claimed and idle until its files are there; the queue still says idle."""
    site = children((1, "Claimed", "Idle", "student@etp"), (2, "Claimed", "Busy", "student@etp"))
    assert waiting(site, job(1), job(2), job(3)) == [2, 3], (
        "one slot waits for its job, and the oldest job has it"
    )
    assert waiting(site, job(1, "other@etp"), job(2, gpus=2)) == [1, 2], "not theirs; too small"
    assert waiting(site, job(1, gpus=2), job(2), job(3, gpus=2)) == [1, 3]


def test_of_a_queue_that_is_silent_those_jobs_are_left_out_that_have_begun_since() -> None:
    before = dynamic_slots(children((1, "Claimed", "Busy", "student@etp")))
    now = children(
        *(
            (n, "Claimed", "Busy", user)
            for n, user in enumerate(("student@etp",) * 3 + ("grid@site",), 1)
        )
    )
    assert waiting(now, job(1), job(2), job(3), before=before) == [3]
    assert waiting(now, job(1), job(2), job(3)) == [1, 2, 3], "a queue that answers knows it itself"


def test_the_slot_of_a_job_that_has_just_begun_is_for_no_other_job() -> None:
    """Its ad is older than the queue's answer."""
    site = children((1, "Claimed", "Idle", "student@etp"), (2, "Claimed", "Idle", "student@etp"))
    began = classad2.ClassAd({**job(1), "JobStatus": 2, "RemoteHost": f"slot1_1@{NODE}"})
    assert waiting(site, began, job(2), job(3)) == [3]


def test_a_matched_job_whose_slot_is_not_named_yet_waits() -> None:
    """HTCondor 25.14 calls it running before its shadow starts; its place may still look free."""
    matched = classad2.ClassAd({**job(1), "JobStatus": 2})
    assert waiting(children(), matched, job(2)) == [1, 2]
    assert waiting(children((1, "Claimed", "Idle", "student@etp")), matched, job(2)) == [2], (
        "by its ad it has one"
    )
    parallel = classad2.ClassAd({**job(1), "JobStatus": 2, "JobUniverse": 11})
    assert waiting(children(), parallel) == [], "it runs on several machines"


def waiting(
    site: tuple[PoolMachine, ...], *jobs: Ad, before: frozenset[tuple[str, float]] | None = None
) -> list[int]:
    """Numbers of the jobs that still claim room."""
    queue = group_jobs(jobs, now=NOW)
    left = without_matched(queue.groups, site, {slot for slot, _ in queue.running}, before)
    return sorted(int(at) - NOW + 100 for group in left for at in group.submitted)
