"""Jobs of the embedded queue that use an idle GPU, and run without one on a CPU drone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from adapters.embedded import EmbeddedOverlay, queue
from provisioner.model import DroneType
from tests.embedded.drones import config

GPU = {
    "has_gpus": True,
    "unchanged": True,
    "whole_gpus": 1,
    "share_milli": 1000,
    "vram_mib": 40960,
    "cpus": 8,
    "memory_mib": 16384,
    "disk_mib": 100,
    "capability": 80,
    "gpu_model": "A100",
    "life_s": 1e9,
    "job_filter": "",
}
CPU = {
    **GPU,
    "has_gpus": False,
    "whole_gpus": 0,
    "share_milli": 0,
    "vram_mib": 0,
    "capability": 0,
    "gpu_model": "",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.sqlite"


def taken(path: Path, offer: dict[str, float | str]) -> tuple[int, int] | None:
    """The id of the job that a drone with this offer takes, and what it takes of a GPU."""
    with closing(queue.connect(path)) as connection:
        job = queue.take(connection, offer, "d-1", queue.lease_clock() + 60)
        return None if job is None else (job.id, job.used_gpu_milli)


def test_it_takes_an_idle_gpu_or_a_cpu_drone(path: Path) -> None:
    first, second = queue.submit(
        path, ["true"], count=2, gpu_optional=True, vram_mib=30000, gpu_model="A100"
    )
    assert taken(path, {**GPU, "unchanged": False}) is None, "a job that needs the GPU may come"
    assert taken(path, {**GPU, "vram_mib": 100}) is None
    assert taken(path, GPU) == (first, 1000)
    assert taken(path, CPU) == (second, 0), "whatever the GPU had to be"


def test_what_needs_the_gpu_comes_first(path: Path) -> None:
    (optional,) = queue.submit(path, ["true"], gpu_optional=True, priority=9)
    (needs,) = queue.submit(path, ["true"])
    assert taken(path, {**GPU, "unchanged": False}) == (needs, 1000)
    assert taken(path, GPU) == (optional, 1000)


def test_without_a_gpu_nothing_is_optional(path: Path) -> None:
    queue.submit(path, ["true"], gpus=0, gpu_optional=True)
    assert taken(path, GPU) is None
    (job,) = queue.jobs(path)
    assert job.gpu_optional == 0


async def test_the_work_on_a_cpu_drone_is_its_cpus(path: Path) -> None:
    cpu, gpu = (
        DroneType("here", name, gpus, 8, 16384, 100) for name, gpus in (("cpu", 0), ("gpu", 1000))
    )
    queue.submit(path, ["true"], count=2, gpu_optional=True, cpus=3)
    async with EmbeddedOverlay(config(path), "kit") as overlay:
        with closing(queue.connect(path)) as connection:
            for name, offer in (("cpu", CPU), ("gpu", GPU)):
                assert queue.take(connection, offer, f"d-{name}", queue.lease_clock() + 60)
                queue.publish(connection, f"d-{name}", {"name": name, "state": "busy"})
        view = await overlay.poll([cpu, gpu])
    work = {slot.drone_id: (slot.work_gpu_milli, slot.optional_jobs) for slot in view.slots}
    assert work == {"d-cpu": (3000, 1), "d-gpu": (1000, 1)}
