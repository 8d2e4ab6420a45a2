"""The whole product against three real sites at once: an owner, a kill, an outage, a drain, a reload.

It prints its figures (`pytest -rP`), and asserts what no load of the machine changes.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from provisioner.model import DroneState
from tests.labs.acceptance import AcceptanceLab, acceptance_lab
from tests.labs.htcondor import Condor, LabError, Pool, end, gpu_job, launch, negotiation_s, until
from tests.labs.htcondor_sites import (
    GRACE_S,
    GRID,
    OWNER,
    STUDENT,
    Happened,
    drone_of,
    events,
    interval_s,
    owner_job,
)
from tests.labs.openstack import OWNER as CLOUD_OWNER
from tests.labs.slurm_sites import drone_of as slurm_drone_of

IDLE, RUNNING = 1, 2
"""HTCondor's JobStatus."""
SAMPLE_S = 4.0
FIFTH, LARGE_VRAM = "+GpuMilli = 200", "gpus_minimum_memory = 30000"
CPU_JOBS = gpu_job(20, n=8, cpus=1).replace("request_gpus = 1\n", "")
TYPES_FOR = {
    "one": (
        "topas/v100s",
        "topas/v100",
        "topas/a100",
        "horeka/a100",
        "horeka/h100",
        "gridka/v100s",
        "gridka/a100-10g",
    ),
    "large-vram": ("topas/a100", "horeka/a100", "gridka/v100s"),
}
"""Drone types that fit jobs of a shape, as far as a test needs to know them."""


