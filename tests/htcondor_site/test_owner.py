"""The owner's waiting jobs become claims on the nodes that could host them, his running ones a sum."""

from __future__ import annotations

from collections.abc import Sequence

import classad2
import pytest

from adapters.htcondor.classads import Ad, expression, holds
from adapters.htcondor.site.nodes import PoolMachine, machines_of
from adapters.htcondor.site.owner import (
    HTCondorOwnerView,
    claims as claims_of,
    group_jobs,
    job_constraint,
    running,
    submitter_claims,
)
from adapters.htcondor.site.settings import HTCondorOwnerConfig, OwnerJobShape
from provisioner.model import OwnerDemand, OwnerLoad
from tests.htcondor_site.slot_ads import A100, NOW, V100S, job, pslot

A, V = "topas-a100-1.etp.test", "topas-v100s-1.etp.test"
SITE = machines_of([pslot(A, gpu=A100, free=(0, 128, 900000)), pslot(V, gpu=V100S)], 0)


def claims(waiting: Sequence[Ad], site: tuple[PoolMachine, ...]) -> HTCondorOwnerView:
    return claims_of(group_jobs(waiting, now=NOW).groups, site)


def test_alike_jobs_of_a_user_are_one_claim_since_the_oldest_of_them_by_our_clock() -> None:
    who, clock = "student@etp.test", f"ServerTime = {NOW + 30}"
    waiting = [job(n, at=NOW - n, user=who) for n in range(1, 13)]
    waiting += [job(20, user="b@etp.test", at=NOW, more=clock)]
    waiting += [
        job(30, status=2, more=f'RemoteHost = "slot1_1@{A}"'),
        job(31, status=5),
        job(32, universe=7),
        job(33, universe=12),
    ]
    assert claims(waiting, SITE).claims == (
        OwnerDemand(1, 1000, 4, 8192, since=NOW - 30, disk_mib=1, nodes=(), who="b@etp.test"),
        OwnerDemand(12, 1000, 4, 8192, since=NOW - 12, disk_mib=1, nodes=(), who=who),
    )
    assert [claim.nodes for claim in claims([job(1)], ()).claims] == [()], (
        "nothing is known of the nodes"
    )


def test_what_a_job_demands_of_the_gpu_names_the_nodes_that_could_have_it() -> None:
    found = claims(
        [
            job(4, at=NOW - 1, gpus=0, cpus=16),
            job(
                3,
                at=NOW - 2,
                require_gpus="GlobalMemoryMb >= GPUsMinMemory",
                more="GPUsMinMemory = 35000",
            ),
            job(2, at=NOW - 3, requirements=f'(TARGET.Machine == "{V}")'),
            job(1, at=NOW - 4, gpus=6, memory_mib=204800, require_gpus="Capability >= 8.0"),
        ],
        SITE,
    )
    assert found.notices == ()
    assert [(c.gpu_milli, c.nodes) for c in found.claims] == [
        (6000, (A,)),
        (1000, (V,)),
        (1000, (A,)),
        (0, ()),
    ]


def test_jobs_that_no_node_could_ever_host_free_nothing_and_are_told() -> None:
    found = claims(
        [job(7, gpus=9), job(8, gpus=9), job(9, gpus=99, user="x" * 300 + "\\nroot")], SITE
    )
    assert found.claims == ()
    strangers, line = sorted(found.notices)
    assert line == (
        "owner: 2 jobs of student@etp.test (7.0, 8.0) fit no node even if it were empty (9 GPUs, 4 CPUs, 8192 MiB"
        " each): no room is made for them"
    )
    assert "\n" not in strangers and len(strangers) <= 400


def test_a_job_that_start_refuses_whoever_is_there_takes_no_drone_away() -> None:
    blocks = "(MY.Cpus - TARGET.RequestCpus) >= 8 * (MY.GPUs - (TARGET.RequestGPUs ?: 0))"
    site = machines_of([pslot(A, start=blocks)], 0)
    greedy, just = job(1, cpus=150), job(2, cpus=136)
    assert [claim.cpus for claim in claims([greedy, just], site).claims] == [136]


