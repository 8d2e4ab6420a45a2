"""Records of real jobs by AUDITOR's real HTCondor collector and APEL plug-in, with our rendered configuration."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from adapters.htcondor.overlay import HTCondorConfig, accounting
from adapters.htcondor.overlay.accounting import MACHINE_ATTRIBUTES, pool_lines
from provisioner import drone
from provisioner.interfaces import AuditFinding
from provisioner.model import Benchmark, DroneId, DroneType, Sharing, StartOrder
from provisioner.store import ledger
from provisioner.store.file import connect
from tests.htcondor_overlay.live import overlay_on
from tests.labs import auditor, htcondor, mps as labs_mps
from tests.labs.auditor import AuditorServer
from tests.labs.controller import A100, LabController, LabSite
from tests.labs.gpu import FakeGpus
from tests.labs.htcondor import Pool, StartDrone, gpu_job, until

SCORES = (
    Benchmark("HEPscore23", 14.4, "2026-11-01"),
    Benchmark("MLPERF", 1600, "2026-11-01", per="gpu"),
)
WHOLE_TYPES = (
    DroneType("lab", "whole", 1000, 2, 512, 1024, benchmark=SCORES, glidein_site="LAB-GRID"),
)


@pytest.fixture
def server() -> Iterator[AuditorServer]:
    try:
        htcondor.fetched("get-auditor.sh")
    except htcondor.LabError as error:
        pytest.skip(str(error))
    with auditor.running_auditor() as server:
        yield server


def config_of(pool: Pool) -> HTCondorConfig:
    return HTCondorConfig.model_validate(
        {
            "collector": pool.collector,
            "trust_domain": pool.domain,
            "token": {"file": pool.dir / "clients/admin/tokens/admin"},
            "drone_signing_key": pool.key,
            "vo": 'VO ?: "none"',
        }
    )


class Accounts:
    """The files of ``render accounting``, put in place for a lab."""

    def __init__(self, pool: Pool, server: AuditorServer) -> None:
        self._pool, self._directory, self._server = pool, pool.dir / "auditor", server
        self._directory.mkdir()
        # a token file counts only for the account that it belongs to
        client = pool.dir / "clients/admin"
        shutil.copytree(client, self._directory / "admin")
        self._config = self._directory / "admin/condor_config"
        self._config.write_text(
            self._config.read_text().replace(str(client), str(self._config.parent))
        )
        [schedd] = pool.run("condor_status", "-schedd", "-af", "Name").split()
        self._rendered = {
            name: text.replace("SCHEDD", schedd)
            .replace("auditor.example.org", "127.0.0.1")
            .replace("port: 8000", f"port: {server.port}")
            .replace("/var/lib/auditor", str(self._directory))
            .replace("/etc/grid-security", str(self._directory))
            .replace("log_level: INFO", "log_level: DEBUG")
            for name, text in accounting.files(config_of(pool), WHOLE_TYPES).items()
        }

    def _file(self, name: str) -> Path:
        file = self._directory / name
        file.write_text(self._rendered[name])
        return file

    def collect(self) -> dict[int, dict[str, Any]]:
        """Run the collector once, and return all records by cluster."""
        env = {
            "PATH": self._pool.condor.path,
            "CONDOR_CONFIG": str(self._config),
        }
        said = auditor.run_plugin(
            "auditor-htcondor-collector",
            *("-c", self._file("auditor-htcondor-collector.yml"), "--one-shot"),
            env=env,
        )
        assert "ERROR" not in said, said
        return {
            int(re.search(r"#(\d+)\.", name)[1]): record  # type: ignore[index]
            for name, record in self._server.records.items()
        }

    def publish(self) -> str:
        """Run the APEL plug-in without sending, and return its message."""
        auditor.make_host_certificate(self._directory)
        file = self._file("auditor-apel-plugin.yml")
        return auditor.run_plugin("auditor-apel-publish", "-c", file, "--dry-run")


def amounts(record: dict[str, Any]) -> dict[str, int]:
    return {each["name"]: each["amount"] for each in record["components"]}


def told(kind: DroneType) -> dict[str, str]:
    """The part of a drone's environment that says what its slot publishes."""
    env = drone.environment(StartOrder(DroneId("d"), kind, idle_timeout_s=1.0, grace_s=1.0))
    return {"DRONE_AD": env["DRONE_AD"]}


def run_s(ad: dict[str, Any]) -> int:
    ended = ad["CompletionDate"] or ad["EnteredCurrentStatus"]
    return int(ended - max(ad.get("JobCurrentStartExecutingDate", 0), ad["JobCurrentStartDate"]))