@dataclass
class Sample:
    """The site's own truth, twice, and between the two the product's answers."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    drones: Mapping[str, Mapping[str, Any]]
    explained: Mapping[int, str]
    """Text of `explain job` for the first idle job of each cluster."""


@dataclass
class AcceptanceScenario:
    """Jobs of users and owner in three waves, with samples all the time."""

    lab: AcceptanceLab
    shapes: dict[int, str] = field(default_factory=dict)
    impossible: set[int] = field(default_factory=set)
    samples: list[Sample] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    controller_is_down: threading.Event = field(default_factory=threading.Event)

    # ------------------------------------------------------------------------------------------------
    # the jobs

    def submit(self, user: str, shape: str, text: str, *, feasible: bool = True) -> int:
        cluster = self.lab.overlay.submit(text, user)
        self.shapes[cluster] = shape
        if not feasible:
            self.impossible.add(cluster)
        return cluster

    def first_wave(self) -> None:
        self.submit("alice", "fifth", gpu_job(25, n=25, memory_mib=100, more=FIFTH))
        self.submit("bob", "one", gpu_job(30, n=22))
        self.submit("carol", "two", gpu_job(40, n=2, gpus=2, cpus=4))
        self.submit("carol", "four", gpu_job(40, n=1, gpus=4, cpus=8))
        self.submit("carol", "large-vram", gpu_job(30, n=4, more=LARGE_VRAM))
        self.submit("alice", "cpu", CPU_JOBS)
        for shape, text in {
            "vram": gpu_job(5, more="gpus_minimum_memory = 90000"),
            "gpus": gpu_job(5, gpus=16),
            "capability": gpu_job(5, more="gpus_minimum_capability = 9.9"),
            "memory": gpu_job(5, memory_mib=2 * 1024 * 1024),
            "attribute": gpu_job(5, more='requirements = TARGET.Nowhere == "x"'),
        }.items():
            self.submit("bob", shape, text, feasible=False)

    def second_wave(self) -> None:
        self.submit("bob", "one", gpu_job(30, n=14))
        self.submit("alice", "fifth", gpu_job(25, n=10, memory_mib=100, more=FIFTH))
        self.submit("carol", "large-vram", gpu_job(25, n=3, more=LARGE_VRAM))

    def third_wave(self) -> None:
        self.submit("alice", "one", gpu_job(20, n=12))
        self.submit("carol", "three", gpu_job(25, n=1, gpus=3, cpus=4))
        self.submit("bob", "cpu", CPU_JOBS)

    def left(self) -> list[str]:
        """Return the jobs still in the queue that drones can run."""
        ads = self.lab.overlay.jobs()
        return [
            f"{ad['ClusterId']}.{ad['ProcId']}"
            for ad in ads
            if int(ad["ClusterId"]) not in self.impossible
        ]

    def started(self, *shapes: str) -> bool:
        """Return True if a job of each newest cluster of these shapes has started."""
        newest = {shape: cluster for cluster, shape in self.shapes.items()}
        waits = self.waits_s()
        return all(waits[newest[shape]] for shape in shapes)

    # ---------------------------------------------------------------------------------------------
    # the samples

    def truth(self) -> Mapping[str, Any]:
        """Return the jobs (status and drone by id), and the drones alive at each site, by the sites' own tools."""
        lab, name = self.lab, self.lab.controller.name
        jobs = {
            f"{ad['ClusterId']}.{ad['ProcId']}": (int(ad["JobStatus"]), drone_of(ad))
            for ad in lab.overlay.jobs()
        }
        alive = {
            "topas": {
                str(ad["DroneId"]) for ad in lab.site.of(GRID) if ad["JobStatus"] in (IDLE, RUNNING)
            }
        }
        with suppress(LabError, subprocess.SubprocessError):  # slurmctld is stopped for a while
            alive["horeka"] = {
                slurm_drone_of(job.id, job.name)
                for job in lab.slurm.jobs("-u", "drone")
                if job.alive
            }
        servers = lab.cloud.admin("GET", "nova:/servers/detail?all_tenants=1")["servers"]
        alive["gridka"] = {server["name"] for server in servers if server["name"].startswith(name)}
        return {"jobs": jobs, "alive": alive}

    def sample(self) -> None:
        before = self.truth()
        drones = {each["id"]: each for each in self.lab.controller.drones()}
        idle = sorted(job for job, (status, _) in before["jobs"].items() if status == IDLE)
        first = {int(job.partition(".")[0]): job for job in reversed(idle)}
        explain = self.lab.controller.call
        explained = {
            cluster: explain("explain", "job", job).stdout for cluster, job in first.items()
        }
        self.samples.append(Sample(before, self.truth(), drones, explained))

    def watch(self) -> None:
        while not self.over.wait(SAMPLE_S):
            if self.controller_is_down.is_set():
                continue
            try:
                self.sample()
            except Exception as error:
                self.errors.append(repr(error))

    @contextmanager
    def watched(self) -> Iterator[None]:
        watcher = threading.Thread(target=self.watch)
        watcher.start()
        try:
            yield
        finally:
            self.over.set()
            watcher.join()

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.lab.web_port}/metrics", timeout=20
        ) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith((f"{name}{{", f"{name} "))
        )

    # ------------------------------------------------------------------------------------------------
    # verdicts

    def waits_s(self) -> dict[int, list[float]]:
        """Return how long each job of a cluster waited for its first start, shortest first."""
        submitted: dict[str, float] = {}
        started: dict[str, float] = {}
        for event in events(self.lab.overlay):
            if event.what is Happened.SUBMITTED:
                submitted[event.job] = event.at
            if event.what is Happened.STARTED:
                started.setdefault(event.job, event.at)
        found: dict[int, list[float]] = {cluster: [] for cluster in self.shapes}
        for job, at in started.items():
            found[int(job.partition(".")[0])].append(at - submitted[job])
        return {cluster: sorted(waits) for cluster, waits in found.items()}

    def no_drone_unknown(self) -> None:
        """Check that each drone alive at its site, before and after, is in the product's answer."""
        for sample in self.samples:
            for site, alive in sample.before["alive"].items():
                unknown = alive & sample.after["alive"].get(site, set()) - set(sample.drones)
                assert not unknown, f"alive at {site}, not in `drones`"

    def busy_is_busy(self) -> None:
        """Check that no drone is said to be idle whose job ran in the sample before, and before and after this one."""
        states = {DroneState.BUSY, DroneState.DRAINING, DroneState.STOPPING}
        for earlier, later in pairwise(self.samples):
            carrying = [
                set(truth["jobs"].items()) for truth in (earlier.after, later.before, later.after)
            ]
            for job, (status, drone) in set.intersection(*carrying):
                if status == RUNNING and drone:
                    assert later.drones[drone]["state"] in {state.value for state in states}, (
                        f"{drone} runs {job}"
                    )

    def no_limit_exceeded(self) -> None:
        for sample in self.samples:
            for site, most in self.lab.most.items():
                assert len(sample.before["alive"].get(site, ())) <= most, site

    def waiting_is_explained(self) -> None:
        """Check that no job waits beside an idle drone of a fitting type without a reason that says so.

        A drone counts that was idle in two samples in a row, as did the job: one negotiation has
        passed between them.
        """
        for earlier, later in pairwise(self.samples):
            idle_drones = {
                drone["id"]: drone["type"]
                for drone in later.drones.values()
                if drone["state"] == earlier.drones.get(drone["id"], {}).get("state") == "idle"
            }
            for cluster, text in later.explained.items():
                fitting = TYPES_FOR.get(self.shapes[cluster], ())
                beside = sorted(drone for drone, kind in idle_drones.items() if kind in fitting)
                if beside and cluster in earlier.explained:
                    assert "idle drone" in text, f"{cluster} waits beside {beside}: {text}"

    def figures(self) -> str:
        """Return waits by cluster, and drones with and without a job."""
        lines = []
        for cluster, waits in self.waits_s().items():
            if waits:
                middle, last = statistics.median(waits), waits[-1]
                lines.append(
                    f"{self.shapes[cluster]:12} {len(waits):3} jobs: median {middle:5.1f} s, last {last:5.1f} s"
                )
        drones = self.lab.controller.drones()
        lines.append(
            f"drones: {len(drones)}, without a job: {len([d for d in drones if not d['jobs_started']])}"
        )
        return "\n".join(lines)


