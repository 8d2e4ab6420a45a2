"""Drones as pilots, accounting and people see them: the parts that need no daemons."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from adapters.htcondor import classad2
from adapters.htcondor.classads import number
from adapters.htcondor.overlay.matching import ReceivedSlot, template, unmet_requirement
from provisioner.cli.check import render_app
from provisioner.config import load_site
from provisioner.drone import environment, script
from provisioner.model import DroneId, DroneType, StartOrder
from tests.labs.gpu import FakeGpus

SITE = """\
site: kit
adapter: local
glidein_site: FZK-LCG2
dcgm_jobs: /run/dcgm-job-map
types:
  a100:
    gpus: 1
    cpus: 8
    memory: 20 GiB
    disk: 50 GiB
    benchmark:
      - {name: HEPscore23, value: 14.409, date: "2026-11-01", average: 12}
      - {name: HEPSPEC, value: 14, date: "2026-10-01"}
      - {name: MLPERF, value: 1600, date: "2026-11-01", per: gpu}
    speed: {fp64: 9.7}
  plain: {gpus: 0, cpus: 8, memory: 20 GiB, disk: 50 GiB}
options: {root: drones}
"""


def types_of(tmp_path: Path, text: str) -> dict[str, DroneType]:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    return {kind.name: kind for kind in load_site(file).types}


def test_benchmarks_become_what_the_slot_publishes(tmp_path: Path) -> None:
    types = types_of(tmp_path, SITE)
    told = environment(StartOrder(DroneId("d"), types["a100"], 1.0, 1.0))
    assert told["DRONE_AD"].split() == [
        'GLIDEIN_Site="FZK-LCG2"',
        "ApelSpecs=[HEPscore23=14.409;HEPSPEC=14]",
        "GpuSpecs=[MLPERF=1600]",
        "HEPSPEC_PER_CORE=14.409",
        "ApelScaling=1.20075",
        'BenchmarkDates=[HEPscore23="2026-11-01";HEPSPEC="2026-10-01";MLPERF="2026-11-01"]',
        "GpuSpeed=[FP64=9.7]",
    ]
    assert told["DRONE_DCGM_JOBS"] == "/run/dcgm-job-map"
    assert types["plain"].published == {"GLIDEIN_Site": '"FZK-LCG2"'}
    nameless = types_of(tmp_path, SITE.replace("glidein_site: FZK-LCG2\n", ""))["plain"]
    assert "DRONE_AD" not in environment(StartOrder(DroneId("d"), nameless, 1.0, 1.0))


def test_jobs_are_matched_with_what_the_slot_will_publish(tmp_path: Path) -> None:
    types = types_of(tmp_path, SITE)
    assert number(template(types["a100"]), "HEPSPEC_PER_CORE") == 14.409
    assert "ApelSpecs" not in template(types["plain"])


QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")


@pytest.fixture(scope="module")
def gpu_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpus")


@pytest.fixture
def gpus(gpu_programs: Path) -> FakeGpus:
    return FakeGpus.build(gpu_programs)


def job_sees(
    gpus: FakeGpus, tmp_path: Path, ids: str, *words: str, share_mib: str = "", slot: str = ""
) -> tuple[int, str]:
    """Exit status and output of the nvidia-smi that a drone gives its jobs, in a job with these devices."""
    program, ad = tmp_path / "nvidia-smi", tmp_path / "machine.ad"
    head = f"#!/bin/sh\nreal={gpus.directory}/nvidia-smi\nshare_mib={share_mib}\n"
    program.write_text(head + script("nvidia_smi.sh").decode())
    program.chmod(0o755)
    ad.write_text(slot)
    env = {**gpus.env, "_CONDOR_AssignedGPUs": ids, "_CONDOR_MACHINE_AD": str(ad)}
    done = subprocess.run([program, *words], env=env, text=True, capture_output=True, timeout=60)
    return done.returncode, done.stdout


def test_a_job_sees_its_own_devices_with_the_memory_of_its_share(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    second = gpus.uuid(1)[:12]
    gpus.set(1, 20, 15000)

    def sees(*words: str, ids: str = second, **how: str) -> tuple[int, str]:
        return job_sees(gpus, tmp_path, ids, *words, **how)

    assert sees(*QUERY) == (0, "NVIDIA A100-SXM4-40GB, 40536, 580.159.04\n")
    assert sees(*QUERY, share_mib="10134") == (0, "NVIDIA A100-SXM4-40GB, 10134, 580.159.04\n")
    amounts = "--query-gpu=memory.total,index,memory.used,memory.free"
    units = sees(amounts, "--format=csv,noheader", "-i", "0", share_mib="10134")
    assert units == (0, "10134 MiB, 1, 10134 MiB, 10134 MiB\n")
    pooled = sees(*QUERY, share_mib="10134", slot="GPUMem = 20000\n")
    assert pooled == (0, "NVIDIA A100-SXM4-40GB, 20000, 580.159.04\n")
    assert sees("-L") == (0, f"GPU 1: NVIDIA A100-SXM4-40GB (UUID: {gpus.uuid(1)})\n")
    assert sees(*QUERY, ids="") == (6, "No devices were found\n")
    both = sees("--query-gpu=index", "--format=csv,noheader", ids=f"{gpus.uuid(0)}, {second}")
    assert both == (0, "0\n1\n")
    gpus.fail("nvmlInit_v2", 9)
    assert sees(*QUERY)[0] == 9


def test_a_job_on_an_instance_sees_its_memory_and_itself_alone(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    gpus.mig(0, 2, 20096)
    own = {"share_mib": "slot", "slot": "GPUs_GlobalMemoryMb = 20096\n"}
    instance = gpus.uuid(0, 1)
    query = job_sees(gpus, tmp_path, instance, *QUERY, **own)
    assert query == (0, "NVIDIA A100-SXM4-40GB, 20096, 580.159.04\n")
    listed = job_sees(gpus, tmp_path, instance, "-L", **own)[1]
    assert listed.count("UUID") == 2 and gpus.uuid(0, 0) not in listed


class GpuRequest(NamedTuple):
    """A job's request, as PanDA brokers it."""

    vram_mib: int = 0
    cuda: str = "0"
    driver: str = "0"
    vendor: str = ""
    model: str = ""


