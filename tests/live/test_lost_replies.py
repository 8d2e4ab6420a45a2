"""The reply to a start is lost in a fail-over: the other member settles the order by listings, none is there twice."""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from provisioner.model import DroneState
from provisioner.store.lease import Lease
from tests.labs.controller import LabController, Settings
from tests.labs.facilities import horeka
from tests.labs.htcondor import Condor, gpu_job, until
from tests.labs.htcondor_sites import TopasSite, topas_lab
from tests.labs.kubernetes import KubernetesLab
from tests.labs.openstack import OpenStackLab
from tests.labs.openstack_stress import drill as openstack_drill
from tests.labs.slurm import SlurmLab
from tests.live.test_kubernetes_faults import drill as kubernetes_drill, drone_of

pytestmark = pytest.mark.matrix

HA = {"ha": {"lease": "3s"}}
SLOW = """\
#!/bin/sh
# As the real tool, which has done its work long before its reply is read.
out=$({real} "$@")
code=$?
if mkdir {waits}/taken 2>/dev/null; then
    while [ -e {waits}/taken ]; do sleep 0.2; done
fi
printf '%s\\n' "$out"
exit $code
"""
LATE_REPLY = {"method": "POST", "late_s": 40, "times": 1}
"""Nobody waits so long for the reply."""
FAILURES = ["killed", "stopped"]
"""Fates of the leader: it is killed, or it loses its lease while it is stopped, and wakes up later."""


@dataclass
class Members:
    """Two members with one record and one configuration, at a site that somebody else looks at, too."""

    first: LabController
    ever: Callable[[], Counter[str]]
    """Returns the number of objects that each drone has ever had at the site."""

    def start(self) -> None:
        self.before = set(self.ever())
        self.first.sections = HA
        self.first.start()
        self.other = replace(self.first, process=None)
        self.other.begin()
        until(lambda: len(self.first.record.lease()[1]) == 2, 60, what="two members")

    @property
    def lease(self) -> Lease:
        return self.first.record.lease()[0]

    def ours(self) -> Counter[str]:
        prefix = f"{self.first.name}-"
        found = self.ever()
        return Counter({d: found[d] for d in found.keys() - self.before if d.startswith(prefix)})

    @contextmanager
    def story(
        self,
        submit: Callable[[int], object],
        late: AbstractContextManager[object],
        failure: str,
    ) -> Iterator[None]:
        """Inside, the new leader has settled the order, and has given another one."""
        self.start()
        record = self.first.record
        try:
            with late:
                submit(1)
                until(self.ours, 90, what="the site has an object", every_s=0.05)
                [asked] = record.drones()
                assert asked.state is DroneState.REQUESTED and self.ours() == {asked.id: 1}
                leader = self.first.process
                assert leader is not None and self.lease.member.endswith(f"/{leader.pid}")
                epoch, failed_at = self.lease.epoch, time.monotonic()
                leader.send_signal(signal.SIGKILL if failure == "killed" else signal.SIGSTOP)
                until(lambda: self.lease.epoch > epoch, 60, what="the other member leads")
            took_over_s = time.monotonic() - failed_at

            def is_settled() -> bool:
                found = record.drone(asked.id)
                return found is not None and found.state is not DroneState.REQUESTED

            until(is_settled, 120, what="a listing settles the order", every_s=0.2)
            settled_s = time.monotonic() - failed_at
            if failure == "stopped":
                leader.send_signal(signal.SIGCONT)
            submit(1)
            until(lambda: len(self.ours()) == 2, 120, what="the new leader starts one", every_s=0.2)
            time.sleep(3.0)
            found = record.drone(asked.id)
            assert found is not None and not found.state.ended, found
            assert set(self.ours().values()) == {1}, self.ours()
            assert {each.id for each in record.drones(ended=None)} == self.ours().keys()
            print(f"took over after {took_over_s:.1f} s, settled after {settled_s:.1f} s")
            yield
        finally:
            if failure == "stopped" and self.first.process is not None:
                self.first.process.send_signal(signal.SIGCONT)
            self.other.stop()


@contextmanager
def slow_tool(tool: Path, waits: Path) -> Iterator[None]:
    """The first call of a tool is done, and its reply comes at the end."""
    real = tool.with_name(f"{tool.name}.real")
    waits.mkdir()
    tool.rename(real)
    tool.write_text(SLOW.format(real=real, waits=waits))
    tool.chmod(0o755)
    try:
        yield
    finally:
        real.replace(tool)
        shutil.rmtree(waits)


@pytest.mark.xdist_group("slurm")
@pytest.mark.parametrize("failure", FAILURES)
def test_sbatch(newest_condor: Condor, slurm: SlurmLab, tmp_path: Path, failure: str) -> None:
    with horeka(newest_condor, slurm, "tools", most=2) as lab:

        def ever() -> Counter[str]:
            names = [job.name for job in slurm.jobs("-u", "drone")]
            return Counter(name.partition(".")[0] for name in names)

        members = Members(lab.controller, ever)
        late = slow_tool(slurm.tools / "sbatch", tmp_path / "waits")
        with members.story(lab.submit, late, failure):
            lab.let_go()


@dataclass(frozen=True)
class ByTools(TopasSite):
    """The site by HTCondor's tools."""

    tools: Path = Path()

    def settings(self, controller: LabController) -> Settings:
        found = super().settings(controller)
        by_tools = {"transport": "tools", "tools": {"path": str(self.tools)}}
        return {**found, "options": {**found["options"], **by_tools}}


@pytest.mark.parametrize("failure", FAILURES)
def test_condor_submit(newest_condor: Condor, tmp_path: Path, failure: str) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for each in (newest_condor.prefix / "usr/bin").iterdir():
        (tools / each.name).symlink_to(each)
    with topas_lab(newest_condor) as lab:
        site = ByTools(lab.site, lab.etp, tools=tools)
        lab.controller.sites = (site,)

        def ever() -> Counter[str]:
            return Counter(str(ad["DroneId"]) for ad in lab.drone_jobs())

        members = Members(lab.controller, ever)
        late = slow_tool(tools / "condor_submit", tmp_path / "waits")
        with members.story(
            lambda n: lab.overlay.submit(gpu_job(n=n, until_there=lab.overlay.file("enough"))),
            late,
            failure,
        ):
            pass


@pytest.mark.xdist_group("openstack")
@pytest.mark.parametrize("failure", FAILURES)
def test_nova_create(openstack: OpenStackLab, failure: str) -> None:
    with openstack_drill(openstack) as lab:
        late = openstack.nova.failing(path="/servers$", **LATE_REPLY)
        with Members(lab.controller, lab.watch.ever).story(lab.submit, late, failure):
            lab.over()
            lab.judge()


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("kind", ["pod", "job"])
def test_a_pods_create(kubernetes: KubernetesLab, kind: str, failure: str) -> None:
    with kubernetes_drill(kubernetes, options={"kind": kind}) as lab:
        late = kubernetes.front.failing(path="/(pods|jobs)$", **LATE_REPLY)

        def ever() -> Counter[str]:
            return Counter(drone_of(each) for each in kubernetes.pods())

        with Members(lab.controller, ever).story(lab.submit, late, failure):
            lab.over()
