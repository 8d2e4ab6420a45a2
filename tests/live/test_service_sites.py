"""Drones with inference servers in allocations of a Slurm cluster and in slots of an HTCondor cluster.

Real Tritons, clients and haproxy. Each node has an address of its own on loopback, by the name that
its site lists; only the controller's host knows these names.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from adapters.htcondor.site.listing import OUR_REASON
from tests.labs import htcondor, network
from tests.labs.controller import A100, LabController, Settings, gpu_type
from tests.labs.facilities import HorekaSite
from tests.labs.htcondor import Condor, lab_directory, until
from tests.labs.htcondor_sites import GRID, SITE_SCHEDD, SIZE, NodeShape, SitePool, TopasSite
from tests.labs.inference import REQUEST_S, InferenceLab, running_inference, server_settings
from tests.labs.slurm import UIDS, SlurmLab
from tests.labs.triton import TritonPrograms

pytestmark = pytest.mark.xdist_group("slurm")
NODES = {f"hkn{number:04}": f"127.8.1.{number % 100}" for number in (801, 802, 901)} | {
    f"node{number}.site.test": f"127.8.2.{number}" for number in (1, 2)
}
"""Addresses of the nodes of both clusters."""


class ServerController(LabController):
    """A controller of servers alone, on a host that knows the names of the nodes."""

    def overlay_settings(self) -> Settings:
        return {"adapter": "embedded", "options": {"path": "queue.db"}}


@contextmanager
def server_controller() -> Iterator[ServerController]:
    if not network.available():
        pytest.skip("a host that knows the nodes' names needs a namespace, and root")
    with lab_directory("controller") as directory:
        hosts = directory / "hosts"
        # both protocols, of which the servers have one
        lines = [f"::1 {name}\n{address} {name}\n" for name, address in NODES.items()]
        hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
        known = f'mount --bind {hosts} /etc/hosts && exec "$@"'
        around = ("unshare", "--mount", "sh", "-c", known, "sh")
        yield ServerController(None, directory / "c", (), around=around)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class ServerCluster:
    """A cluster with servers on its nodes."""

    tritons: TritonPrograms
    walltime: str

    def server_type(self, programs: TritonPrograms, directory: Path) -> Settings:
        server = server_settings(programs, directory, REQUEST_S)
        size = SIZE | {"cpus": 2, "memory": "2 GiB", "walltime": self.walltime}
        return gpu_type(*A100, **size) | {"server": server}


# ------------------------------------------------------------------------------------------- HTCondor


@dataclass(frozen=True)
class TopasServers(ServerCluster):
    """An owner's HTCondor cluster as a site of servers."""

    pool: SitePool
    name: str = "topas"

    def settings(self, controller: LabController) -> Settings:
        kind = self.server_type(self.tritons, controller.directory / "tritons")
        topas = TopasSite(self.pool, self.pool, {"triton": kind}).settings(controller)
        options = {**topas["options"], "owner": {"schedds": [SITE_SCHEDD]}}
        del options["token_directory"]  # the owner has no queue elsewhere
        return topas | {"options": options}


@contextmanager
def condor_servers(
    condor: Condor, walltime: str, **differ: Any
) -> Iterator[tuple[SitePool, InferenceLab]]:
    node = NodeShape("node1", gpus=2, cpus=32, memory_mib=128 * 1024)
    nodes = (node, replace(node, name="node2"))
    with (
        lab_directory("topas") as root,
        htcondor.running(SitePool(root, condor, nodes)) as pool,
        server_controller() as controller,
    ):
        site = TopasServers(pool, tritons=TritonPrograms.fetched(), walltime=walltime)
        with running_inference(controller, site, **differ) as lab:
            yield pool, lab


# ---------------------------------------------------------------------------------------------- Slurm