class NodeEntry(NamedTuple):
    """A node of a queue, as its pilots report it."""

    vram_mib: int
    cuda: str
    driver: str
    vendor: str
    model: str


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def brokered(queue: list[NodeEntry], request: GpuRequest) -> bool:
    """PanDA's rule: minimum VRAM, CUDA and driver must hold on all nodes of a queue, vendor and model on any
    (panda-server#748)."""
    enough = all(
        node.vram_mib >= request.vram_mib
        and numbers(node.cuda) >= numbers(request.cuda)
        and numbers(node.driver) >= numbers(request.driver)
        for node in queue
    )
    vendor = any(request.vendor in node.vendor for node in queue)
    return enough and vendor and any(request.model in node.model for node in queue)


SHARES = {"exclusive": "", "mps": "10134", "time-sliced": "20268", "mig": "slot", "cpu": ""}
"""The memory of a share, as a drone writes it into the nvidia-smi of its jobs."""
OLD_DRIVER = ("535.230.02", 12020)


def reported(gpus: FakeGpus, tmp_path: Path, node: str) -> list[NodeEntry]:
    """Return what a pilot reports from a drone, by the query and by the head of nvidia-smi's table.

    ``node``: how the drone shares its GPU, and ``/old`` for a node with an older driver.
    """
    mode, _, old = node.partition("/")
    ids = {"cpu": "", "mig": gpus.uuid(0, 1)}.get(mode, gpus.uuid(0))
    gpus.mig(0, 2 * (mode == "mig"), 20096)
    gpus.driver(*(OLD_DRIVER if old else ("580.159.04", 13000)))
    drone = {"share_mib": SHARES[mode], "slot": "GPUs_GlobalMemoryMb = 20096\n"}
    code, said = job_sees(gpus, tmp_path, ids, *QUERY, **drone)
    table = job_sees(gpus, tmp_path, ids, **drone)
    if mode == "cpu":
        assert (code, said) == table == (6, "No devices were found\n")
        return []
    (line,) = said.splitlines()
    name, vram, driver = line.split(", ")
    vendor, _, model = name.partition(" ")
    (cuda,) = re.findall(r"CUDA Version: ([0-9.]+)", table[1])
    assert re.findall(r"/ +(\d+)MiB", table[1]) == [vram], "as the query says"
    return [NodeEntry(int(vram), cuda, driver, vendor, model)]


@pytest.mark.parametrize("mode", SHARES)
def test_a_pilot_can_report_all_that_panda_brokers_by(
    gpus: FakeGpus, tmp_path: Path, mode: str
) -> None:
    vram_mib = {"exclusive": 40536, "mps": 10134, "time-sliced": 20268, "mig": 20096}
    known = [
        NodeEntry(vram_mib[mode], cuda, driver, "NVIDIA", "A100-SXM4-40GB")
        for cuda, driver in (("13.0", "580.159.04"), ("12.2", "535.230.02"))
        if mode != "cpu"
    ]
    assert [each for old in ("", "/old") for each in reported(gpus, tmp_path, mode + old)] == known