def test_the_collector_records_jobs_on_whole_gpus_and_the_plugin_reports_them(
    new_pool: Callable[[str], Pool], drone_on: StartDrone, server: AuditorServer
) -> None:
    pool = new_pool(pool_lines())
    gpus = FakeGpus.build(pool.root / "gpus", 1)
    vo = '+VO = "cms"'
    load = pool.program("load", f"{gpus.declare(50, 20000)}\nsleep 8")
    failing = pool.program("failing", "sleep 4; exit 3")
    done = pool.submit(gpu_job(program=load, more=vo))
    first = drone_on(pool, "acct-1", env={**gpus.drone_env, **told(WHOLE_TYPES[0])})
    until(lambda: pool.history(done), 120, what="the job is done")
    failed = pool.submit(gpu_job(program=failing, more=vo))
    until(lambda: pool.history(failed), 60, what="the job has failed")
    preempted = pool.submit(gpu_job(8, more=vo))
    until(lambda: pool.statuses(preempted) == [2], 60, what="the job runs")
    first.stop()
    second = drone_on(pool, "acct-2", env=gpus.drone_env)
    until(lambda: pool.history(preempted), 120, what="the job has run again")

    accounts = Accounts(pool, server)
    records = accounts.collect()
    assert set(records) == {done, failed, preempted}
    for cluster in records:
        [ad] = pool.history(cluster)
        found = amounts(records[cluster])
        assert found["GPUMilli"] == 1000
        assert found["GPUHeldMilliSeconds"] == 1000 * run_s(ad), "in whole GPU-milliseconds"
        used = 1000 * ad["GPUsAverageUsage"] * run_s(ad)
        assert found["GPUUsedMilliSeconds"] == pytest.approx(used, abs=1)
        assert found["GPUEnergyJ"] == int(ad["GPUsEnergyUsage"])
        assert records[cluster]["meta"]["site"] == ["lab"]
        assert records[cluster]["meta"]["voms"] == ["cms"]
        assert records[cluster]["meta"]["gpu_model"] == ["NVIDIA A100-SXM4-40GB"]
        assert records[cluster]["meta"]["gpu_sharing"] == ["exclusive"]
        assert records[cluster]["meta"]["gpu_use"] == ["measured"]
    assert amounts(records[done])["GPUPeakMiB"] == 20000
    assert records[preempted]["meta"]["drone"] == [second.id], "of its last run alone"
    scores = {
        score["name"]: score["value"]
        for each in records[done]["components"]
        for score in each["scores"]
    }
    assert scores == {"HEPscore23": 14.4, "MLPERF": 1600.0}
    assert accounts.collect() == records, "a second run adds none"

    message = accounts.publish()
    runtime_s = {cluster: record["runtime"] for cluster, record in records.items()}
    scored_s = runtime_s[done] + runtime_s[failed]
    assert "Site: LAB-GRID" in message and "NumberOfJobs: 3" in message, message
    assert f"\nWallDuration: {sum(runtime_s.values())}\n" in message
    [normalised] = re.findall(r"NormalisedWallDuration: (\d+)", message)
    assert int(normalised) == pytest.approx(14.4 * scored_s, abs=2), "the second drone has no score"


LOAD_S = 75
"""The drone's monitor reports every 2 s; what a run did after the last report is not measured."""


class MpsGpus(NamedTuple):
    """A fake GPU for a drone with MPS: the server's process has the use of all clients."""

    gpus: FakeGpus
    server: subprocess.Popen[bytes]
    env: Mapping[str, str]