def inside_slurm(lab: SlurmLab, programs: TritonPrograms) -> TritonPrograms:
    """Return the programs for the nodes of a cluster, which get the Python of this host beside their own."""
    environment = lab.shared / "triton"
    program = environment / "bin/python3"  # where the server looks for it
    if program.is_symlink():
        return replace(programs, python=program)
    asked = "import sysconfig as s; v = s.get_config_var; print(s.get_path('stdlib'))"
    asked += "; print(v('LIBDIR') + '/' + v('INSTSONAME'))"
    said = subprocess.check_output([programs.python, "-c", asked], text=True)
    library, shared = said.split()
    python = programs.python.resolve()
    for file in (str(python), shared):
        shutil.copy(file, lab.inside(file))
    shutil.copytree(library, lab.inside(library), symlinks=True)
    program.parent.mkdir(parents=True)
    program.symlink_to(python)
    (environment / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    (environment / "lib").symlink_to(programs.python.parent.parent / "lib")
    return replace(programs, python=program)


@dataclass(frozen=True)
class HorekaServers(ServerCluster):
    """A Slurm cluster as a site of servers."""

    slurm: SlurmLab
    name: str = "horeka"

    def settings(self, controller: LabController) -> Settings:
        programs = inside_slurm(self.slurm, self.tritons)
        kind = self.server_type(programs, self.slurm.shared / "tritons")
        horeka = HorekaSite(self.slurm).settings(controller)
        options = {"types": {"triton": {"partition": "accelerated", "gres": "gpu:a100"}}}
        return horeka | {"types": {"triton": kind}, "options": horeka["options"] | options}


# ----------------------------------------------------------------------------------------------- tests


def serves_until_it_is_drained(lab: InferenceLab) -> str:
    """Have requests of both protocols answered by a server, and drain it. Return its drone."""
    lab.until_serving(1)
    [drone] = lab.drones()
    assert lab.addresses() == [NODES[drone["node"]]]
    answers = [lab.load(protocol, 20, 3).answers() for protocol in ("grpc", "http")]
    assert [(len(each.rows), each.errors) for each in answers] == [(60, {}), (60, {})]
    lab.controller.prints("sites", "disable", lab.site, "--reason", "test")
    lab.controller.prints("drones", "drain", drone["id"], "--reason", "test", "--yes")
    until(lambda: not lab.drones(), 60, what="no server is left", every_s=0.3)
    return ended_by_order(lab, drone["id"])


def is_replaced_before_its_walltime(lab: InferenceLab, seconds: int) -> str:
    """Send requests for longer than a server lives; none is lost. Return the first server's drone."""
    lab.until_serving(1)
    [old] = lab.drones()
    loads = [lab.load(protocol, 10, seconds) for protocol in ("grpc", "http")]
    until(lambda: old["id"] not in lab.ids(), seconds, what="the first has left", every_s=0.3)
    ended_at = time.time()
    answers = [load.answers() for load in loads]
    assert [each.errors for each in answers] == [{}, {}]
    assert min(each.rows[-1][0] for each in answers) > ended_at
    return ended_by_order(lab, old["id"])


def ended_by_order(lab: InferenceLab, drone_id: str) -> str:
    """Assert that the controller ended a drone once it had no requests, and that nothing runs on."""
    [drone] = [each for each in lab.controller.drones(ended=True) if each["id"] == drone_id]
    assert drone["state"] == "done", drone
    assert f"drone.stop_ordered drone={drone_id} kill=False reason=server-drained" in (
        lab.controller.log()
    )
    until(lambda: not lab.processes(drone_id), 30, what="no process is left")
    return drone_id


@contextmanager
def slurm_servers(slurm: SlurmLab, walltime: str, **differ: Any) -> Iterator[InferenceLab]:
    site = HorekaServers(slurm, tritons=TritonPrograms.fetched(), walltime=walltime)
    with server_controller() as controller, running_inference(controller, site, **differ) as lab:
        yield lab


def slurm_ended(
    slurm: SlurmLab, drone_id: str, wanted: str = f"CANCELLED by {UIDS['drone']}"
) -> None:
    """Assert that the job of a drone ended so before its limit, and left nothing on its node."""
    name = f"{drone_id}.triton.horeka"
    columns = "--format=State,Elapsed,TimelimitRaw"
    words = ("sacct", "-X", "-n", "-P", f"--name={name}", columns)
    until(lambda: wanted in slurm.run(*words, user="root"), 30, what="it is on record")
    [row] = slurm.run(*words, user="root").splitlines()
    _, elapsed, limit_min = row.split("|")
    hours, minutes, seconds = map(int, elapsed.split(":"))
    assert hours * 3600 + minutes * 60 + seconds < int(limit_min) * 60
    assert not list(slurm.inside("/tmp").glob(f"drone.{drone_id}.*"))


def condor_ended(pool: SitePool, drone_id: str) -> None:
    """Assert that the job of a drone was removed by the controller, and that its server left in time."""
    [ad] = [each for each in pool.of(GRID) if each["DroneId"] == drone_id]
    assert (ad["JobStatus"], ad["RemoveReason"][: len(OUR_REASON)]) == (3, OUR_REASON)
    assert ad["RemoteWallClockTime"] < ad["AllowedExecuteDuration"]


def test_a_server_in_a_slurm_job_serves_and_ends_by_order(slurm: SlurmLab) -> None:
    with slurm_servers(slurm, "1h", at_least=1) as lab:
        slurm_ended(slurm, serves_until_it_is_drained(lab))


@pytest.mark.matrix
def test_a_server_in_a_slurm_job_is_replaced_before_its_walltime(slurm: SlurmLab) -> None:
    with slurm_servers(slurm, "4min", at_least=1) as lab:
        slurm_ended(slurm, is_replaced_before_its_walltime(lab, 100))


@pytest.mark.matrix
def test_without_its_controller_a_server_in_a_slurm_job_ends_before_its_walltime(
    slurm: SlurmLab,
) -> None:
    with slurm_servers(slurm, "3min", at_least=1) as lab:
        lab.until_serving(1)
        lab.controller.kill()
        [drone] = lab.drones()
        assert lab.load("grpc", 20, 2).answers().errors == {}, "it goes on meanwhile"
        until(lambda: not lab.processes(drone["id"]), 180, what="it has ended", every_s=1)
        slurm_ended(slurm, drone["id"], "COMPLETED")


def test_a_server_in_an_htcondor_slot_serves_and_ends_by_order(newest_condor: Condor) -> None:
    with condor_servers(newest_condor, "1h", at_least=1) as (pool, lab):
        condor_ended(pool, serves_until_it_is_drained(lab))


@pytest.mark.matrix
def test_a_server_in_an_htcondor_slot_is_replaced_before_its_walltime(
    newest_condor: Condor,
) -> None:
    with condor_servers(newest_condor, "130s", at_least=1) as (pool, lab):
        condor_ended(pool, is_replaced_before_its_walltime(lab, 100))
