"""Demand and load of an owner who has some of HoreKa's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.slurm.capacity import owner_demands, owner_load
from adapters.slurm.records import SlurmJob, SlurmNode
from adapters.slurm.settings import SlurmOwnerConfig
from provisioner.model import Node, OwnerDemand, OwnerLoad
from tests.slurm.test_capacity import A100, H100, H100_NODE, NODE, NOW, listed

BOTH = ("accelerated", "owners")
CLUSTER = (*(replace(NODE, name=f"hkn080{n}", partitions=BOTH) for n in (1, 2, 3)), H100_NODE)
WHO: Any = {"user": "anna", "account": "etp", "partition": "owners", "qos": "normal"}
SIZE: Any = {"cpus": 8, "memory_mib": 20480, "gpus": {"a100": 1}}
JOB = SlurmJob("100", "train", "PENDING", reason="Resources", submitted_at=NOW - 60, **WHO, **SIZE)
ONE = OwnerDemand(1, 1000, 8, 20480, NOW - 60, nodes=("hkn0801", "hkn0802", "hkn0803"), who="anna")


def view(cluster: Sequence[SlurmNode] = CLUSTER) -> tuple[Node, ...]:
    return listed(cluster, (A100, H100), owner={"partitions": ["owners"]})


def wanted(
    *jobs: SlurmJob, cluster: Sequence[SlurmNode] = CLUSTER, **more: Any
) -> tuple[OwnerDemand, ...]:
    return owner_demands(
        jobs, cluster, view(cluster), SlurmOwnerConfig(partitions=["owners"], **more)
    )


def claim(job: SlurmJob, **more: Any) -> OwnerDemand:
    [found] = wanted(job, **more)
    return found


RESERVED = (
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
)


@pytest.mark.parametrize(
    ("reason", "demands"),
    [
        *((plain, (ONE,)) for plain in ("", "Priority", "(Resources)", RESERVED)),
        *((limit, ()) for limit in ("QOSMaxJobsPerUserLimit", "JobHeldUser")),
        *((other, ()) for other in ("Dependency", "BeginTime", "Licenses")),
        *((never, ()) for never in ("PartitionTimeLimit", "SomethingNew")),
    ],
)
def test_only_a_job_that_leaving_drones_help_is_a_demand(
    reason: str, demands: tuple[OwnerDemand, ...]
) -> None:
    assert wanted(replace(JOB, reason=reason)) == demands


def test_drones_and_jobs_of_others_are_none() -> None:
    ours = replace(JOB, name="kit-a1b2-7.a100.horeka")
    elsewhere = replace(JOB, partition="accelerated-h100")
    assert wanted(ours, elsewhere, replace(JOB, state="RUNNING")) == ()
    assert wanted(JOB, accounts=["theory"]) == ()
    assert wanted(JOB, accounts=["etp"], qos=["normal"], users=["anna"]) == (ONE,)


def test_jobs_alike_are_one_claim_since_the_first_of_them() -> None:
    jobs = [replace(JOB, remote_id=str(n), submitted_at=NOW - n) for n in (5, 90, 30)]
    assert wanted(*jobs) == (replace(ONE, count=3, since=NOW - 90),)


def test_a_job_of_several_nodes_counts_once_for_each() -> None:
    whole = replace(JOB, node_count=3, cpus=152, memory_mib=500_000, gpus={"a100": 4})
    found = claim(whole)
    assert (found.count, found.gpu_milli, found.cpus) == (3, 4000, 152)
    assert wanted(replace(whole, node_count=4)) == ()


def test_required_nodes_and_closed_nodes() -> None:
    assert claim(replace(JOB, required_nodes=("hkn0802",))).nodes == ("hkn0802",)
    drained = (replace(CLUSTER[0], flags=frozenset({"DRAIN"})), *CLUSTER[1:])
    # no drone leaves a drained node for him
    assert claim(JOB, cluster=drained).nodes == ("hkn0802", "hkn0803")


@pytest.mark.parametrize(
    ("gpus", "fits"),
    [
        ({"": 4}, True),
        ({"": 5}, False),
        ({"h100": 1}, False),
        ({"a100": 2, "": 2}, True),
        ({}, True),
    ],
)
def test_gpus_are_of_a_type_or_of_any(gpus: dict[str, int], fits: bool) -> None:
    assert bool(wanted(replace(JOB, gpus=gpus))) is fits


def test_the_load_of_the_owners_running_jobs_on_our_nodes() -> None:
    runs = replace(JOB, state="RUNNING")
    jobs = [
        replace(runs, nodes=("hkn0801",)),
        replace(runs, nodes=("hkn0802", "hkn0803", "elsewhere"), node_count=3, gpus={"a100": 4}),
        replace(runs, nodes=("elsewhere",)),
        replace(runs, nodes=("hkn0801",), name="kit-a1b2-7.a100.horeka"),
        JOB,
    ]
    assert owner_load(jobs, view(), SlurmOwnerConfig(partitions=["owners"])) == OwnerLoad(
        2, 9000, 24, 3 * 20480
    )
