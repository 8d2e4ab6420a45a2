"""Jobs as users submit them, and as the controller sees them: grouped, exact, whatever was asked for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.embedded import EmbeddedOverlay, queue
from adapters.embedded.queue import InvalidJobError, JobState
from provisioner.interfaces import UnavailableError
from provisioner.model import DrainMode, DroneId, OverlayView, StartOrder
from tests.embedded.drones import KIND, config


def announcing(path: Path, models: str) -> None:
    queue.submit(path, ["true"], env={"WANTS_INFERENCE": models})


async def test_jobs_announce_models_by_a_variable(path: Path) -> None:
    queue.submit(path, ["true"], count=2, env={"OTHER": "x"})
    plain = (await poll(path)).classes
    for models in ("deepmet:3,pnet", "deepmet:3,pnet", "pnet,deepmet:3", "$(rm)"):
        announcing(path, models)
    found = (await poll(path)).classes
    assert sorted((job.waiting, job.inference) for job in found) == [
        (1, ()),
        (1, ("deepmet:3", "pnet")),
        (2, ()),
        (2, ("deepmet:3", "pnet")),
    ]
    assert len({job.id for job in found}) == 4 and plain[0] in found


SLOT = {"name": "pair@here#kit-abcd-1", "state": "busy"}


async def poll(path: Path, **options: object) -> OverlayView:
    async with EmbeddedOverlay(config(path, **options), "kit") as overlay:
        return await overlay.poll([KIND, replace(KIND, name="h", gpu_model="H100")])


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        *[
            ({"gpus": gpus}, "write 0, a share below 1 in steps of 0.001, or a whole number")
            for gpus in (
                -1,
                1.5,
                0.0005,
                0.1 + 0.2 - 0.1,
                float("nan"),
                float("inf"),
                "many",
                10**30,
            )
        ],
        ({"cpus": 0}, "cpus = 0: at least 1"),
        ({"walltime_s": float("nan")}, "walltime_s"),
        *[
            ({"argv": argv}, "argv: a list of a program and its arguments")
            for argv in ([], "sleep 1", ["a\0b"])
        ],
        ({"env": {"A=B": "x"}}, "cannot be an environment variable"),
        ({"owner": "a\nb"}, "printable"),
        ({"count": 0}, "count = 0: at least 1"),
    ],
)
def test_a_request_that_no_drone_can_meet_is_refused_with_a_repair(
    path: Path, request_: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidJobError) as refused:
        queue.submit(path, **{"argv": ["true"], **request_})  # type: ignore[arg-type]
    assert said in str(refused.value)
    assert not path.exists()


def test_gpus_are_counted_in_whole_thousandths(path: Path) -> None:
    counted = {0: 0, 0.5: 500, "0.001": 1, 1: 1000, 8: 8000, 10**9: 10**12, "2.0": 2000}
    for gpus in counted:
        queue.submit(path, ["true"], gpus=gpus)  # type: ignore[arg-type]
    assert [job.gpu_milli for job in queue.jobs(path)] == list(counted.values())


async def test_jobs_are_one_object_per_class_with_their_ids_as_ranges(path: Path) -> None:
    queue.submit(path, ["true"], count=5000, owner="ada")
    queue.submit(path, ["true"], count=2, owner="bob", gpus=0)
    queue.submit(path, ["true"], count=100, owner="ada")
    for _ in range(12):
        queue.submit(path, ["true"], owner="cy")
        queue.submit(path, ["true"], owner="dan")
    view = await poll(path)
    assert [
        (c.owner, c.gpu_milli, c.waiting, c.job_ids)
        for c in sorted(view.classes, key=lambda c: c.owner)
    ] == [
        ("ada", 1000, 5100, "1-5000, 5003-5102"),
        ("bob", 0, 2, "5001-5002"),
        ("cy", 1000, 12, "5103, 5105, 5107, 5109, 5111, 5113, 5115, 5117, ..."),
        ("dan", 1000, 12, "5104, 5106, 5108, 5110, 5112, 5114, 5116, 5118, ..."),
    ]


async def test_a_drone_asked_to_leave_before_it_joined_finds_the_request(path: Path) -> None:
    async with EmbeddedOverlay(config(path), "kit") as overlay:
        await overlay.drain([DroneId("kit-abcd-1")], DrainMode.PEACEFUL, "too late")
    with contextlib.closing(queue.connect(path)) as connection:
        assert queue.drain_mode(connection, "kit-abcd-1") == "peaceful"


async def test_a_slot_without_a_sign_of_life_is_forgotten(path: Path) -> None:
    queue.create(path)
    with contextlib.closing(queue.connect(path)) as connection:
        queue.publish(connection, "kit-abcd-1", SLOT)
        connection.execute("UPDATE drone SET heard = heard - 30")
        [slot] = (await poll(path)).slots
        assert 29 < time.time() - slot.heard_at < 40
        connection.execute("UPDATE drone SET heard = heard - 90")
        assert (await poll(path)).slots == ()


async def test_finished_jobs_are_told_for_a_quarter_of_an_hour_and_forgotten_after_a_while(
    path: Path,
) -> None:
    queue.submit(
        path, ["true"], count=4, gpus=0.2, memory_mib=512, vram_mib=8000, walltime_s=60, owner="ann"
    )
    now = time.time()
    with contextlib.closing(queue.connect(path)) as connection:
        for state, job_id, ago_s in (
            ("done", 1, 20),
            ("failed", 2, 30),
            ("done", 3, 1000),
            ("done", 4, 7200),
        ):
            connection.execute(
                "UPDATE job SET state = ?, submitted_at = ?, started_at = ?, ended_at = ?, drone_id = 'kit-abcd-1'"
                " WHERE id = ?",
                (state, now - 2000, now - ago_s - 12, now - ago_s, job_id),
            )
    first, second = (await poll(path)).completions or ()
    assert (first.job_id, second.job_id) == ("1", "2"), "what failed by itself is done as well"
    assert (
        first.run_s == pytest.approx(12)
        and first.ended_at == now - 20
        and first.submitted_at == now - 2000
    )
    assert (first.gpu_milli, first.cpus, first.memory_mib, first.vram_mib) == (200, 1, 512, 8000)
    assert (first.owner, first.walltime_s, first.drone_id) == ("ann", 60, "kit-abcd-1")
    await poll(path, keep="1h")
    assert [job.id for job in queue.jobs(path)] == [1, 2, 3]


async def test_a_slot_tells_whose_jobs_run_and_since_when(path: Path) -> None:
    queue.submit(path, ["true"], owner="ann")
    queue.submit(path, ["true"], owner="ben")
    begins = (
        "UPDATE job SET state = 'running', drone_id = 'kit-abcd-1', used_gpu_milli = gpu_milli,"
        " started_at = ? WHERE id = ?"
    )
    with contextlib.closing(queue.connect(path)) as connection:
        queue.publish(connection, "kit-abcd-1", SLOT)
        connection.execute(
            "UPDATE job SET token = 'mine', lease_until = ?", (queue.lease_clock() + 60,)
        )
        connection.execute(begins, (500.0, 1))
        [slot] = (await poll(path)).slots
        assert (slot.owner, slot.begun_at) == ("ann", 500.0)
        assert (slot.job_gpu_milli, slot.job_cpus, slot.job_memory_mib) == (1000, 1, 1024), (
            "what a class asks for"
        )
        connection.execute(begins, (400.0, 2))
        [slot] = (await poll(path)).slots
        assert (slot.owner, slot.begun_at, slot.job_cpus) == ("", 400.0, 0), (
            "of several it is nobody's"
        )


@pytest.mark.parametrize("content", [b"this is no database, whatever its name is" * 100, b""])
def test_a_file_that_is_no_queue_is_trouble_and_is_not_touched(path: Path, content: bytes) -> None:
    overlay = EmbeddedOverlay(config(path), "kit")
    path.write_bytes(content)  # after an operator's mistake, say
    with pytest.raises(UnavailableError, match=r"queue\.db"):
        asyncio.run(overlay.poll([KIND]))
    assert path.read_bytes() == content


async def test_the_overlay_takes_jobs_itself(path: Path) -> None:
    async with EmbeddedOverlay(config(path), "kit") as overlay:
        ids = await overlay.submit(["true"], count=2, gpus=0.5, owner="ada")
        assert [job.owner for job in await overlay.jobs(ids=ids, states=["idle"])] == ["ada", "ada"]
        assert queue.counts(path)[JobState.IDLE] == 2
        assert await overlay.remove(ids) == 2


async def test_an_admission_needs_no_secret_and_survives_odd_paths(tmp_path: Path) -> None:
    odd = tmp_path / "a b;$(x)?#%41.db"
    async with EmbeddedOverlay(config(odd), "kit") as overlay:
        assert odd.exists()
        bootstrap = await overlay.bootstrap(StartOrder(DroneId("kit-abcd-1"), KIND, 600.0, 2.0))
        assert bootstrap.files == {}
        assert bootstrap.env["EMBEDDED_QUEUE"] == str(odd)
        await overlay.poll([KIND])
