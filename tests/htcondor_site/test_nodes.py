"""What slot ads say of a node: its size, its room, the drone types it could host, and what is being taken back."""

from __future__ import annotations

import classad2
import pytest

from adapters.htcondor.classads import Ad, holds
from adapters.htcondor.site.nodes import NOTICE_CONSTRAINT, machines_of, nodes, notices
from provisioner.model import DroneType
from tests.htcondor_site.slot_ads import A100, NOW, V100, V100S, dynamic, pslot


def kind(name: str = "a100", **more: object) -> DroneType:
    shape: dict[str, object] = {
        "gpu_milli": 1000,
        "cpus": 8,
        "memory_mib": 20480,
        "disk_mib": 51200,
        **more,
    }
    return DroneType(site="topas", name=name, **shape)  # type: ignore[arg-type]


A100_TYPE = kind("a100", gpu_model="A100-SXM4-40GB", vram_mib=40 * 1024, capability=80)
V100S_TYPE = kind("v100s", gpu_model="V100S", vram_mib=32 * 1024, capability=70)
V100_TYPE = kind("v100", gpu_model="V100", capability=70, cpus=6)
CPU_TYPE = kind("cpu", gpu_milli=0)


def types_of(ad: Ad, *types: DroneType, **requirements: str) -> tuple[str, ...]:
    [node] = nodes(machines_of([ad], 0), types, requirements)
    return node.types


def test_a_node_is_all_of_its_slots_and_what_is_left_of_them() -> None:
    machine = "topas-a100-1.etp.test"
    ads = [pslot(machine, free=(6, 176, 1007616)), dynamic(machine, 1), dynamic(machine, 2)]
    [node] = nodes(machines_of(ads, 0), [A100_TYPE, V100S_TYPE, CPU_TYPE], {})
    assert (node.name, node.types) == (machine, ("a100", "cpu"))
    assert (node.gpu_milli, node.cpus, node.memory_mib, node.disk_mib) == (
        8000,
        192,
        1048576,
        4_000_000,
    )
    assert (node.free_gpu_milli, node.free_cpus, node.free_memory_mib) == (6000, 176, 1007616)


def test_an_amd_drone_does_not_fit_gpus_with_a_capability() -> None:
    amd = kind("mi250", vendor="amd", target="gfx90a")
    assert types_of(pslot("topas-a100-1.etp.test"), amd, A100_TYPE) == ("a100",)


def test_static_slots_are_free_when_nobody_claims_them() -> None:
    def static(number: int, state: str) -> Ad:
        ad = pslot("old.etp.test", gpus=1, cpus=8, memory_mib=32768)
        ad["Name"], ad["SlotType"], ad["PartitionableSlot"] = (
            f"slot{number}@old.etp.test",
            "Static",
            False,
        )
        ad["State"] = state
        return ad

    [node] = nodes(
        machines_of([static(1, "Claimed"), static(2, "Unclaimed"), static(3, "Owner")], 0),
        [CPU_TYPE],
        {},
    )
    assert (node.gpu_milli, node.cpus, node.memory_mib) == (3000, 24, 3 * 32768)
    assert (node.free_gpu_milli, node.free_cpus, node.free_memory_mib) == (1000, 8, 32768)
    assert types_of(static(1, "Claimed"), kind("wide", cpus=16)) == ()  # no drone spans two slots


@pytest.mark.parametrize(
    "sign", ['State = "Owner"', "Offline = true", "Draining = true", 'Activity = "Retiring"']
)
def test_a_node_that_takes_no_jobs_has_its_size_and_no_room(sign: str) -> None:
    [node] = nodes(machines_of([pslot(more=sign)], 0), [A100_TYPE], {})
    assert (node.gpu_milli, node.free_gpu_milli, node.free_cpus) == (8000, 0, 0)


def test_a_slot_is_alive_by_when_it_was_heard_not_by_being_listed() -> None:
    old = pslot("gone.etp.test", more=f"LastHeardFrom = {NOW - 1000}")
    again = pslot("here.etp.test", free=(1, 8, 4096), more=f"LastHeardFrom = {NOW - 50}")
    found = machines_of([again, old, pslot("here.etp.test")], NOW - 900)
    assert [(host.name, host.free.gpus) for host in found] == [("here.etp.test", 8)]


@pytest.mark.parametrize(
    ("gpu", "wanted"), [(V100S, ("v100s",)), (V100, ("v100",))], ids=["V100S", "V100"]
)
def test_models_that_differ_by_a_letter_are_told_apart(
    gpu: tuple[str, int, float], wanted: tuple[str, ...]
) -> None:
    assert types_of(pslot(gpu=gpu), A100_TYPE, V100S_TYPE, V100_TYPE) == wanted
    mixed = pslot(gpu=A100, gpus=2, others=(gpu,) * 2, free=(0, 4, 512))
    two, three = (kind(f"{n}-a100", gpu_milli=n * 1000, gpu_model="A100") for n in (2, 3))
    assert types_of(mixed, A100_TYPE, V100S_TYPE, V100_TYPE, two, three) == (
        "a100",
        *wanted,
        "2-a100",
    )


def test_every_dimension_can_rule_a_node_out() -> None:
    limits = {
        "vram_mib": 80 * 1024,
        "capability": 90,
        "cpus": 193,
        "memory_mib": 1048577,
        "disk_mib": 4_000_001,
    }
    for name, value in {**limits, "arch": "aarch64", "gpu_milli": 9000}.items():
        assert types_of(pslot(), kind("fits"), kind("not", **{name: value})) == ("fits",), name


def test_what_a_node_does_not_tell_refuses_nothing() -> None:
    silent = classad2.parseOne(
        f'Name = "slot1@x"\nMachine = "x"\nSlotType = "Partitionable"\nState = "Unclaimed"\nLastHeardFrom = {NOW}\n'
        "Cpus = 32\nMemory = 65536\nDisk = 104857600\nGPUs = 2\n",
        classad2.ParserType.Old,
    )
    assert types_of(silent, A100_TYPE) == ("a100",)


def test_the_admins_requirements_are_read_as_htcondor_reads_them() -> None:
    ad = pslot(more='GpuClass = "a100"')
    assert types_of(ad, A100_TYPE, a100='TARGET.GpuClass == "a100"') == ("a100",)
    assert types_of(ad, A100_TYPE, a100='TARGET.GpuClass == "v100"') == ()
    # undefined is no match there either
    assert types_of(ad, A100_TYPE, a100="TARGET.HasCVMFS") == ()
    assert types_of(ad, A100_TYPE, a100="TARGET.Cpus - 184 >= RequestCpus") == ("a100",)


def test_slots_that_are_taken_back_are_told_with_the_time_by_our_clock() -> None:
    machine = "topas-a100-1.etp.test"
    ads = [
        dynamic(machine, 1),
        dynamic(machine, 2, "Preempting", "Vacating"),
        dynamic(machine, 3, "Claimed", "Retiring"),
        dynamic(
            machine,
            4,
            "Claimed",
            "Busy",
            'PreemptingOwner = "student@etp.test"\nPreemptingRank = 10.0',
        ),
    ]
    asked = [ad for ad in ads if holds(NOTICE_CONSTRAINT, ad, classad2.ClassAd())]
    # the node says that it began 7 s ago; the collector, 100 s ahead of us, heard that just now
    since = NOW - 7 - 100
    assert notices(asked, ahead_s=100) == {f"slot1_{n}@{machine}": since for n in (2, 3, 4)}
