"""Blocking at a real HTCondor site: what `render` prints is loaded by real startds, and what they then do is counted.

The pool is TOpAS in small: a node of 8 A100 with 192 CPUs and 1 TB, one of 8 V100 with 48 CPUs, all
declared. Drones are jobs of a drone's shape that sleep.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import classad2
import pytest

from adapters.htcondor.classads import Ad, whole
from adapters.htcondor.site import nodes, owner
from adapters.htcondor.site.blocking import gaps, render
from adapters.htcondor.site.settings import HTCondorOwnerConfig
from provisioner.model import DroneType, OwnerLoad, Reserve, SitePolicy
from tests.labs.htcondor import Condor, Pool, until
from tests.labs.shared_gpu_site import one_host

pytestmark = pytest.mark.timeout(840)

A100, V100 = "topas-a100-1.test", "topas-v100-1.test"
# A claim whose job was removed in the moment of the match is known to the node alone, and given
# back at the end of its lease: a minute here, 6 times 300 s by HTCondor's defaults.
FORGOTTEN_CLAIMS = "ALIVE_INTERVAL = 10\nMAX_CLAIM_ALIVES_MISSED = 6\n"
NODE = """
NUM_CPUS = 192
MEMORY = 1048576
DISK = 4194304000
GPU_DISCOVERY_EXTRA = -extra -simulate:4,8
NETWORK_HOSTNAME = topas-a100-1.test
"""
SECOND_NODE = """
DAEMON_LIST = $(DAEMON_LIST) STARTD2
DC_DAEMON_LIST = + STARTD2
STARTD2 = $(STARTD)
STARTD2_ARGS = -local-name v100
STARTD2_LOG = $(LOG)/Startd2Log
v100.STARTD_LOG = $(LOG)/Startd2Log
v100.EXECUTE = $(LOCAL_DIR)/cred
v100.NETWORK_HOSTNAME = topas-v100-1.test
v100.GPU_DISCOVERY_EXTRA = -extra -simulate:2,8
v100.NUM_CPUS = 48
"""
POLICY = SitePolicy(
    site="topas",
    grace_s=5,
    blocking=(
        Reserve(nodes=("topas-v100-*",), cpus=6, memory_mib=20480, disk_mib=51200),
        Reserve(cpus=8, memory_mib=20480, disk_mib=51200),
    ),
)
DRONE = DroneType(
    "topas",
    "a100",
    1000,
    8,
    20480,
    51200,
    vram_mib=40960,
    gpu_model="A100-SXM4-40GB",
    capability=80,
)
SMALL = DroneType("topas", "v100", 1000, 6, 20480, 51200, gpu_model="V100", capability=70)
TYPES = (DRONE, SMALL)


def site(condor: Condor, config: str, startds: int) -> AbstractContextManager[Pool]:
    return one_host(condor, FORGOTTEN_CLAIMS + config, startds)


@pytest.fixture(scope="module")
def blocked(condor: Condor) -> Iterator[Pool]:
    """A site of both nodes that has loaded what is printed for it."""
    with site(
        condor, NODE + SECOND_NODE + render(POLICY) + "PROVISIONER_HEAD_START = 0\n", 2
    ) as pool:
        yield pool


@pytest.fixture
def empty(blocked: Pool) -> Iterator[Pool]:
    yield blocked
    clear(blocked)


def clear(pool: Pool) -> None:
    pool.empty("-all", force_after_s=20)
    until(
        lambda: all(host.free.cpus == host.all.cpus for host in machines(pool)),
        what="the nodes are free",
    )


def machines(pool: Pool) -> tuple[nodes.PoolMachine, ...]:
    return nodes.machines_of(
        parsed(pool.run("condor_status", "-long", "-constraint", nodes.MACHINE_SLOTS)), 0
    )


def parsed(text: str) -> list[Ad]:
    return list(classad2.parseAds(text))


def sleepers(
    n: int, *, gpus: int = 0, cpus: int = 1, memory_mib: int = 1024, more: str = ""
) -> str:
    size = f"request_cpus = {cpus}\nrequest_memory = {memory_mib}\nrequest_disk = 1MB"
    wanted = f"request_gpus = {gpus}\n{more}" if gpus else more
    return f"executable = /bin/sleep\ntransfer_executable = False\narguments = 600\n{size}\n{wanted}\nqueue {n}\n"


def drones(n: int, kind: DroneType = DRONE, more: str = "") -> str:
    shape = sleepers(
        n, gpus=1, cpus=kind.cpus, memory_mib=kind.memory_mib, more=f"+IsBackfill = True\n{more}"
    )
    return shape.replace("request_disk = 1MB", f"request_disk = {kind.disk_mib}MB")


def at(node: str) -> str:
    return f'requirements = Machine == "{node}"'


def running(pool: Pool, cluster: int) -> int:
    return pool.statuses(cluster).count(2)


def settle(pool: Pool, cluster: int, runs: int) -> int:
    """How many jobs of a cluster run, once ``runs`` of them do and the negotiator has refused another since."""
    until(lambda: running(pool, cluster) >= runs, 200, every_s=0.5, what=f"{runs} jobs run")

    def refused() -> bool:
        asked = ("JobStatus", "JobCurrentStartDate", "LastRejMatchTime", "QDate")
        ads = parsed(
            pool.run("condor_q", str(cluster), "-allusers", "-long", "-attributes", ",".join(asked))
        )
        newest = max(max(whole(ad, "JobCurrentStartDate"), whole(ad, "QDate")) for ad in ads)
        return any(
            whole(ad, "LastRejMatchTime") > newest + 2 for ad in ads if whole(ad, "JobStatus") == 1
        )

    until(refused, every_s=0.5, what="the rest is refused")
    return running(pool, cluster)


def test_cpu_jobs_leave_every_free_gpu_its_share_and_every_drone_then_runs(empty: Pool) -> None:
    cpu = empty.submit(sleepers(60, cpus=4), identity="admin")
    # of 192 + 48 CPUs 8 * 8 and 8 * 6 are kept: 128 and 0 are left
    assert settle(empty, cpu, 32) == 32
    until(
        lambda: {h.name: h.free.cpus for h in machines(empty)} == {A100: 64, V100: 48},
        what="told in the ads",
    )
    big, small = (
        empty.submit(drones(8, more=at(A100))),
        empty.submit(drones(8, SMALL, more=at(V100))),
    )
    until(
        lambda: running(empty, big) == 8 and running(empty, small) == 8,
        120,
        what="every GPU has its drone",
    )
    assert running(empty, cpu) == 32


def test_without_it_cpu_jobs_shut_the_drones_out_and_the_audit_tells(condor: Condor) -> None:
    with site(condor, NODE, 1) as pool:
        cpu = pool.submit(sleepers(60, cpus=4), identity="admin")
        assert settle(pool, cpu, 48) == 48
        those = pool.submit(drones(8))
        assert settle(pool, those, 0) == 0
        found = gaps(machines(pool), POLICY, TYPES)
        assert [(gap.node, gap.dimension) for gap in found] == [
            (A100, "cpus"),
            (A100, "memory"),
            (A100, "disk"),
            (A100, "preemption"),
            ("topas-v100-*", "nodes"),
        ]
        assert found[0].message.startswith(
            "8 free GPUs keep 0 of 192 CPUs, wanted 64: START takes a job"
        )


def test_the_owners_job_takes_a_drones_slot_after_notice_and_grace(empty: Pool) -> None:
    """The drones trap SIGTERM, say so, and stay: the site kills them when their grace is over."""
    told = empty.file("told")
    stubborn = empty.program(
        "stubborn", f"trap 'echo TERM >>{told}' TERM; while :; do sleep 0.2; done\n"
    )
    text = drones(8, more=at(A100)).replace("arguments = 600\n", "")
    those = empty.submit(text.replace("executable = /bin/sleep", f"executable = {stubborn}"))
    until(lambda: running(empty, those) == 8, 120, what="the drones run")

    theirs = empty.submit(
        sleepers(1, gpus=1, cpus=4, memory_mib=8192, more=at(A100)), identity="admin"
    )
    seen = until(lambda: nodes.notices(taken_back(empty)), 60, what="the site takes a slot back")
    assert [name.partition("_")[0] for name in seen] == ["slot1"] and len(seen) == 1
    until(lambda: running(empty, theirs) == 1, 60, what="the owner's job runs")
    # one drone, told once, and killed for its stubbornness
    assert Path(told).read_text().split() == ["TERM"]
    assert running(empty, those) == 7


def test_drones_have_a_head_start_and_the_owners_jobs_never_throw_out_each_other(
    condor: Condor,
) -> None:
    """While the provisioner is making room the site takes no drone's slot by force; later it does.
    A RANK that grew with a job's age would do it too, and let an owner's job that began young be
    thrown out by an older one."""
    short_s = 8
    with site(condor, f"{NODE}{render(POLICY)}PROVISIONER_HEAD_START = {short_s}\n", 1) as pool:
        those = pool.submit(drones(8, more='+DroneId = "kit-$(Process)"'))
        until(lambda: running(pool, those) == 8, 120, what="the drones run")
        theirs = pool.submit(sleepers(1, gpus=1, cpus=4, memory_mib=8192), identity="admin")
        first = pool.submit(sleepers(1, cpus=100), identity="admin")
        until(
            lambda: running(pool, first) == 1,
            60,
            what="an owner's job that needs no drone's slot begins at once",
        )
        until(lambda: running(pool, theirs) == 1, 120, what="the owner's job has a drone's slot")
        [ad] = parsed(pool.run("condor_q", str(theirs), "-long"))
        assert whole(ad, "JobCurrentStartDate") - whole(ad, "QDate") >= short_s

        second = pool.submit(sleepers(1, cpus=100), identity="admin")
        waited = time.time() + short_s + 10
        until(lambda: time.time() > waited, 60, what="it is older than the first was when it began")
        assert pool.statuses(second) == [1] and running(pool, first) == 1
        [ad] = parsed(pool.run("condor_q", str(first), "-long"))
        assert whole(ad, "NumJobStarts") == 1, "never thrown out"


def taken_back(pool: Pool) -> list[Ad]:
    asked = (
        "-constraint",
        nodes.NOTICE_CONSTRAINT,
        "-attributes",
        ",".join(nodes.NOTICE_PROJECTION),
    )
    return parsed(pool.run("condor_status", "-long", *asked))


def test_claims_name_the_nodes_on_which_the_jobs_then_really_run(empty: Pool) -> None:
    settings = HTCondorOwnerConfig(jobs='Owner == "admin"', schedds=("any",))
    full = empty.submit(sleepers(16, gpus=1, cpus=1))
    until(lambda: running(empty, full) == 16, 120, what="every GPU is taken")
    wide = empty.submit(
        sleepers(1, gpus=6, cpus=8, memory_mib=204800, more="gpus_minimum_capability = 8.0"),
        "admin",
    )
    plain = empty.submit(sleepers(2, gpus=1, cpus=2, more=at(V100)), "admin")
    never = empty.submit(sleepers(1, gpus=9), "admin")
    greedy = empty.submit(sleepers(1, gpus=1, cpus=150), "admin")
    held = empty.submit(sleepers(1, gpus=1, more="hold = True"), "admin")

    known = machines(empty)
    wanted = owner.claims(queue(empty, settings, known).groups, known)
    assert {(c.count, c.gpu_milli, c.cpus, c.nodes) for c in wanted.claims} == {
        (1, 6000, 8, (A100,)),
        (2, 1000, 2, (V100,)),
    }
    assert sorted(line.partition("(")[2].partition(")")[0] for line in wanted.notices) == sorted(
        [f"{never}.0", f"{greedy}.0"]
    )
    assert owner.running(queue(empty, settings, known).running, known) == OwnerLoad()

    empty.run("condor_rm", str(full))
    until(
        lambda: running(empty, wide) == 1 and running(empty, plain) == 2,
        120,
        what="those that can run do",
    )
    until(
        lambda: running(empty, greedy) == 1, 60, what="where others hold GPUs there is less to keep"
    )
    where = {str(ad["RemoteHost"]).partition("@")[2] for ad in empty.jobs(wide)}
    assert where == {A100} and {
        str(ad["RemoteHost"]).partition("@")[2] for ad in empty.jobs(plain)
    } == {V100}
    assert (empty.statuses(never), empty.statuses(held)) == ([1], [5])
    load = owner.running(queue(empty, settings, known).running, known)
    assert load == OwnerLoad(jobs=4, gpu_milli=9000, cpus=162, memory_mib=204800 + 3 * 1024)


def queue(
    pool: Pool, settings: HTCondorOwnerConfig, known: tuple[nodes.PoolMachine, ...]
) -> owner.OwnerJobQueue:
    """Asked until all is known that the jobs' expressions look at."""
    names = owner.wanted_by(known)
    while True:
        wanted = ",".join((*owner.OWNER_JOB_PROJECTION, *names))
        asked = ("-constraint", owner.job_constraint(settings), "-attributes", wanted)
        found = owner.group_jobs(parsed(pool.run("condor_q", "-allusers", "-long", *asked)), names)
        if not (more := owner.further(found, names)):
            return found
        names |= more