def limited(cluster: int, refused: str = "", at: float = NOW - 60, limits: str = "etp") -> Ad:
    ad = job(cluster)
    ad["ConcurrencyLimits"] = limits
    if refused:
        ad["LastRejMatchReason"], ad["LastRejMatchTime"] = refused, int(at)
    return ad


def test_jobs_behind_a_used_up_concurrency_limit_take_no_drone_away() -> None:
    refused = "concurrency limit etp reached"
    found = claims([limited(1, refused), limited(2), limited(3, limits="other"), job(4)], SITE)
    assert sorted(claim.count for claim in found.claims) == [1, 1]
    assert found.notices == (
        "owner: no room is made for 2 waiting jobs: the negotiator refuses them for the concurrency limit etp",
    )
    later = limited(2, "no match found", NOW - 5)
    assert sum(claim.count for claim in claims([limited(1, refused), later], SITE).claims) == 2, (
        "one is free again"
    )
    assert (
        sum(claim.count for claim in claims([limited(1, refused, NOW - 1000)], SITE).claims) == 1
    ), "long ago"


def test_what_cannot_be_judged_from_here_is_a_claim() -> None:
    site = machines_of([pslot(A, start='TARGET.Group == "etp"')], 0)
    unknown = job(
        1,
        requirements="(TARGET.Weather + 1 > 5) && (TARGET.FileSystemDomain == MY.FileSystemDomain)",
    )
    assert [claim.count for claim in claims([unknown], site).claims] == [1]


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ("", True),
        ("IsBackfill = true", False),
        ('ProvisionerController = "kit"', False),
        ('AcctGroup = "cms"', False),
        ("JobUniverse = 12", False),
        ('Managed = "External"', False),
        ('Managed = "Schedd"', True),
    ],
)
def test_the_queue_is_asked_for_the_owners_jobs_and_never_for_drones_or_what_a_router_manages(
    more: str, wanted: bool
) -> None:
    settings = HTCondorOwnerConfig(
        jobs='AcctGroup == "etp" || AcctGroup =?= undefined', schedds=("submit.etp.test",)
    )
    asked = job(1, more=more)
    assert holds(expression(job_constraint(settings)), asked, classad2.ClassAd()) is wanted


def test_a_queue_that_may_not_be_read_is_known_by_its_totals() -> None:
    def submitter(name: str, schedd: str, idle: int) -> classad2.ClassAd:
        return classad2.ClassAd(
            {"Name": name, "ScheddName": schedd, "IdleJobs": idle, "LastHeardFrom": NOW}
        )

    shape = OwnerJobShape.model_validate({"gpus": 2, "cpus": 4, "memory": "16 GiB"})
    settings = HTCondorOwnerConfig(submitters=("*@etp.test",), shape=shape)
    ads = [
        submitter("a@etp.test", "s1", 3),
        submitter("a@etp.test", "s2", 4),
        submitter("b@etp.test", "s1", 0),
        submitter("grid@site.test", "s3", 99),
    ]
    assert submitter_claims(ads, settings, NOW) == (
        OwnerDemand(7, 2000, 4, 16384, since=NOW, who="a@etp.test"),
    )


def test_what_the_owner_holds_here_and_nowhere_else() -> None:
    ads = [
        job(1, status=2, more=f'RemoteHost = "slot1_1@{A}"'),
        job(
            2,
            status=2,
            more=f'RemoteHost = "slot1_2@topas@{V.upper()}"\nMemoryProvisioned = 8320\nCpusProvisioned = 5',
        ),
        job(3, status=2, more='RemoteHost = "slot1_1@desk.etp.test"'),
        job(4, status=1),
    ]
    assert running(group_jobs(ads).running, SITE) == OwnerLoad(
        jobs=2, gpu_milli=2000, cpus=9, memory_mib=8192 + 8320
    )
