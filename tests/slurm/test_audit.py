"""The audit of a Slurm site (`provisioner check --live`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.slurm.blocking import SlurmAudit
from adapters.slurm.capacity import resolve_types
from adapters.slurm.records import Partition, SlurmNode
from provisioner.model import DroneType, Reserve, SitePolicy
from tests.slurm.test_capacity import (
    A100,
    ACCELERATED,
    CPU,
    FULL,
    H100,
    H100_NODE,
    HOUR_S,
    NODE,
    PARTITIONS,
    WHOLE,
    config,
    printed,
)

POLICY = SitePolicy(site="horeka", grace_s=30)
CONF = {
    "KillWait": "30 sec",
    "MinJobAge": "300 sec",
    "PreemptType": "(null)",
    "PreemptMode": "OFF",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "SLURM_VERSION": "24.11.5",
}
BY_PARTITION = {**CONF, "PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
OWNERS = Partition("owners", nodes=("hkn0801",), tier=20, preempt_mode="OFF")
BACKFILL = Partition(
    "backfill", nodes=("hkn0801",), max_s=48 * HOUR_S, tier=1, grace_s=60, preempt_mode="CANCEL"
)


def audit(
    list_nodes: Sequence[SlurmNode] = (NODE, H100_NODE),
    partitions: Sequence[Partition] = PARTITIONS,
    configuration: Mapping[str, str] = CONF,
    policy: SitePolicy = POLICY,
    types: Sequence[DroneType] = (A100, FULL, H100),
    **more: Any,
) -> dict[tuple[str, str], str]:
    settings = config(**more)
    kinds = resolve_types(types, partitions, settings)
    found = SlurmAudit(list_nodes, partitions, configuration, policy, kinds, settings).gaps()
    told = {(gap.node, gap.dimension): gap.message for gap in found}
    assert len(told) == len(found), "one per node and dimension"
    return told


OWNED_NODE = replace(NODE, partitions=("owners", "backfill"))


def owned(
    partition: Partition = BACKFILL, configuration: Mapping[str, str] = BY_PARTITION
) -> dict[str, Any]:
    owner = {"owner": {"partitions": ["owners"]}, "partition": "backfill", "types": (A100,)}
    return {
        "list_nodes": (OWNED_NODE,),
        "partitions": (OWNERS, partition),
        "configuration": configuration,
        **owner,
    }


def blocked(
    node: SlurmNode = NODE, *partitions: Partition, cpus: int = 8, memory_mib: int = 20480
) -> dict[str, Any]:
    policy = replace(POLICY, blocking=(Reserve(cpus=cpus, memory_mib=memory_mib),))
    return {
        "list_nodes": (node,),
        "partitions": partitions or PARTITIONS,
        "policy": policy,
        "types": (A100,),
    }


KEEPS = replace(NODE, restricted_cores_per_gpu=4)
BESIDE = replace(KEEPS, partitions=("accelerated", "cpu"))
LIMITED = replace(ACCELERATED, max_memory_per_cpu_mib=3584)
CPU_ONLY = Partition("cpu", nodes=("hkn0801",), max_memory_per_cpu_mib=3584)
FORGETFUL = {**CONF, "MinJobAge": "10 sec"}
LONG = (ACCELERATED, replace(ACCELERATED, name="long", max_s=96 * HOUR_S))
WEEK = (replace(A100, walltime_s=72 * HOUR_S),)


@pytest.mark.parametrize(
    "cluster",
    [
        {},
        {
            "list_nodes": (replace(NODE, partitions=("accelerated", "long")),),
            "partitions": LONG,
            "types": WEEK,
        }
        | {"partition": "accelerated,long"},
        blocked(BESIDE, LIMITED, CPU_ONLY),  # the printed lines
        {"list_nodes": (KEEPS,), "types": (A100,)},
        owned(),
        owned(configuration={**CONF, "PreemptType": "preempt/qos"}),  # QOS decide, and are not seen
        {"configuration": FORGETFUL},  # accounting knows
    ],
)
def test_a_site_that_does_as_its_file_says_has_no_gap(cluster: Mapping[str, Any]) -> None:
    assert audit(**cluster) == {}


FOR_SEVERAL = printed("24.11", "MinNodes=0", "MinNodes=2")
WASTES = "a drone of type a100 gets the node as a whole and leaves GPUs or CPUs unused: write the size of the node"
ONE_NODE = "drones request one node and MinNodes is 2: use another partition"
MISSPELT = "no such partition (there are: accelerated, accelerated-h100)"
LARGE = (replace(A100, memory_mib=600_000),)
NO_MEMORY = (
    "no node could host one. Nearest is hkn0801: memory requested 600000 MiB, available 512000 MiB"
)
TOO_LONG = "lives 259200 s and MaxTime is 172800 s: it would wait forever or be rejected; write `walltime: 48h`"
NO_CPUS = "4 free GPUs keep 0 of 152 CPUs, requested 32: jobs without GPU may have the rest through accelerated; `prov"
NO_MIB = "keep 0 of 512000 MiB, requested 81920: jobs without GPU may have the rest through accelerated (MaxMem"
LOOSE = "4 free GPUs keep 80000 of 512000 MiB, requested 81920: jobs without GPU may have the rest through cpu ("
NOWHERE = replace(POLICY, blocking=(Reserve(nodes=("topas-*",), cpus=8),))
SHORT = "killed 5 s after SIGTERM (KillWait), `timeouts.grace` is 30 s"
GANG = "a preempted drone is suspended (PreemptMode=GANG,SUSPEND)"
SHORT_GRACE = "killed 16 s after SIGTERM, or 30 s later (GraceTime 6 s, KillWait 10 s)"
FORGETS = "slurmctld forgets a job 10 s after its end"

Gap = tuple[str, str, str]


@pytest.mark.parametrize(
    ("cluster", "gaps"),
    [
        ({"partition": "acelerated"}, [("acelerated", "partition", MISSPELT)]),
        ({"partitions": (WHOLE,), "types": (A100, FULL)}, [("hkn0801", "exclusive", WASTES)]),
        ({"types": (A100,), "submit": {"exclusive": True}}, [("hkn0801", "exclusive", WASTES)]),
        (
            {"partitions": (FOR_SEVERAL,), "types": (A100,)},
            [("accelerated", "partition", ONE_NODE)],
        ),
        ({"types": LARGE}, [("accelerated", "types", NO_MEMORY)]),
        ({"types": WEEK}, [("accelerated", "walltime", TOO_LONG)]),
        (blocked(), [("hkn0801", "cpus", NO_CPUS), ("hkn0801", "memory", NO_MIB)]),
        (
            blocked(BESIDE, LIMITED, replace(CPU_ONLY, max_memory_per_cpu_mib=3600)),
            [("hkn0801", "memory", LOOSE)],
        ),
        (
            {"policy": NOWHERE},
            [("topas-*", "nodes", "no node has such a name (there are: hkn0801, hkn0901)")],
        ),
        (
            {"list_nodes": (KEEPS,), "types": (A100, CPU)},
            [("hkn0801", "cpus", "`blocking` does not say so")],
        ),
        ({"configuration": {**CONF, "KillWait": "5 sec"}}, [("slurm.conf", "grace", SHORT)]),
        (
            owned(replace(BACKFILL, grace_s=6), {**BY_PARTITION, "KillWait": "10 sec"}),
            [
                ("slurm.conf", "grace", "killed 10 s after SIGTERM"),
                ("backfill", "grace", SHORT_GRACE),
            ],
        ),
        (
            owned(replace(BACKFILL, preempt_mode="OFF")),
            [("backfill", "preemption", "takes no drone's place")],
        ),
        (owned(replace(BACKFILL, preempt_mode="GANG,SUSPEND")), [("backfill", "preemption", GANG)]),
        (
            {"configuration": {**FORGETFUL, "AccountingStorageType": "(null)"}},
            [("slurm.conf", "ends", FORGETS)],
        ),
    ],
)
def test_a_gap_is_explained(cluster: Mapping[str, Any], gaps: Sequence[Gap]) -> None:
    found = audit(**cluster)
    assert list(found) == [(where, dimension) for where, dimension, _ in gaps]
    assert all(text in found[where, dimension] for where, dimension, text in gaps), found
