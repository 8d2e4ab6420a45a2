"""Classes by short id, and classes that have left the queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.model import Plan, Refusal, Subject
from provisioner.reasons import OwnerWaits
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.cli.conftest import CONTROLLER, HUGE, NOW, PLAIN, Ran, _look, forget_moment

Cli = Callable[..., Ran]
STAYS = replace(PLAIN, id="3f2a91c07be4d856")
LEAVES = replace(PLAIN, id="3f2b0d1e94ab3268", vram_mib=40960, owner="carol")
ENDS = replace(HUGE, id="77b1c2d3e4f50617", running=1)
FULL = OwnerWaits("topas", 3, 4)


@pytest.fixture
async def queue(tmp_path: Path) -> Path:
    """A record in which the jobs of one class left, and those of another run but wait no more."""
    path = tmp_path / "queue.db"
    ticks = (
        (STAYS, LEAVES, ENDS),
        (STAYS, replace(ENDS, waiting=0, fresh=0)),
        (STAYS,),
    )
    for ago_s, classes in zip((3000, 2000, 1000), ticks, strict=True):
        # each controller is another process: what leaves meanwhile is noticed all the same
        async with SqlStore(path, CONTROLLER, 1e9, 10, threaded=False) as store:
            seen = _look(store, NOW - ago_s, (), {})
            assert seen.overlay.view is not None
            view = replace(seen.overlay.view, classes=classes)
            seen = replace(seen, overlay=replace(seen.overlay, view=view))
            refusals = tuple(
                Refusal(Subject("class", job.id), 5, FULL) for job in classes if job.idle
            )
            await store.record(Plan(seen.tick, seen.now, refusals=refusals), seen)
    forget_moment(path)
    return path


async def test_a_class_that_has_left_is_explained_from_the_record(cli: Cli, queue: Path) -> None:
    ran = cli("explain", "class", "3f2b", "--store", queue)
    assert "class carol: 1 GPU, 40 GiB VRAM (3f2b) has left the queue: last seen 50m" in ran.err
    assert FULL.describe() in " ".join(ran.out.split()) and "last seen" in ran.out
    found = cli("explain", "class", LEAVES.id, "-o", "json", "--store", queue).json
    assert (found["id"], found["waiting"], found["last_seen_at"]) == (LEAVES.id, 0, NOW - 3000)
    assert found["said"][0]["reason"]["kind"] == FULL.kind
    assert {fit["type"]: fit["fits"] for fit in found["types"]}["topas/a100"]


async def test_the_last_reason_is_that_of_the_time_when_jobs_waited(queue: Path) -> None:
    (past,) = Reader(queue).past_classes("77b1")
    assert (past.seen_at, past.reason, past.job.running) == (NOW - 2000, FULL, 1)


async def test_a_class_in_the_queue_has_a_short_id_too(cli: Cli, queue: Path) -> None:
    found = cli("explain", "class", "3f2a", "-o", "json", "--store", queue).json
    assert (found["id"], found["last_seen_at"]) == (STAYS.id, None)
    assert found["name"] == "alice: 1 GPU (3f2a)"
    ran = cli("demand", "--store", queue)
    assert "3f2a " in ran.out and STAYS.id not in ran.out
    assert cli("demand", "-o", "name", "--store", queue).out == "3f2a\n"


async def test_an_ambiguous_or_unknown_id_names_the_candidates(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "alike.db"
    async with SqlStore(path, CONTROLLER, 1e9, 10, threaded=False) as store:
        seen = _look(store, NOW - 9, (), {})
        assert seen.overlay.view is not None
        alike = replace(STAYS, id="3f2a91ffffffffff", owner="bob")
        view = replace(seen.overlay.view, classes=(STAYS, alike))
        seen = replace(seen, overlay=replace(seen.overlay, view=view))
        await store.record(Plan(seen.tick, seen.now), seen)
    forget_moment(path)
    ran = cli("explain", "class", "3f2a", "--store", path)
    assert ran.code == 1
    assert "`3f2a` means 2 job classes. Type more of the id:" in ran.err
    assert "alice: 1 GPU (3f2a91c)" in ran.err and "bob: 1 GPU (3f2a91f)" in ran.err
    ran = cli("explain", "class", "3f2", "--store", path)
    assert ran.code == 1 and "no job class `3f2`" in ran.err and "3f2a91" in ran.err