@contextmanager
def web_service(lab: AcceptanceLab) -> Iterator[None]:
    """Run `provisioner serve` beside the controller."""
    controller = lab.controller
    command = (sys.executable, "-m", "provisioner.cli", "serve", "--config", controller.config)
    process = launch(
        command, controller.directory / "serve.log", env=os.environ, cwd=controller.directory
    )
    try:
        yield
    finally:
        end(process, signal.SIGTERM, 20)


def owner_waits_s(pool: Pool, cluster: int) -> list[float]:
    """Return how long each of the owner's jobs waited in the queue of a pool, shortest first."""
    told = events(pool, cluster)
    submitted = {event.job: event.at for event in told if event.what is Happened.SUBMITTED}
    return sorted(
        event.at - submitted[event.job] for event in told if event.what is Happened.STARTED
    )


def flocked(jobs: int, seconds: float) -> str:
    return owner_job(seconds, gpus=2, cpus=16, memory_mib=40 * 1024, n=jobs)


def owner_alone_s(lab: AcceptanceLab) -> float:
    """Return how long a flocked job waits on the empty cluster, then fill a part of it with the owner's jobs."""
    alone = lab.etp.submit(flocked(1, 1), STUDENT)
    until(lambda: not lab.etp.jobs(alone), 120, what="a flocked job on the empty cluster")
    lab.site.submit(owner_job(600, gpus=0, cpus=4, memory_mib=4096, n=26), OWNER)
    held = lab.site.submit(owner_job(420, gpus=1, n=2), OWNER)
    until(lambda: lab.site.statuses(held) == [RUNNING] * 2, 120, what="the owner's GPU jobs run")
    return owner_waits_s(lab.etp, alone)[0]


def kill_and_restart(scenario: AcceptanceScenario) -> None:
    controller = scenario.lab.controller
    scenario.controller_is_down.set()
    controller.kill()
    assert controller.call("status", "--check").returncode == 2, (
        "a dead controller is critical at once"
    )
    controller.begin()
    controller.ticks(1)
    scenario.controller_is_down.clear()


def outage(scenario: AcceptanceScenario) -> None:
    """Stop Slurm's controller, send jobs and an owner meanwhile, and start it again."""
    lab = scenario.lab
    lab.slurm.stop_daemon("slurmctld")
    scenario.second_wave()
    until(lambda: scenario.started("one"), 120, what="jobs run beside a dead site")
    owners = lab.etp.submit(flocked(2, 20), STUDENT)
    until(
        lambda: len(owner_waits_s(lab.etp, owners)) == 2,
        120,
        what="the owner's jobs run during the outage",
    )
    lab.slurm.restart("slurmctld")


