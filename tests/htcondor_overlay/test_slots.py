"""Startd ads become slots of our drones; an ad is written by whoever has a drone's token."""

from __future__ import annotations

from dataclasses import replace

import classad2
import pytest

from adapters.htcondor.overlay.slots import SlotsView, slots_view
from provisioner.model import JobClass, Sharing, Slot, SlotState
from provisioner.planner.matching import count_jobs, free_resources
from tests.htcondor_overlay.jobs import ad_of, exprs
from tests.planner.scenes import A100

REAL = exprs(
    """
    DroneId = "kit-a-1"; SiteName = "topas"; DroneType = "a100"; Name = "slot1@kit-a-1@node7.example.org";
    SlotType = "Partitionable"; SlotID = 1; State = "Unclaimed"; Activity = "Idle"; ChildState = {};
    NumDynamicSlots = 0; NumDynamicSlotsTime = 940; Cpus = 8; Memory = 20480; Disk = 1048576; GPUs = 1;
    TotalSlotGPUs = 1; DroneShares = 1; LastHeardFrom = 1001; MyCurrentTime = 1000; JobStarts = 0;
    EnteredCurrentState = 900; Start = (TARGET.RequestGPUs ?: 0) >= 1 && MY.DroneHealthy isnt false;
    DaemonStartTime = 890; GPUs_DeviceName = "A100-SXM4-40GB"; GPUs_GlobalMemoryMb = 40536; GPUs_Capability = 8.0;
    DroneRetiresAt = 9000
    """
)


def ad(**attributes: str) -> classad2.ClassAd:
    return ad_of(REAL, attributes)


def seen(*ads: classad2.ClassAd) -> SlotsView:
    return slots_view(ads, "kit", lambda theirs: theirs)


def only(**attributes: str) -> Slot:
    found = seen(ad(**attributes))
    assert found.notices == ()
    return found.slots[0]


def test_an_idle_drone() -> None:
    slot = only()
    assert (slot.drone_id, slot.state, slot.jobs, slot.jobs_started) == (
        "kit-a-1",
        SlotState.IDLE,
        0,
        0,
    )
    assert (slot.free_gpu_milli, slot.free_cpus, slot.free_memory_mib, slot.free_disk_mib) == (
        1000,
        8,
        20480,
        1024,
    )
    assert (slot.gpu_model, slot.vram_mib, slot.capability) == ("A100-SXM4-40GB", 40536, 80)
    assert (slot.heard_at, slot.idle_since, slot.retires_at) == (1001.0, 941.0, 9000.0)


def test_the_end_of_a_drones_life_is_turned_to_our_clock_and_stays_the_same_from_ad_to_ad() -> None:
    ends = {
        only(MyCurrentTime=str(4600 + n), DroneRetiresAt="12600").retires_at for n in range(-5, 6)
    }
    assert ends == {9000.0}, "the worker node's clock is an hour ahead"
    assert only(MyCurrentTime="1020", DroneRetiresAt="9000").retires_at == 9000.0
    strange = ad(MyCurrentTime="500000", NumDynamicSlotsTime="499940")
    (slot,) = slots_view([strange], "kit", lambda theirs: theirs - 100).slots
    assert (slot.heard_at, slot.idle_since) == (901.0, 841.0)


@pytest.mark.parametrize(
    ("attributes", "state", "jobs"),
    [
        ({"ChildState": '{"Claimed"}', "NumDynamicSlots": "1"}, SlotState.BUSY, 1),
        ({"ChildState": '{"Claimed","Claimed"}', "Activity": '"Idle"'}, SlotState.BUSY, 2),
        ({"SlotType": '"Static"', "State": '"Claimed"', "Activity": '"Idle"'}, SlotState.BUSY, 1),
        (
            {"State": '"Drained"', "Activity": '"Retiring"', "ChildState": '{"Claimed"}'},
            SlotState.DRAINING,
            1,
        ),
        ({"DroneDraining": "true"}, SlotState.DRAINING, 0),
        ({"DroneHealthy": "false"}, SlotState.CHECKING, 0),
        ({"DroneStrayVram": "400"}, SlotState.CHECKING, 0),
        ({"DroneStrayVram": "0"}, SlotState.IDLE, 0),
        ({"DroneReady": "false"}, SlotState.CHECKING, 0),
        ({"Start": "false"}, SlotState.CHECKING, 0),
        ({"DroneHealthy": "undefined", "DroneReady": "error"}, SlotState.IDLE, 0),
    ],
)
def test_states(attributes: dict[str, str], state: SlotState, jobs: int) -> None:
    slot = only(**attributes)
    assert (slot.state, slot.jobs) == (state, jobs)
    assert (slot.idle_since > 0) is (jobs == 0)


def test_what_is_no_drone_id_is_ignored_and_told() -> None:
    names = [
        "x; rm -rf /",
        "",
        "Kit-1",
        "kit-1\n",
        "-kit",
        "kit-" + "x" * 60,
        "../kit-1",
        "kit-1@x",
        "кит-1",
    ]
    found = seen(*(ad(DroneId=classad2.quote(name)) for name in names), ad())
    assert [slot.drone_id for slot in found.slots] == ["kit-a-1"]
    assert len(found.notices) == len(names) and all(line.isprintable() for line in found.notices)
    for text in ("3", "undefined", "error", "{}", 'strcat("kit-", 1/0)'):
        assert seen(ad(DroneId=text)).slots == ()


