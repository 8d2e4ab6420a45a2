"""The drone's own GPU check, against an `nvidia-smi` that says what real ones say; needs no HTCondor."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provisioner.drone import script

A100S = (
    "0, GPU-9d1b6b3c-0000-0000-0000-000000000000, 0\n"
    "1, GPU-9d1b6b3c-0000-0000-0000-000000000001, 3\n"
    "10, GPU-9d1b6b3c-0000-0000-0000-000000000010, [N/A]\n"
)


@pytest.fixture
def smi(tmp_path: Path) -> Path:
    """The `nvidia-smi` of a host with three GPUs, the second of them broken."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\ncase $1 in -L) echo '  MIG 1g.5gb Device 0: (UUID: MIG-aa11)' ;; *) cat <<'X'\n{A100S}X\n;; esac\n"
    )
    program.chmod(0o755)
    return program


def check(smi: Path, **env: str) -> tuple[int, str]:
    """Exit status and last words of the check."""
    (smi.parent / "check").write_bytes(script("gpu_check.sh"))
    path = f"{smi.parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["/bin/sh", str(smi.parent / "check")], env={"PATH": path, **env}, capture_output=True, text=True, timeout=20
    )
    return done.returncode, done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "devices",
    ["0", "10", "0,10", "GPU-9d1b6b3c-0000-0000-0000-000000000000", "GPU-9d1b6b3c-0000-0000-0000-000000000010,0"],
)
def test_devices_that_are_there_and_well(smi: Path, devices: str) -> None:
    count = devices.count(",") + 1
    assert check(smi, CUDA_VISIBLE_DEVICES=devices, DRONE_GPUS=str(count)) == (0, f"{count} GPUs answer")


def test_a_slice_of_a_gpu(smi: Path) -> None:
    assert check(smi, CUDA_VISIBLE_DEVICES="MIG-aa11", DRONE_GPUS="1") == (0, "1 GPUs answer")
    assert check(smi, CUDA_VISIBLE_DEVICES="MIG-bb22", DRONE_GPUS="1") == (1, "there is no MIG-bb22")


LISTED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-9d1b6b3c-0000-0000-0000-000000000000)
  MIG 3g.20gb     Device  0: (UUID: MIG-aa11)
  MIG 3g.20gb     Device  1: (UUID: MIG-aa12)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-9d1b6b3c-0000-0000-0000-000000000001)
GPU 10: NVIDIA A100-SXM4-40GB (UUID: GPU-9d1b6b3c-0000-0000-0000-000000000010)
  MIG 3g.20gb     Device  0: (UUID: MIG-cc11)
"""
"""What `nvidia-smi -L` says of GPUs with MIG on, and off."""


@pytest.mark.parametrize(
    ("devices", "verdict"),
    [
        ("0", (0, "2 GPUs answer")),
        ("MIG-aa11,MIG-aa12", (0, "2 GPUs answer")),
        ("0,MIG-cc11", (0, "3 GPUs answer")),
        ("10", (1, "the site assigned 1 of 2 GPUs: 10")),
        ("MIG-aa11", (1, "the site assigned 1 of 2 GPUs: MIG-aa11")),
    ],
)
def test_under_mig_slices_count(smi: Path, devices: str, verdict: tuple[int, str]) -> None:
    smi.write_text(f"#!/bin/sh\ncase $1 in -L) cat <<'Y'\n{LISTED}Y\n;; *) cat <<'X'\n{A100S}X\n;; esac\n")
    halves = {"DRONE_GPUS": "1", "DRONE_SHARING": "mig", "DRONE_SHARES": "2"}
    assert check(smi, CUDA_VISIBLE_DEVICES=devices, **halves) == verdict


def test_shares_of_other_kinds_are_no_devices_of_the_site(smi: Path) -> None:
    quarters = {"DRONE_GPUS": "1", "DRONE_SHARING": "mps", "DRONE_SHARES": "4"}
    assert check(smi, CUDA_VISIBLE_DEVICES="0", **quarters) == (0, "1 GPUs answer")


@pytest.mark.parametrize(
    ("devices", "gpus", "why"),
    [
        ("1", "1", "GPU 1 has 3 uncorrectable memory errors"),
        ("0,1", "2", "GPU 1 has 3 uncorrectable memory errors"),
        ("2", "1", "there is no GPU 2, only 0 1 10"),
        ("GPU-ffff", "1", "there is no GPU GPU-ffff, only 0 1 10"),
        ("0", "2", "the site assigned 1 of 2 GPUs: 0"),
        ("", "1", "the site assigned no GPU: CUDA_VISIBLE_DEVICES is ''"),
        ("NoDevFiles", "1", "the site assigned no GPU: CUDA_VISIBLE_DEVICES is 'NoDevFiles'"),
    ],
)
def test_devices_that_are_not(smi: Path, devices: str, gpus: str, why: str) -> None:
    assert check(smi, CUDA_VISIBLE_DEVICES=devices, DRONE_GPUS=gpus) == (1, why)


def test_a_host_that_is_all_ours_is_checked_whole(smi: Path) -> None:
    assert check(smi, DRONE_GPUS="3") == (1, "GPU 1 has 3 uncorrectable memory errors")


def test_a_driver_that_fails_is_quoted(smi: Path) -> None:
    smi.write_text(
        "#!/bin/sh\necho 'Unable to determine the device handle for GPU 0000:07:00.0: Unknown Error'\nexit 255\n"
    )
    status, why = check(smi, CUDA_VISIBLE_DEVICES="0")
    assert (status, why[:46]) == (1, "nvidia-smi failed: Unable to determine the dev")


def test_no_nvidia_smi_is_a_failure_unless_the_site_simulates(smi: Path) -> None:
    smi.unlink()
    assert check(smi, CUDA_VISIBLE_DEVICES="0") == (1, "nvidia-smi is not on this host")
    assert check(smi, CUDA_VISIBLE_DEVICES="0", DRONE_GPU_SIMULATE="4,8")[0] == 77