@pytest.mark.parametrize(
    ("queue", "request_", "fits"),
    [
        ("exclusive", GpuRequest(40000), True),
        ("exclusive mps", GpuRequest(40000), False),
        ("exclusive mps", GpuRequest(10000), True),
        ("mps time-sliced", GpuRequest(10134, "13.0", "580", "NVIDIA", "A100"), True),
        ("mps time-sliced", GpuRequest(10135), False),
        ("mig mps", GpuRequest(20000), False),
        ("mig", GpuRequest(20096), True),
        ("mig", GpuRequest(20097), False),
        ("time-sliced", GpuRequest(cuda="12.8"), True),
        ("time-sliced/old", GpuRequest(cuda="12.8"), False),
        ("time-sliced time-sliced/old", GpuRequest(cuda="12.8"), False),
        ("time-sliced time-sliced/old", GpuRequest(cuda="12.2"), True),
        ("mig", GpuRequest(cuda="13.1"), False),
        ("mps mps/old", GpuRequest(driver="550.54.15"), False),
        ("mps mps/old", GpuRequest(driver="535.230.02"), True),
        ("exclusive", GpuRequest(driver="581"), False),
        ("mps mig", GpuRequest(vendor="NVIDIA"), True),
        ("mps mig", GpuRequest(vendor="AMD"), False),
        ("mps", GpuRequest(model="H100"), False),
        ("cpu mps", GpuRequest(10000, "13.0", "580", "NVIDIA", "A100"), True),
        ("cpu", GpuRequest(), False),
    ],
)
def test_panda_brokers_by_the_least_of_a_queue(
    gpus: FakeGpus, tmp_path: Path, queue: str, request_: GpuRequest, fits: bool
) -> None:
    nodes = [each for node in queue.split() for each in reported(gpus, tmp_path, node)]
    assert brokered(nodes, request_) == fits


QUARTERS = SITE.replace("gpus: 1\n", "gpus: 1\n    sharing: mps\n    shares: 4\n")
JOB = "Requirements = true; RequestGPUs = 1; RequestCpus = 1; RequestMemory = 1; RequestDisk = 1"


@pytest.mark.parametrize(
    ("text", "job", "fits"),
    [
        (QUARTERS, "GpuMilli = 250", True),
        (QUARTERS, 'GpuMilli = 250; GpuApi = "CUDA"', True),
        (QUARTERS, 'GpuMilli = 250; GpuApi = "opencl"', False),
        (QUARTERS, "GpuMilli = 250; GpuApi = 7", False),
        (QUARTERS.replace("mps", "time-sliced"), 'GpuMilli = 250; GpuApi = "hip"', True),
        (SITE, 'GpuApi = "opencl"', True),
    ],
)
def test_jobs_of_other_interfaces_than_cuda_are_no_demand_for_mps(
    tmp_path: Path, text: str, job: str, fits: bool
) -> None:
    slot = template(types_of(tmp_path, text)["a100"])
    found = unmet_requirement(classad2.ClassAd(f"[{JOB}; {job}]"), slot)
    assert (found is None) == fits, found


def test_interactive_jobs_are_no_demand_for_a_type_without_sshd(tmp_path: Path) -> None:
    kind = types_of(tmp_path, SITE)["a100"]
    job = classad2.ClassAd(f"[{JOB}; InteractiveJob = true]")
    assert unmet_requirement(job, template(kind)) is None
    seen = ReceivedSlot({"SshToJob": "false"})
    assert unmet_requirement(job, template(kind, seen)) is not None


def test_the_rendered_start_keeps_pilots_from_drones_that_show_them_another_gpu(
    tmp_path: Path,
) -> None:
    clause = CliRunner().invoke(render_app, ["gpu-view"]).stdout
    kind = types_of(tmp_path, SITE)["a100"]
    pilot = classad2.ClassAd(f'[{JOB}; RoutedFromJobId = "1.0"]')
    for shown, job, fits in (
        ("true", pilot, True),
        ("false", pilot, False),
        ("false", classad2.ClassAd(f"[{JOB}]"), True),
    ):
        slot = template(kind, ReceivedSlot({"GpuViewTrue": shown}), clause)
        assert (unmet_requirement(job, slot) is None) == fits, shown