@pytest.fixture
def mps_gpus() -> Iterator[Callable[[Pool, str, int], MpsGpus]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(pool: Pool, name: str, percent: int) -> MpsGpus:
        gpus = FakeGpus.build(pool.root / name, 1)
        control = pool.root / f"{name}-mps"
        control.mkdir()
        pool.account.give(labs_mps.stand_in(control))
        program = control / "nvidia-cuda-mps-server"
        program.symlink_to(shutil.which("sleep") or "/bin/sleep")
        started.append(subprocess.Popen([program, "600"]))
        gpus.process(started[-1].pid, 0, percent, 66)
        env = {
            **gpus.drone_env,
            "PATH": f"{control}:{gpus.env['PATH']}",
            "DRONE_SHARING": Sharing.MPS.value,
            "DRONE_CPUS": "4",
        }
        return MpsGpus(gpus, started[-1], env)

    yield start
    for each in started:
        each.kill()
        each.wait()


async def test_use_and_energy_are_recorded_within_five_per_cent(
    new_pool: Callable[[str], Pool],
    drone_on: StartDrone,
    server: AuditorServer,
    mps_gpus: Callable[[Pool, str, int], MpsGpus],
) -> None:
    pool = new_pool(pool_lines())
    if pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor counts each GPU once, but for the slices of MIG")
    exclusive = FakeGpus.build(pool.root / "gpus", 1)
    quarters, pooled = mps_gpus(pool, "quarters", 60), mps_gpus(pool, "pooled", 80)
    drone_on(pool, "acct-one", env={**exclusive.drone_env, **told(WHOLE_TYPES[0])})
    drone_on(pool, "acct-mps", env={**quarters.env, "DRONE_SHARES": "4"})
    of_pool = {"DRONE_SHARES": "8", "DRONE_VRAM_POOL": "1", "DRONE_VRAM_MIB": "40000"}
    drone_on(pool, "acct-vram", env={**pooled.env, **of_pool})

    def submit(name: str, gpus: FakeGpus, percent: int, *more: str) -> int:
        load = f"{gpus.declare(percent, 4000)}\n"
        if percent == 0:
            load = f"echo '0 0 4000 mps' >{gpus.state}/process.$$\n"
        program = pool.program(f"load-{time.monotonic_ns()}", f"{load}sleep {LOAD_S}")
        lines = (f'requirements = regexp("{name}", DroneId)', *more)
        return pool.submit(gpu_job(program=program, memory_mib=100, more="\n".join(lines)))

    whole = submit("acct-one", exclusive, 50)
    shares = [submit("acct-mps", quarters.gpus, 0, "+GpuMilli = 250") for _ in range(2)]
    parts = [
        submit("acct-vram", pooled.gpus, 0, f"request_gpumem = {mib}") for mib in (20000, 4000)
    ]
    jobs = [whole, *shares, *parts]
    until(lambda: all(map(pool.history, jobs)), 240, what="all jobs are done")

    records = Accounts(pool, server).collect()
    async with overlay_on(pool) as overlay:
        view = await overlay.poll(WHOLE_TYPES)
    on_record = {int(run.job_id.rpartition("#")[2][:-2]): run for run in view.completions or ()}
    milli = {whole: 1000, shares[0]: 250, shares[1]: 250, parts[0]: 500, parts[1]: 125}
    used_part = {whole: 0.5, shares[0]: 0.3, shares[1]: 0.3, parts[0]: 0.4, parts[1]: 0.4}
    power_w = {whole: 225, shares[0]: 130, shares[1]: 130, parts[0]: 165, parts[1]: 165}
    for cluster in jobs:
        [ad] = pool.history(cluster)
        run_ms = 1000 * run_s(ad)
        found = amounts(records[cluster])
        assert found["GPUMilli"] == milli[cluster]
        assert found["GPUHeldMilliSeconds"] == milli[cluster] * run_s(ad)
        used = pytest.approx(used_part[cluster] * run_ms, rel=0.05)
        assert found["GPUUsedMilliSeconds"] == used, cluster
        assert found["GPUEnergyJ"] == pytest.approx(power_w[cluster] * run_s(ad), rel=0.05), cluster
        run = on_record[cluster]
        assert (run.used_milli or 0) * run.run_s == used, "what the ledger books"
        assert run.energy_j == pytest.approx(found["GPUEnergyJ"], abs=1)


OLDER_DRONE = b"""
DroneJobMilli = undefined
DroneSharing = undefined
DroneType = undefined
GpuSpecs = undefined
"""
"""Configuration of a drone without the attributes that releases before accounting did not publish."""


def test_the_collector_records_jobs_on_shares_and_drops_none(
    new_pool: Callable[[str], Pool], drone_on: StartDrone, server: AuditorServer
) -> None:
    pool = new_pool(pool_lines())
    if pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor counts each GPU once, but for the slices of MIG")
    gpus = FakeGpus.build(pool.root / "gpus", 1)
    quarters = {"DRONE_SHARING": Sharing.TIME_SLICED.value, "DRONE_SHARES": "4", "DRONE_CPUS": "4"}
    shared = drone_on(pool, "acct-shares", env={**gpus.drone_env, **quarters})
    shared.slot(pool)
    jobs = [pool.submit(gpu_job(5, more="+GpuMilli = 250")) for _ in range(2)]
    until(lambda: all(map(pool.history, jobs)), 120, what="the jobs are done")
    shared.stop()
    plain = drone_on(pool, "acct-cpu", env={"DRONE_GPUS": "0", "DRONE_GPU_MILLI": "0"})
    plain.slot(pool)
    cpu = pool.submit(gpu_job(2, gpus=0))
    until(lambda: pool.history(cpu), 120, what="the CPU job is done")
    plain.stop()
    mig = {"DRONE_GPU_SIMULATE": "5,1", "DRONE_SHARING": Sharing.MIG.value, "DRONE_SHARES": "2"}
    drone_on(pool, "acct-mig", env={**mig, "DRONE_CPUS": "4"})
    sliced = pool.submit(gpu_job(3, more='+GpuMilli = 500\nrequirements = DroneSharing == "mig"'))
    drone_on(pool, "acct-old", env=quarters, files={"extra.conf": OLDER_DRONE})
    old = pool.submit(gpu_job(3, more="+GpuMilli = 250\nrequirements = isUndefined(DroneSharing)"))
    until(lambda: all(map(pool.history, (sliced, old))), 120, what="the others are done")

    records = Accounts(pool, server).collect()
    assert set(records) == {*jobs, cpu, sliced, old}
    for cluster, milli in ((sliced, 500), (old, 250)):
        [ad] = pool.history(cluster)
        assert "GPUsAverageUsage" not in ad
        assert amounts(records[cluster])["GPUHeldMilliSeconds"] == milli * run_s(ad)
        assert amounts(records[cluster])["GPUUsedMilliSeconds"] == 0
        assert records[cluster]["meta"]["gpu_use"] == ["unknown"]
    assert records[sliced]["meta"]["gpu_sharing"] == ["mig"]
    assert "gpu_sharing" not in records[old]["meta"], "it does not say"
    for cluster in jobs:
        [ad] = pool.history(cluster)
        assert amounts(records[cluster])["GPUMilli"] == 250
        assert amounts(records[cluster])["GPUHeldMilliSeconds"] == 250 * run_s(ad)
        assert records[cluster]["meta"]["gpu_sharing"] == ["time-sliced"]
    assert amounts(records[cpu])["GPUHeldMilliSeconds"] == 0
    assert records[cpu]["meta"]["gpu_use"] == ["unknown"], "a record without figures is no zero"


def test_check_finds_a_schedd_that_lacks_the_lines(new_pool: Callable[[str], Pool]) -> None:
    pool = new_pool("SYSTEM_JOB_MACHINE_ATTRS = SiteName, DroneId\n")

    async def findings() -> list[AuditFinding]:
        async with overlay_on(pool, accounting=True) as overlay:
            return [*await overlay.probe(here=False)]

    [finding] = [each for each in asyncio.run(findings()) if each.dimension == "accounting"]
    assert all(name in finding.message for name in MACHINE_ATTRIBUTES[2:])
    assert " SiteName" not in finding.message


QUARTERS = LabSite(
    "quarters", "a100-4", A100, 4, type={"sharing": "time-sliced", "shares": 4, "cpus": 4}
)
WHOLES = LabSite("wholes", "a100", A100, 4)


@pytest.mark.parametrize("lab", [pool_lines()], indirect=True, ids=[""])
def test_the_ledger_of_a_controller_has_what_the_collector_recorded(
    lab: tuple[Pool, LabController], server: AuditorServer
) -> None:
    pool, controller = lab
    if pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor counts each GPU once, but for the slices of MIG")
    controller.sites = (QUARTERS, WHOLES)
    controller.start()
    small = [pool.submit(gpu_job(seconds, more="+GpuMilli = 250")) for seconds in (5, 8)]
    whole = [pool.submit(gpu_job(4)), pool.submit(gpu_job(program=pool.program("ends", "exit 3")))]
    jobs = [*small, *whole]
    until(lambda: all(map(pool.history, jobs)), 180, what="all jobs are done")
    record = controller.directory / "provisioner.db"
    until(lambda: runs_on_record(record) == len(jobs), 150, what="the controller has their runs")
    controller.all_gone()
    views = controller.record.views()
    assert views is not None
    types = {kind.key: kind for kind in views.types}
    controller.stop()
    with closing(connect(record)) as sql:
        while ledger.book_due(sql, time.time() + 2 * 86400.0, types, 30 * 86400.0):
            pass

    records = Accounts(pool, server).collect()
    month = time.strftime("%Y-%m", time.gmtime())
    found = {
        run["job_id"].rpartition("#")[2].partition(".")[0]: run
        for run in controller.json("accounting", "runs", "--month", month)["items"]
    }
    assert {int(cluster) for cluster in found} == set(records) == set(jobs)
    for cluster, each in records.items():
        run = found[str(cluster)]
        held = amounts(each)["GPUHeldMilliSeconds"]
        near = abs(held - run["held_gpu_s"] * 1000) <= run["gpu_milli"]
        assert near, f"{run}\n{pool.history(cluster)}"
        assert amounts(each)["GPUMilli"] == run["gpu_milli"]
        assert each["meta"]["drone"] == [run["drone_id"]]
    assert [found[str(each)]["outcome"] for each in jobs] == ["completed"] * 3 + ["failed"]

    url = f"http://127.0.0.1:{server.port}"
    words = ("accounting", "verify", "--month", month, "--records", url)
    agreed = controller.call(*words)
    assert agreed.returncode == 0, agreed.stdout + agreed.stderr
    server.records.popitem()
    assert controller.call(*words).returncode == 3


def runs_on_record(record: Path) -> int:
    with closing(sqlite3.connect(record)) as sql:
        (number,) = sql.execute("SELECT count(*) FROM completed_jobs").fetchone()
    return int(number)