def test_of_two_startds_with_one_id_the_newest_counts() -> None:
    found = seen(ad(LastHeardFrom="2000", DaemonStartTime="1500", Cpus="3"), ad(Cpus="5"))
    assert [slot.free_cpus for slot in found.slots] == [3]
    assert found.notices == ("drone kit-a-1: 1 older slots under its id ignored",)
    others = seen(ad(DroneId='"kitchen-1"'), ad(DroneId='"kit"'))
    assert others.slots == others.notices == () and len(others.remarks) == 1


def test_a_slot_per_gpu_makes_one_drone() -> None:
    found = seen(
        ad(
            SlotID="2",
            Name='"slot2@kit-a-1@n"',
            ChildState='{"Claimed"}',
            GPUs="0",
            Cpus="1",
            JobStarts="4",
        ),
        ad(JobStarts="4"),
    )
    (slot,) = found.slots
    assert (slot.state, slot.jobs, slot.jobs_started, slot.idle_since) == (
        SlotState.BUSY,
        1,
        4,
        0.0,
    )
    assert (slot.free_gpu_milli, slot.free_cpus) == (1000, 9)
    assert slot.name.startswith("slot1@")


@pytest.mark.parametrize(
    ("there", "shares", "left", "free_milli"),
    [
        (1, 4, 1, 250),
        (1, 3, 2, 667),
        (1, 3, 0, 1),  # what rounding leaves: no share
        (2, 7, 10, 1432),
        (2, 1, 1, 1000),
    ],
)
def test_what_is_free_of_shared_gpus(there: int, shares: int, left: int, free_milli: int) -> None:
    attributes = {
        "GPUs": f"{left}",
        "TotalSlotGPUs": f"{there * shares}",
        "DroneShares": f"{shares}",
    }
    assert only(**attributes).free_gpu_milli == free_milli
    kind = replace(
        A100,
        gpu_milli=there * 1000,
        sharing=Sharing.MPS,
        shares=shares,
        cpus=1000,
        memory_mib=1 << 30,
    )
    slot = replace(only(**attributes, Cpus="1000", Memory="1000000"), free_disk_mib=0)
    assert (
        count_jobs(JobClass("c", 1, 1, 1, splits=False), free_resources(slot), kind) == left
        if shares > 1
        else 1
    )


@pytest.mark.parametrize(
    ("left_mib", "free_milli"), [("40000", 1000), ("4000", 100), ("39", 0), ("80000", 1000)]
)
def test_what_is_free_of_a_pool_of_vram(left_mib: str, free_milli: int) -> None:
    pool = {
        "GPUs": "8",
        "TotalSlotGPUs": "8",
        "DroneShares": "8",
        "TotalSlotGPUMem": "40000",
        "GPUMem": left_mib,
    }
    assert only(**pool).free_gpu_milli == free_milli


@pytest.mark.parametrize(
    ("shares", "left", "free_milli"), [(1, 5, 5000), (2, 10, 5000), (4, 28, 7000), (4, 0, 0)]
)
def test_gpus_that_are_offline_are_not_free(shares: int, left: int, free_milli: int) -> None:
    """HTCondor leaves an offline GPU in TotalSlotGPUs, and takes it out of GPUs and TotalGPUs."""
    total = {
        "TotalSlotGPUs": f"{8 * shares}",
        "TotalGPUs": f"{7 * shares}",
        "DroneGpusOffline": "1",
    }
    slot = only(DroneShares=f"{shares}", GPUs=f"{left}", **total)
    assert (slot.free_gpu_milli, slot.gpus_offline) == (free_milli, 1)


@pytest.mark.parametrize(("left", "free_milli"), [(1, 500), (0, 0)])
def test_a_part_of_a_gpu_is_no_whole_one(left: int, free_milli: int) -> None:
    (half,) = seen(ad(DroneGpuMilli="500", GPUs=f"{left}")).drones
    assert (half.device_milli, half.slot.free_gpu_milli) == (500, free_milli)


def test_shares_of_nonsense_are_none() -> None:
    for shares in ("0", "-3", "true", '"x"', "1e300"):
        assert 0 <= only(DroneShares=shares).free_gpu_milli <= 1000
    (quarters,) = seen(ad(DroneShares="4", TotalSlotGPUs="4", GPUs="4")).drones
    assert (quarters.device_milli, seen(ad()).drones[0].device_milli) == (250, 1000)


def test_nonsense_numbers_are_zero() -> None:
    nonsense = exprs(
        """
        Cpus = real("NaN"); Memory = -5; Disk = undefined; GPUs = 1e400; LastHeardFrom = "now"; JobStarts = -1;
        MyCurrentTime = error; NumDynamicSlotsTime = {}; GPUs_Capability = real("INF"); DroneRetiresAt = "never";
        GPUs_GlobalMemoryMb = 99999999999999999; ChildState = {1, undefined, error, "Claimed"}
        """
    )
    slot = only(**nonsense)
    assert (slot.free_cpus, slot.free_memory_mib, slot.free_disk_mib, slot.free_gpu_milli) == (
        0,
        0,
        0,
        0,
    )
    assert (slot.heard_at, slot.idle_since, slot.retires_at, slot.jobs_started) == (
        0.0,
        0.0,
        0.0,
        0,
    )
    assert (slot.capability, slot.vram_mib, slot.jobs) == (0, 0, 1)


def test_strings_of_a_megabyte_are_cut() -> None:
    blob = classad2.quote("\x07" * 1_000_000)
    slot = only(Name=blob, GPUs_DeviceName=blob, SiteName=blob, State=blob)
    assert len(slot.name) <= 200 and slot.name.isprintable() and len(slot.gpu_model) <= 80
    found = seen(*[ad(DroneId=blob, Name=blob)] * 1000)
    assert len(found.notices) == 20 and "and 981 more oddities" in found.notices[-1]
    assert all(len(line) < 300 for line in found.notices)
