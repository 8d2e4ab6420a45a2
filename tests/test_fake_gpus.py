"""The fake GPU libraries of the labs: loads, processes, errors and MIG as NVIDIA's tools and libraries report them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.labs.gpu import FakeGpus


@pytest.fixture
def gpus(tmp_path: Path) -> FakeGpus:
    return FakeGpus.build(tmp_path / "gpus")


def smi(gpus: FakeGpus, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(gpus.directory / "nvidia-smi"), *words],
        env=dict(gpus.env),
        capture_output=True,
        text=True,
        timeout=60,
    )


def query(gpus: FakeGpus, fields: str) -> list[str]:
    """Return a line per GPU."""
    return smi(gpus, f"--query-gpu={fields}", "--format=csv,noheader,nounits").stdout.splitlines()


def test_a_process_counts_while_it_lives(gpus: FakeGpus) -> None:
    gpus.set(0, 20, 1000)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        gpus.process(process.pid, gpus.uuid(1), 30, 500)
        assert query(gpus, "index,utilization.gpu,memory.used") == ["0, 20, 1000", "1, 30, 500"]
        gpus.process(process.pid, 0, 90, 500)
        assert query(gpus, "index,utilization.gpu,memory.used") == ["0, 100, 1500", "1, 0, 0"]
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert query(gpus, "utilization.gpu") == ["20", "0"], (
            "one that nobody has waited for does not count"
        )
    assert query(gpus, "index,utilization.gpu,memory.used") == ["0, 20, 1000", "1, 0, 0"]


def test_a_job_declares_its_load_by_the_gpu_that_it_got(gpus: FakeGpus) -> None:
    script = f"{gpus.declare(40, 6000)}; read -r line"
    got = {"CUDA_VISIBLE_DEVICES": f"{gpus.uuid(1)[:12]},{gpus.uuid(0)}"}
    with subprocess.Popen(
        ["sh", "-c", f"{script}; echo"], env=got, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as job:
        while not (gpus.state / f"process.{job.pid}").exists() or query(
            gpus, "utilization.gpu"
        ) == ["0", "0"]:
            assert job.poll() is None
        assert query(gpus, "utilization.gpu,memory.used") == ["0, 0", "40, 6000"]
        gpus.forget(job.pid)
        assert query(gpus, "utilization.gpu") == ["0", "0"]
        job.communicate(b"\n")


def test_errors_and_calls_that_hang_are_set_and_repaired(gpus: FakeGpus) -> None:
    gpus.property(1, ecc_uncorrected=3, throttle=8, pcie_width=4, remap_pending=1)
    fields = (
        "ecc.errors.uncorrected.volatile.total,clocks_event_reasons.active,pcie.link.width.current"
    )
    assert query(gpus, f"{fields},remapped_rows.pending") == [
        "0, 0x0000000000000000, 16, 0",
        "3, 0x0000000000000008, 4, 1",
    ]
    gpus.fail("nvmlInit_v2", 9)
    assert smi(gpus, "-L").returncode == 9
    gpus.fail("nvmlInit_v2")
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([str(gpus.directory / "nvidia-smi"), "-L"], env=dict(gpus.env), timeout=2)
    gpus.repair("nvmlInit_v2")
    assert smi(gpus, "-L").returncode == 0


def test_mig_instances_have_uuids_and_memory_of_their_own(gpus: FakeGpus) -> None:
    gpus.mig(1, 2, 9728)
    assert smi(gpus, "-L").stdout.splitlines() == [
        f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {gpus.uuid(0)})",
        f"GPU 1: NVIDIA A100-SXM4-40GB (UUID: {gpus.uuid(1)})",
        f"  MIG 2g.10gb     Device  0: (UUID: {gpus.uuid(1, 0)})",
        f"  MIG 2g.10gb     Device  1: (UUID: {gpus.uuid(1, 1)})",
    ]
    assert query(gpus, "mig.mode.current,utilization.gpu") == ["Disabled, 0", "Enabled, [N/A]"]
