"""START, RANK and the rest as nodes publish them, held against the policy."""

from __future__ import annotations

import pytest

from adapters.htcondor.classads import Ad, expression
from adapters.htcondor.site.blocking import gaps
from adapters.htcondor.site.nodes import machines_of
from provisioner.interfaces import AuditFinding
from provisioner.model import DroneType, Reserve, SitePolicy
from tests.htcondor_site.slot_ads import V100, pslot
from tests.htcondor_site.test_blocking import loaded, render

A = "topas-a100-1.etp.test"
DRONE = DroneType("topas", "a100", 1000, 8, 20480, 51200)
POLICY = SitePolicy(site="topas", grace_s=30, blocking=(Reserve(cpus=8, memory_mib=20480),))
KEEPS_CPUS = "(MY.Cpus - TARGET.RequestCpus) >= 8 * (MY.GPUs - (TARGET.RequestGPUs ?: 0))"
KEEPS_MEMORY = "(MY.Memory - TARGET.RequestMemory) >= 20480 * (MY.GPUs - (TARGET.RequestGPUs ?: 0))"


def configured(policy: SitePolicy = POLICY, **slot: object) -> Ad:
    """A node that runs what is printed for the policy."""
    ad = pslot(A, **slot)  # type: ignore[arg-type]
    for name, value in loaded(render(policy)).items():
        if name in ("START", "RANK", "MAXJOBRETIREMENTTIME", "MACHINEMAXVACATETIME"):
            ad[name] = expression(value)
    return ad


def found(ad: Ad, policy: SitePolicy = POLICY, *types: DroneType) -> list[tuple[str, str]]:
    return [(gap.dimension, gap.message) for gap in gaps(machines_of([ad], 0), policy, types)]


def test_what_is_printed_leaves_no_gap_whoever_runs_there_now() -> None:
    assert gaps(machines_of([configured()], 0), POLICY, [DRONE]) == ()
    assert gaps(machines_of([configured(free=(0, 0, 0))], 0), POLICY, [DRONE]) == ()


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (
            "true",
            {
                "cpus": "8 free GPUs keep 0 of 192 CPUs, wanted 64",
                "memory": "8 free GPUs keep 0 of 1048576 MiB",
            },
        ),
        (KEEPS_CPUS, {"memory": "8 free GPUs keep 0 of"}),
        (
            f"{KEEPS_CPUS.replace('8 *', '6 *')} && {KEEPS_MEMORY}",
            {"cpus": "8 free GPUs keep 48 of 192 CPUs"},
        ),
        (
            f"(MY.GPUs < 8 || {KEEPS_CPUS}) && {KEEPS_MEMORY}",
            {"cpus": "1 free GPUs keep 0 of 192 CPUs, wanted 8"},
        ),
        (
            f'(TARGET.AcctGroup == "etp" || {KEEPS_CPUS}) && {KEEPS_MEMORY}',
            {"cpus": 'of jobs with AcctGroup == "etp"'},
        ),
        (
            f"(TARGET.Trusted =?= true || {KEEPS_CPUS}) && {KEEPS_MEMORY}",
            {"cpus": "of jobs with Trusted == true"},
        ),
        ("(TARGET.RequestGPUs ?: 0) >= 1", {}),
        (f'TARGET.Owner == "etp" && {KEEPS_CPUS} && {KEEPS_MEMORY}', {}),
        ("false", {}),
        ("", {"start": "the slot ads do not contain START"}),
    ],
)
def test_what_start_does_not_keep_is_told_dimension_by_dimension(
    start: str, told: dict[str, str]
) -> None:
    ad = pslot(A, start=start or "true")
    if not start:
        del ad["Start"]
    gaps_found = found(ad)
    assert [dimension for dimension, _ in gaps_found] == list(told)
    assert all(told[dimension] in message for dimension, message in gaps_found)


def test_more_than_the_node_has_cannot_be_kept() -> None:
    [(dimension, message)] = found(
        pslot(A, gpu=V100, cpus=48, start=f"{KEEPS_CPUS} && {KEEPS_MEMORY}")
    )
    assert dimension == "cpus" and "write at most 6 per GPU into `blocking` for it" in message


def test_a_drone_that_start_refuses_on_the_empty_node_is_told() -> None:
    tight = POLICY.blocking[0]
    policy = SitePolicy(site="topas", blocking=(Reserve(cpus=6, memory_mib=tight.memory_mib),))
    small = DroneType("topas", "v100", 1000, 6, 20480, 51200)
    ad = configured(policy, cpus=48)
    assert [d for d, _ in found(ad, policy, small)] == []
    [(dimension, message)] = found(ad, policy, small, DRONE)
    assert dimension == "drones" and message.startswith(
        "START refuses drones of type a100 even on the empty node"
    )


def with_(ad: Ad, name: str, value: str) -> Ad:
    ad[name] = expression(value)
    return ad


@pytest.mark.parametrize(
    ("name", "value", "dimension", "told"),
    [
        ("Rank", "0.0", "preemption", "RANK does not prefer other jobs to drones"),
        (
            "MaxJobRetirementTime",
            "24 * 3600",
            "retirement",
            "a preempted drone may run on for 86400 s",
        ),
        (
            "MachineMaxVacateTime",
            "10",
            "grace",
            "killed 10 s after SIGTERM (MACHINEMAXVACATETIME), `timeouts.grace`",
        ),
    ],
)
def test_what_keeps_the_owner_waiting_or_cuts_the_grace_is_told(
    name: str, value: str, dimension: str, told: str
) -> None:
    [(where, message)] = found(with_(configured(), name, value), POLICY, DRONE)
    assert where == dimension and told in message


def test_nodes_without_drones_owe_them_no_priority() -> None:
    desk = configured(gpus=0, cpus=4, memory_mib=8192)
    assert found(with_(desk, "Rank", "0.0"), POLICY, DRONE) == []


def test_a_pattern_that_names_no_node_is_a_slip() -> None:
    policy = SitePolicy(
        site="topas",
        blocking=(Reserve(nodes=("topas-a100-*", "topaz-*"), cpus=8, memory_mib=20480),),
    )
    assert gaps(machines_of([configured(policy)], 0), policy) == (
        AuditFinding(
            "topaz-*",
            "nodes",
            f"no node has such a name (there are: {A}); correct `blocking.nodes`",
        ),
    )


def test_a_site_that_knows_drones_by_a_mark_is_asked_with_the_marks_that_they_really_have() -> None:
    ad = with_(configured(), "Rank", "ifThenElse(TARGET.IsBackfill =?= true, 0, 10)")
    [unmarked] = gaps(machines_of([ad], 0), POLICY, [DRONE])
    assert unmarked.dimension == "preemption"
    assert gaps(machines_of([ad], 0), POLICY, [DRONE], drone={"IsBackfill": True}) == ()
