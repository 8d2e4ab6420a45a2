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
    for name, value in loaded(render(policy, ())).items():
        if name in ("START", "RANK", "MAXJOBRETIREMENTTIME", "MACHINEMAXVACATETIME"):
            ad[name] = expression(value)
    return ad


def found(ad: Ad, policy: SitePolicy = POLICY, *types: DroneType) -> list[tuple[str, str]]:
    return [(gap.dimension, gap.message) for gap in gaps(machines_of([ad], 0), policy, types)]


def test_what_is_printed_leaves_no_gap_whoever_runs_there_now() -> None:
    assert gaps(machines_of([configured()], 0), POLICY, [DRONE]) == ()
    assert gaps(machines_of([configured(free=(0, 0, 0))], 0), POLICY, [DRONE]) == ()


def test_an_open_node_is_told_dimension_by_dimension_with_what_is_and_what_is_wanted() -> None:
    repair = "`provisioner render blocking --site topas` prints what the node needs"
    assert found(pslot(A)) == [
        ("cpus", f"8 free GPUs keep 0 of 192 CPUs, wanted 64: START takes a job without GPU of 192 CPUs; {repair}"),
        (
            "memory",
            f"8 free GPUs keep 0 of 1048576 MiB, wanted 163840: START takes a job without GPU of 1048576 MiB; {repair}",
        ),
    ]


def test_half_a_configuration_is_half_a_gap() -> None:
    [(dimension, message)] = found(pslot(A, start=KEEPS_CPUS))
    assert dimension == "memory" and message.startswith("8 free GPUs keep 0 of")
    less = KEEPS_CPUS.replace("8 *", "6 *") + " && " + KEEPS_MEMORY
    [(dimension, message)] = found(pslot(A, start=less))
    assert (dimension, message.partition(":")[0]) == ("cpus", "8 free GPUs keep 48 of 192 CPUs, wanted 64")


def test_a_reserve_that_is_kept_only_while_all_gpus_are_free_is_a_gap() -> None:
    some = f"(MY.GPUs < 8 || {KEEPS_CPUS}) && {KEEPS_MEMORY}"
    [(dimension, message)] = found(pslot(A, start=some))
    assert (dimension, message.partition(":")[0]) == ("cpus", "1 free GPUs keep 0 of 192 CPUs, wanted 8")


@pytest.mark.parametrize(
    ("exception", "whose"),
    [('TARGET.AcctGroup == "etp"', 'AcctGroup == "etp"'), ("TARGET.Trusted =?= true", "Trusted == true")],
)
def test_an_exception_for_somebody_is_a_gap_that_names_whom(exception: str, whose: str) -> None:
    [(dimension, message)] = found(pslot(A, start=f"({exception} || {KEEPS_CPUS}) && {KEEPS_MEMORY}"))
    assert dimension == "cpus" and f"(of jobs with {whose})" in message


@pytest.mark.parametrize(
    "start",
    ["(TARGET.RequestGPUs ?: 0) >= 1", f'TARGET.Owner == "etp" && {KEEPS_CPUS} && {KEEPS_MEMORY}', "false"],
    ids=["no CPU jobs at all", "etp only, and it keeps the share", "closed"],
)
def test_a_start_that_refuses_for_other_reasons_too_is_no_gap(start: str) -> None:
    assert found(pslot(A, start=start)) == []


def test_more_than_the_node_has_cannot_be_kept() -> None:
    [(dimension, message)] = found(pslot(A, gpu=V100, cpus=48, start=f"{KEEPS_CPUS} && {KEEPS_MEMORY}"))
    assert dimension == "cpus"
    assert message == (
        "8 free GPUs keep at most all of 48 CPUs, wanted 64: more than the node has; write at most 6 per GPU into"
        " `blocking` for it"
    )


def test_a_node_that_does_not_tell_start_cannot_be_judged() -> None:
    silent = pslot(A)
    del silent["Start"]
    [(dimension, message)] = found(silent)
    assert (dimension, message.split(":")[0]) == ("start", "the slot ads do not contain START")


def test_a_drone_that_start_refuses_on_the_empty_node_is_told() -> None:
    tight = POLICY.blocking[0]
    policy = SitePolicy(site="topas", blocking=(Reserve(cpus=6, memory_mib=tight.memory_mib),))
    small = DroneType("topas", "v100", 1000, 6, 20480, 51200)
    ad = configured(policy, cpus=48)
    assert [d for d, _ in found(ad, policy, small)] == []
    [(dimension, message)] = found(ad, policy, small, DRONE)
    assert dimension == "drones" and message.startswith("START refuses drones of type a100 even on the empty node")


def with_(ad: Ad, name: str, value: str) -> Ad:
    ad[name] = expression(value)
    return ad


@pytest.mark.parametrize(
    ("name", "value", "dimension", "told"),
    [
        ("Rank", "0.0", "preemption", "RANK does not prefer other jobs to drones"),
        ("Rank", "ifThenElse(TARGET.IsBackfill =?= true, 1, 0)", "preemption", "RANK does not prefer"),
        ("MaxJobRetirementTime", "24 * 3600", "retirement", "a preempted drone may run on for 86400 s"),
        ("MachineMaxVacateTime", "10", "grace", "killed 10 s after SIGTERM (MACHINEMAXVACATETIME), `timeouts.grace`"),
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
    policy = SitePolicy(site="topas", blocking=(Reserve(nodes=("topas-a100-*", "topaz-*"), cpus=8, memory_mib=20480),))
    assert gaps(machines_of([configured(policy)], 0), policy) == (
        AuditFinding("topaz-*", "nodes", f"no node has such a name (there are: {A}); correct `blocking.nodes`"),
    )


def test_a_site_that_knows_drones_by_a_mark_is_asked_with_the_marks_that_they_really_have() -> None:
    ad = with_(configured(), "Rank", "ifThenElse(TARGET.IsBackfill =?= true, 0, 10)")
    [unmarked] = gaps(machines_of([ad], 0), POLICY, [DRONE])
    assert unmarked.dimension == "preemption"
    assert gaps(machines_of([ad], 0), POLICY, [DRONE], drone={"IsBackfill": True}) == ()
