"""Sharing out a host is exact, whatever comes and goes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from adapters.local import resources
from adapters.local.resources import FreeHostResources, HostAllocation, LocalGpu, LocalHost
from provisioner.interfaces import UnavailableError
from tests.local.drones import SMALL, config

HOST = LocalHost(
    cpus=16,
    memory_mib=1000,
    disk_mib=1000,
    gpus=tuple(LocalGpu(n, "A100", 40960, 80) for n in range(4)),
)

shapes = st.builds(
    lambda milli, cpus, memory_mib: replace(
        SMALL, gpu_milli=milli, cpus=cpus, memory_mib=memory_mib, disk_mib=0
    ),
    st.integers(0, 5000),
    st.integers(0, 20),
    st.integers(0, 400),
)


@given(st.lists(st.tuples(shapes, st.booleans()), max_size=40))
def test_nothing_is_given_twice_and_all_comes_back(steps: list[tuple[object, bool]]) -> None:
    held: list[HostAllocation] = []
    for kind, goes in steps:
        if goes and held:
            held.pop(0)
        found = FreeHostResources.of(HOST, held).find(kind)  # type: ignore[arg-type]
        if isinstance(found, HostAllocation):
            assert sum(found.gpus.values()) == kind.gpu_milli  # type: ignore[attr-defined]
            held.append(found)
        for gpu in HOST.gpus:
            assert sum(allocation.gpus.get(gpu.index, 0) for allocation in held) <= 1000
        assert sum(allocation.cpus for allocation in held) <= HOST.cpus
        assert sum(allocation.memory_mib for allocation in held) <= HOST.memory_mib
    assert (
        FreeHostResources.of(HOST, []).find(SMALL) == HostAllocation(2, 1024, 10, {0: 1000})
        or HOST.memory_mib < 1024
    )


@given(shapes)
def test_as_many_start_as_were_said_to_be_free(kind: object) -> None:
    room = FreeHostResources.of(HOST)
    said, started = room.count(kind), 0  # type: ignore[arg-type]
    while started < 100 and isinstance(found := room.find(kind), HostAllocation):  # type: ignore[arg-type]
        room.take(found)
        started += 1
    assert min(said, 100) == started


def test_shares_go_where_a_share_already_is() -> None:
    room = FreeHostResources.of(HOST)
    share = replace(SMALL, gpu_milli=500, memory_mib=1)
    for _ in range(2):
        found = room.find(share)
        assert isinstance(found, HostAllocation)
        room.take(found)
    assert room.free_milli == {0: 0, 1: 1000, 2: 1000, 3: 1000}


LOST = """\
0, NVIDIA A100-SXM4-40GB, 40960, 8.0
1, NVIDIA A100-SXM4-40GB, 40960, 8.0
Unable to determine the device handle for GPU 0000:1A:00.0: GPU is lost.  Reboot the system to recover this GPU
3, NVIDIA A100-SXM4-40GB, [Unknown Error], 8.0
"""


def host_with(
    answer: str, status: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> resources.LocalHost:
    """Return the host that an ``nvidia-smi`` with this answer describes."""
    (directory / "answer").write_text(answer)
    program = directory / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat {directory}/answer\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return resources.survey(config(directory, gpus="auto"))


@pytest.mark.parametrize("status", [0, 15])
def test_a_lost_gpu_takes_no_other_away(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_with(LOST, status, tmp_path, monkeypatch)
    assert [gpu.index for gpu in host.gpus] == [0, 1]
    assert (
        len(host.notices) == 2
        and "GPU is lost" in host.notices[0]
        and "Unknown Error" in host.notices[1]
    )


def test_only_of_a_gpu_it_is_said_that_it_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    banner, warning = (
        "Sat Nov 28 2026, 10:00",
        "WARNING: infoROM is corrupted at gpu 0000:3B:00.0",
    )
    host = host_with(f"{banner}\n{LOST}{warning}\n", 14, tmp_path, monkeypatch)
    assert [gpu.index for gpu in host.gpus] == [0, 1]
    assert [notice for notice in host.notices if "not used" in notice] == [
        "nvidia-smi: 3, NVIDIA A100-SXM4-40GB, [Unknown Error], 8.0. This GPU is not used"
    ]
    assert {f"nvidia-smi: {banner}", f"nvidia-smi: {warning}"} <= {*host.notices}


def test_a_gpu_with_the_memory_of_the_host_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_with("0, NVIDIA GB10, [N/A], 12.1\n", 0, tmp_path, monkeypatch)
    [gpu] = host.gpus
    assert (gpu.vram_mib, gpu.capability) == (0, 121)
    kind = replace(SMALL, gpu_model="GB10", vram_mib=40000, capability=121)
    assert FreeHostResources.of(host).count(kind) == 1


@pytest.mark.parametrize(
    ("written", "device"),
    [
        ("H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("H100-80GB-HBM3", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("T4", "Tesla T4"),
        ("Tesla V100-SXM2-32GB", "NVIDIA V100-SXM2-32GB"),
        ("RTX 3090", "NVIDIA GeForce RTX 3090"),
        ("rtx-8000", "Quadro RTX 8000"),
    ],
)
def test_each_spelling_of_a_model_finds_its_gpu(
    written: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_with(f"0, {device}, 81559, 9.0\n", 0, tmp_path, monkeypatch)
    assert FreeHostResources.of(host).count(replace(SMALL, gpu_model=written)) == 1


@pytest.mark.parametrize(
    ("answer", "status"), [("Failed to initialize NVML\n", 9), ("garbage\n", 0)]
)
def test_an_answer_without_any_gpu_is_a_fault(
    answer: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnavailableError, match="nvidia-smi failed"):
        host_with(answer, status, tmp_path, monkeypatch)


def test_a_state_in_place_of_a_name_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = "[GPU requires reset]"
    answer = f"0, NVIDIA A100-SXM4-40GB, 40960, 8.0\n1, {state}, {state}, {state}\n2, [N/A], [N/A], [N/A]\n"
    host = host_with(answer, 0, tmp_path, monkeypatch)
    assert [(gpu.index, gpu.model) for gpu in host.gpus] == [(0, "NVIDIA A100-SXM4-40GB"), (2, "")]
