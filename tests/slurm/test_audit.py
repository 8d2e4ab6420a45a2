"""The audit of a Slurm site (`provisioner check --live`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.slurm.blocking import audit_cluster, parse_seconds, preempt_mode, render_blocking
from adapters.slurm.capacity import list_nodes
from adapters.slurm.records import Partition, SlurmNode, expand_hostlist
from provisioner.config import SiteConfig, load
from provisioner.interfaces import AuditFinding
from provisioner.model import DroneType, Reserve, SitePolicy
from tests.slurm.test_capacity import (
    A100,
    ACCELERATED,
    ACCELERATED_H100,
    CPU,
    FULL,
    H100,
    H100_NODE,
    HOUR_S,
    NODE,
    PARTITIONS,
    config,
)

POLICY = SitePolicy(site="horeka", grace_s=30)
BLOCKING = replace(POLICY, blocking=(Reserve(cpus=8, memory_mib=20480),))
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
BACKFILL = Partition("backfill", nodes=("hkn0801",), max_s=48 * HOUR_S, tier=1, grace_s=60, preempt_mode="CANCEL")


def audit(
    list_nodes: Sequence[SlurmNode] = (NODE, H100_NODE),
    partitions: Sequence[Partition] = PARTITIONS,
    configuration: Mapping[str, str] = CONF,
    policy: SitePolicy = POLICY,
    types: Sequence[DroneType] = (A100, FULL, H100),
    **more: Any,
) -> dict[tuple[str, str], str]:
    found: Sequence[AuditFinding] = audit_cluster(list_nodes, partitions, configuration, policy, types, config(**more))
    told = {(gap.node, gap.dimension): gap.message for gap in found}
    assert len(told) == len(found), "one per node and dimension"
    return told


def test_a_site_that_does_as_its_file_says_has_no_gap() -> None:
    assert audit() == {}


def test_settings_that_the_cluster_does_not_report_are_not_checked() -> None:
    assert audit(configuration={}) == {}


# ---------------------------------------------------------------------------------------------------------------- types


def test_a_partition_that_is_not_there_or_down() -> None:
    assert audit(partition="acelerated") == {
        ("acelerated", "partition"): "no such partition (there are: accelerated, accelerated-h100); correct"
        " `options.partition`"
    }
    down = (replace(ACCELERATED, up=False), ACCELERATED_H100)
    assert list(audit(partitions=down)) == [("accelerated", "partition")]


def test_a_type_that_no_node_can_host_names_the_nearest() -> None:
    told = audit(types=(replace(A100, memory_mib=600_000),))
    assert told == {
        (
            "accelerated",
            "types",
        ): "drone type a100: no node could host one. Nearest is hkn0801: memory requested 600000 MiB, available"
        " 512000 MiB"
    }
    [said] = audit(types=(replace(A100, gpu_milli=8000),)).values()
    assert said.endswith("Nearest is hkn0801: gpus requested 8 a100, available 4 a100")


def test_a_walltime_beyond_the_partitions() -> None:
    told = audit(types=(replace(A100, walltime_s=72 * HOUR_S),))
    assert list(told) == [("accelerated", "walltime")]
    assert "lives 259200 s and MaxTime is 172800 s" in told["accelerated", "walltime"]
    assert "write `walltime: 48h` at most" in told["accelerated", "walltime"]
    longer = replace(ACCELERATED, name="long", max_s=96 * HOUR_S)
    node = replace(NODE, partitions=("accelerated", "long"))
    week = replace(A100, walltime_s=72 * HOUR_S)
    assert audit((node,), (ACCELERATED, longer), types=(week,), partition="accelerated,long") == {}


def test_types_that_share_nodes_with_different_gpus_and_whole_nodes_for_a_small_drone() -> None:
    mixed = replace(NODE, gpus={"a100": 2, "h100": 2})
    both = {"types": {"a100": {"gres": "gpu:a100"}, "h100": {"gres": "gpu:h100"}}}
    told = audit_cluster([mixed], PARTITIONS, CONF, POLICY, (A100, H100), config(**both))
    assert [(gap.node, gap.dimension) for gap in told] == [("hkn0801", "gpus")] * 2
    assert list(audit(types=(A100,), submit={"exclusive": True})) == [("accelerated", "exclusive")]
    assert audit(types=(FULL,), submit={"exclusive": True}) == {}


# ------------------------------------------------------------------------------------------------------------- blocking


def test_a_node_that_keeps_nothing() -> None:
    told = audit(types=(A100,), policy=BLOCKING)
    assert list(told) == [("hkn0801", "cpus"), ("hkn0801", "memory")]
    assert told["hkn0801", "cpus"] == (
        "4 free GPUs keep 0 of 152 CPUs, requested 32: jobs without GPU may have the rest through accelerated;"
        " `provisioner render blocking --site horeka` prints what can be done"
    )
    assert told["hkn0801", "memory"].startswith("4 free GPUs keep 0 of 512000 MiB, requested 81920")
    assert "MaxMemPerCPU=3584 there would keep it" in told["hkn0801", "memory"]
    told = audit(types=(A100,), policy=BLOCKING, transport="native")
    assert told["hkn0801", "cpus"].endswith("see `scontrol show node` first)")


def test_the_printed_lines_leave_no_gap() -> None:
    node = replace(NODE, restricted_cores_per_gpu=4, partitions=("accelerated", "cpu"))
    limited = replace(ACCELERATED, max_memory_per_cpu_mib=3584)
    beside = Partition("cpu", nodes=("hkn0801",), max_memory_per_cpu_mib=3584)
    assert audit((node,), (limited, beside), types=(A100,), policy=BLOCKING) == {}


def test_the_gap_is_named_by_the_partition_through_which_it_is() -> None:
    node = replace(NODE, restricted_cores_per_gpu=4, partitions=("accelerated", "cpu"))
    limited = replace(ACCELERATED, max_memory_per_cpu_mib=3584)
    loose = Partition("cpu", nodes=("hkn0801",), max_memory_per_cpu_mib=3600)
    told = audit((node,), (limited, loose), types=(A100,), policy=BLOCKING)
    assert list(told) == [("hkn0801", "memory")]
    assert "4 free GPUs keep 80000 of 512000 MiB, requested 81920" in told["hkn0801", "memory"]
    assert "through cpu (" in told["hkn0801", "memory"]


def test_fewer_cores_than_wanted_and_a_partitions_own_limit() -> None:
    only_cpus = replace(POLICY, blocking=(Reserve(cpus=8),))
    short = replace(NODE, restricted_cores_per_gpu=3)
    assert "keep 24 of 152 CPUs, requested 32" in audit((short,), types=(A100,), policy=only_cpus)["hkn0801", "cpus"]
    capped = (replace(ACCELERATED, max_cpus_per_node=120),)
    assert audit((NODE,), capped, types=(A100,), policy=only_cpus) == {}


def test_more_than_the_node_has() -> None:
    greedy = replace(POLICY, blocking=(Reserve(cpus=40, memory_mib=1024),))
    told = audit((NODE,), types=(A100,), policy=greedy)
    assert "4 GPUs cannot keep 40 CPUs" in told["hkn0801", "cpus"]


def test_disk_is_never_kept() -> None:
    disk = replace(POLICY, blocking=(Reserve(disk_mib=51200),))
    assert list(audit((NODE,), types=(A100,), policy=disk)) == [("hkn0801", "disk")]


def test_a_pattern_that_names_no_node() -> None:
    elsewhere = replace(POLICY, blocking=(Reserve(nodes=("topas-*",), cpus=8),))
    told = audit(policy=elsewhere)
    assert told == {
        ("topas-*", "nodes"): "no node has such a name (there are: hkn0801, hkn0901); correct `blocking.nodes`"
    }


def test_a_reserve_that_the_file_lacks_starves_cpu_drones() -> None:
    keeps = replace(NODE, restricted_cores_per_gpu=4)
    assert list(audit((keeps,), types=(A100, CPU))) == [("hkn0801", "cpus")]
    assert audit((keeps,), types=(A100,)) == {}


# ------------------------------------------------------------------------------------------------- grace and preemption


def test_a_kill_wait_shorter_than_the_grace() -> None:
    told = audit(configuration={**CONF, "KillWait": "5 sec"})
    assert list(told) == [("slurm.conf", "grace")]
    assert "killed 5 s after SIGTERM (KillWait), `timeouts.grace` is 30 s" in told["slurm.conf", "grace"]
    assert "write `grace: 5s`" in told["slurm.conf", "grace"]


def owned(partition: Partition = BACKFILL, conf: Mapping[str, str] = BY_PARTITION, **more: Any) -> dict[Any, str]:
    node = replace(NODE, partitions=("owners", "backfill"))
    owner = {"partitions": ["owners"]}
    return audit((node,), (OWNERS, partition), conf, types=(A100,), partition="backfill", owner=owner, **more)


def test_a_preempted_drone_has_the_grace_and_the_kill_wait() -> None:
    assert owned() == {}
    told = owned(policy=replace(POLICY, grace_s=30), partition=replace(BACKFILL, grace_s=0))
    assert told == {}  # KillWait alone is as long
    told = owned(conf={**BY_PARTITION, "KillWait": "10 sec"}, partition=replace(BACKFILL, grace_s=6))
    assert "killed 16 s after SIGTERM, up to 30 s more (GraceTime 6 s, KillWait 10 s)" in told["backfill", "grace"]


def test_an_owner_who_cannot_preempt_waits() -> None:
    for partition, conf in (
        (BACKFILL, CONF),
        (replace(BACKFILL, preempt_mode="OFF"), BY_PARTITION),
        (replace(BACKFILL, tier=20), BY_PARTITION),
    ):
        assert list(owned(partition, conf)) == [("backfill", "preemption")]
    assert owned(conf={**CONF, "PreemptType": "preempt/qos"}) == {}  # QOS decide, and are not seen
    assert owned(conf={"SLURM_VERSION": "24.11.5"}) == {}  # slurmrestd before 26.05 does not tell


def test_a_drone_must_not_be_suspended() -> None:
    told = owned(replace(BACKFILL, preempt_mode="GANG,SUSPEND"))
    assert "a preempted drone is suspended (PreemptMode=GANG,SUSPEND)" in told["backfill", "preemption"]


@pytest.mark.parametrize(
    ("partition", "conf", "mode"),
    [
        (BACKFILL, BY_PARTITION, "CANCEL"),
        (replace(BACKFILL, preempt_mode=""), BY_PARTITION, "REQUEUE"),
        (replace(BACKFILL, nodes=("hkn0999",)), BY_PARTITION, ""),
        (OWNERS, BY_PARTITION, ""),
        (BACKFILL, CONF, ""),
    ],
)
def test_the_mode_of_preemption(partition: Partition, conf: Mapping[str, str], mode: str) -> None:
    assert preempt_mode(partition, (OWNERS, BACKFILL), conf) == mode


def test_ends_that_are_forgotten_before_they_are_seen() -> None:
    forgetful = {**CONF, "MinJobAge": "10 sec"}
    assert audit(configuration=forgetful) == {}  # the accounting knows
    without = {**forgetful, "AccountingStorageType": "(null)"}
    assert list(audit(configuration=without)) == [("slurm.conf", "ends")]
    assert list(audit(configuration=forgetful, accounting=False)) == [("slurm.conf", "ends")]
    assert audit(configuration={"MinJobAge": "10 sec"}) == {}


@pytest.mark.parametrize(("text", "value"), [("30 sec", 30), ("300", 300), ("(null)", None), ("UNLIMITED", None)])
def test_times_as_slurm_prints_them(text: str, value: int | None) -> None:
    assert parse_seconds(text) == value


# --------------------------------------------------------------------------------------------- the file that is shipped

FILE = Path(__file__).parents[2] / "site_configs" / "horeka.yaml"
CONTROLLER = """
controller: kit
store: {path: provisioner.db}
overlay: {adapter: embedded, options: {path: queue.db}}
sites: [HOREKA]
"""


@pytest.fixture
def horeka(tmp_path: Path) -> SiteConfig:
    (tmp_path / "provisioner.yaml").write_text(CONTROLLER.replace("HOREKA", str(FILE)))
    [site] = load(tmp_path / "provisioner.yaml").sites
    return site


def as_told(site: SiteConfig) -> list[SlurmNode]:
    """The nodes of its file, with all that is printed for them in force."""
    limits = ("accelerated", "accelerated-h100")
    return [
        SlurmNode(
            name,
            "IDLE",
            partitions=(partition,),
            cpus=each.cpus,
            memory_mib=each.memory,
            gpus={each.gres.partition(":")[2]: each.gpus},
            threads_per_core=each.threads_per_core,
            restricted_cores_per_gpu=4,
        )
        for each, partition in zip(site.options.hardware, limits, strict=True)
        for name in expand_hostlist(each.nodes)
    ]


def test_horekas_file_fits_horekas_nodes(horeka: SiteConfig) -> None:
    here = as_told(horeka)
    found = list_nodes(here, PARTITIONS, horeka.types, horeka.options, now=1.0)
    assert {(node.name[:5], node.types, node.free_gpu_milli) for node in found} == {
        ("hkn08", ("a100", "a100x4"), 4000),
        ("hkn09", ("a100", "a100x4"), 4000),
        ("hkn10", ("h100",), 4000),
    }
    assert sum(node.gpu_milli for node in found) == (668 + 88) * 1000


def test_the_lines_printed_for_horeka_leave_no_gap(horeka: SiteConfig) -> None:
    text = render_blocking(horeka.policy, horeka.types, horeka.options)
    most = {m[1]: int(m[2]) for m in re.finditer(r"^PartitionName=\S+-(\w100) .*MaxMemPerCPU=(\d+)$", text, re.M)}
    assert most == {"a100": 3584, "h100": 5717}
    running = (
        replace(ACCELERATED, max_memory_per_cpu_mib=most["a100"]),
        replace(ACCELERATED_H100, max_memory_per_cpu_mib=most["h100"]),
    )
    here = as_told(horeka)
    assert audit_cluster(here, running, CONF, horeka.policy, horeka.types, horeka.options) == ()
    assert {
        gap.dimension for gap in audit_cluster(here, PARTITIONS, CONF, horeka.policy, horeka.types, horeka.options)
    } == {"memory"}