def drain_and_reload(scenario: AcceptanceScenario) -> None:
    """Drain one site, disable another, refuse a wrong configuration, and take a valid one."""
    lab, controller = scenario.lab, scenario.lab.controller
    controller.prints(
        "drones", "drain", "--site", "topas", "--mode", "peaceful", "-r", "acceptance", "-y"
    )
    controller.prints("sites", "disable", "gridka", "-r", "acceptance")
    scenario.third_wave()
    lab.edit("horeka", max_drones=-3)
    refused = controller.call("reload")
    assert refused.returncode == 3 and "max_drones" in refused.stderr + refused.stdout
    lab.edit("horeka", max_drones=11)
    controller.prints("reload")
    until(lambda: scenario.started("one"), 120, what="jobs run at the remaining sites")
    controller.prints("sites", "enable", "gridka", "-r", "acceptance")


def nothing(_: AcceptanceScenario) -> None:
    """Take no further step."""


LONG = (kill_and_restart, outage, drain_and_reload)


@pytest.mark.matrix
@pytest.mark.timeout(1500)
@pytest.mark.xdist_group("topas")
@pytest.mark.parametrize(
    "steps", [pytest.param(LONG, id="complete"), pytest.param((nothing,), id="short")]
)
def test_three_sites_serve_three_users_and_an_owner(
    newest_condor: Condor, steps: tuple[Callable[[AcceptanceScenario], None], ...]
) -> None:
    with acceptance_lab(newest_condor) as lab:
        alone_s = owner_alone_s(lab)
        lab.controller.start(write=False)
        with web_service(lab):
            scenario = AcceptanceScenario(lab)
            with scenario.watched():
                began = time.time()
                scenario.first_wave()
                until(
                    lambda: scenario.started("one", "fifth", "two"),
                    180,
                    what="jobs run",
                    every_s=0.5,
                )
                beside = lab.etp.submit(flocked(1, 60), STUDENT)
                local = lab.site.submit(owner_job(60, gpus=1, cpus=6), OWNER)
                lab.cloud.boot("etp-1", "gpu.h100.vgpu", project=CLOUD_OWNER)
                until(
                    lambda: owner_waits_s(lab.etp, beside), 150, what="the owner's flocked job runs"
                )
                until(
                    lambda: owner_waits_s(lab.site, local), 150, what="the owner's local job runs"
                )
                for step in steps:
                    step(scenario)
                until(
                    lambda: not scenario.left(), 400, what="all feasible jobs are done", every_s=1
                )
                done_s = time.time() - began
            for cluster in scenario.impossible:
                lab.overlay.remove(cluster, "bob")
            lab.controller.all_gone()
            lab.controller.ticks(2)
            owner_s = owner_waits_s(lab.etp, beside)[0]
            print(
                f"owner: {alone_s:.1f} s alone, {owner_s:.1f} s beside drones; all in {done_s:.0f} s"
            )
            print(scenario.figures())

            assert not scenario.errors
            waits = scenario.waits_s()
            assert not [cluster for cluster in scenario.impossible if waits[cluster]], (
                "an impossible job started"
            )
            may_s = alone_s + GRACE_S + 2 * interval_s(lab.controller) + negotiation_s(lab.site)
            assert owner_s < may_s, f"{alone_s:.1f} s without drones"
            scenario.no_drone_unknown()
            scenario.busy_is_busy()
            scenario.no_limit_exceeded()
            scenario.waiting_is_explained()
            drones = lab.controller.drones()
            unused = Counter(drone["type"] for drone in drones if not drone["jobs_started"])
            assert unused.total() * 5 <= len(drones), unused
            used_s = lab.controller.json("usage")["total_gpu_s"]
            assert scenario.metric("provisioner_gpu_seconds_total") == pytest.approx(
                used_s, rel=0.02
            )
            truth = scenario.truth()
            assert not any(truth["alive"].values()), "nothing is left at any site"
            assert not lab.cloud.ports() and not lab.cloud.disks()
