"""Drones' lives at a real HTCondor site: one life each, ends told for what they are, what they leave brought home."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.htcondor.site import HTCondorSite
from provisioner import model
from provisioner.adapter_tests import eventually
from provisioner.interfaces import AuthError
from tests.labs.htcondor import OWN, Condor, Pool, processes_of, until
from tests.labs.shared_gpu_site import A100, HERE, clear, farm_of, site_config

pytestmark = pytest.mark.asyncio

CONTROLLER = f"lives{OWN}{os.getpid()}"
MOST_JOBS = 120
NEVER_LOOKS = f"\nPERIODIC_EXPR_INTERVAL = 3600\nMAX_JOBS_PER_OWNER = {MOST_JOBS}\n"
"""For its policy expressions the schedd looks at jobs that seldom: a busy one does hardly better."""
WORKS = b"""#!/bin/sh
echo said >&2
mkdir -p log && echo logged >log/StartLog
trap 'echo left >outcome; exit 0' TERM
: >ready
while :; do sleep 0.1; done
"""


@pytest.fixture(scope="module")
def host(condor: Condor) -> Iterator[Pool]:
    with farm_of(condor, NEVER_LOOKS) as pool:
        yield pool


@pytest.fixture
def farm(host: Pool) -> Iterator[Pool]:
    yield host
    clear(host, CONTROLLER)


def drone_id(serial: int) -> model.DroneId:
    return model.DroneId(f"{CONTROLLER}-ab12-{serial}")


def order(serial: int, kind: model.DroneType = A100, script: bytes = WORKS) -> model.StartOrder:
    return model.StartOrder(
        drone_id(serial), kind, 600.0, 3.0, model.Bootstrap(script, {}, {"token": b"secret"})
    )


def site_on(farm: Pool, work: Path, **more: object) -> HTCondorSite:
    return HTCondorSite(HERE, site_config(farm, work, **more), [A100], CONTROLLER)


async def seen(
    site: HTCondorSite, serial: int, wanted: Callable[[model.RemoteDrone], object]
) -> model.RemoteDrone:
    async def ask() -> model.RemoteDrone | None:
        found = (await site.poll()).drones.get(drone_id(serial))
        return found if found is not None and wanted(found) else None

    return await eventually(f"drone {serial} is as wanted", ask, 90)


async def works(site: HTCondorSite, farm: Pool) -> str:
    """Start a drone whose script works; return its remote id."""
    [receipt] = await site.start([order(1)])
    await seen(site, 1, runs)
    until(lambda: list(farm.dir.glob("execute/**/ready")), 30, what="its script works")
    return receipt.remote_id


def runs(drone: model.RemoteDrone) -> bool:
    return drone.state is model.RemoteState.RUNNING


async def test_an_evicted_drone_is_preempted_and_never_begins_again(
    farm: Pool, tmp_path: Path
) -> None:
    async with site_on(farm, tmp_path) as site:
        remote_id = await works(site, farm)
        farm.run("condor_vacate_job", remote_id, identity="alice")
        ended = await seen(site, 1, lambda drone: drone.end)
        assert ended.end is not None and ended.end.kind is model.EndKind.PREEMPTED
        # The negotiator goes round with room for it, and starts what came later; the schedd does
        # not intervene.
        await site.start([order(2)])
        await seen(site, 2, runs)
        [ad] = [ad for ad in farm.jobs() if ad["DroneId"] == drone_id(1)]
        assert (ad["JobStatus"], ad["NumJobStarts"]) == (1, 1)
        # A start under its id is still the same drone, and no second life either.
        [again] = await site.start([order(1)])
        assert (again.answer, again.remote_id) == (model.OrderOutcome.OK, remote_id)


async def test_a_node_on_which_two_gpu_checks_failed_gets_no_further_drone(
    farm: Pool, tmp_path: Path
) -> None:
    async with site_on(farm, tmp_path) as site:
        orders = [order(serial, script=b"#!/bin/sh\nexit 71\n") for serial in (1, 2)]
        await site.start(orders)
        nodes = set()
        for serial in (1, 2):
            ended = await seen(site, serial, lambda drone: drone.end)
            assert ended.end is not None
            assert ended.end.exit_code == 71
            nodes.add(ended.node)
        view = await site.poll()
        assert {each.free_gpu_milli for each in view.nodes if each.name in nodes} == {0}
        await site.start([order(3)])
        waits = await seen(site, 3, lambda drone: drone.reason)
        assert waits.state is model.RemoteState.PENDING
        await asyncio.sleep(10)  # several negotiations
        [waits] = [each for each in farm.jobs() if each["DroneId"] == drone_id(3)]
        assert waits["JobStatus"] == 1


async def test_what_a_drone_leaves_comes_home_even_when_it_is_stopped(
    farm: Pool, tmp_path: Path
) -> None:
    async with site_on(farm, tmp_path) as site:
        await works(site, farm)
        await site.stop([model.StopOrder(drone_id(1), "")])
        await seen(site, 1, lambda drone: drone.end)
        home = tmp_path / HERE / "outputs" / drone_id(1)
        # Polls at a real interval: each fetches the files, and gives up after a few that find none
        # yet.
        await eventually(
            "its log is home", lambda: _there(site, home / "drone.log"), 90, every_s=1.0
        )
        assert (home / "drone.log").read_text() == "said\n"
        assert (home / "outcome").read_text() == "left\n"
        assert (home / "log/StartLog").read_text() == "logged\n"
        assert not (home / "token").exists()


async def _there(site: HTCondorSite, file: Path) -> bool:
    await site.poll()
    return await asyncio.to_thread(lambda: file.exists() and file.stat().st_size > 0)


async def test_many_drones_of_a_type_are_one_submit_and_one_removal(
    farm: Pool, tmp_path: Path
) -> None:
    waiting = replace(A100, cpus=500)
    async with site_on(farm, tmp_path) as site:
        receipts = await site.start([order(serial, waiting) for serial in range(100)])
        assert [each.answer for each in receipts] == [model.OrderOutcome.OK] * 100
        cluster = receipts[0].remote_id.partition(".")[0]
        assert [each.remote_id for each in receipts] == [f"{cluster}.{proc}" for proc in range(100)]
        drones = (await site.poll()).drones
        assert {name: drone.remote_id for name, drone in drones.items()} == {
            r.drone_id: r.remote_id for r in receipts
        }
        await site.stop([model.StopOrder(each.drone_id, each.remote_id) for each in receipts])
        ends = [drone.end and drone.end.kind for drone in (await site.poll()).drones.values()]
        assert ends == [model.EndKind.STOPPED] * 100


async def test_the_schedds_limit_is_told_as_a_quota_and_nothing_is_left(
    farm: Pool, tmp_path: Path
) -> None:
    waiting = replace(A100, cpus=500)
    async with site_on(farm, tmp_path) as site:
        receipts = await site.start([order(serial, waiting) for serial in range(MOST_JOBS + 1)])
        assert {each.answer for each in receipts} == {model.OrderOutcome.REJECTED}
        assert {each.fault and each.fault.kind for each in receipts} == {model.FaultKind.QUOTA}
        assert (await site.poll()).drones == {}


async def test_a_drone_that_is_killed_after_it_was_asked_is_out_of_the_queue(
    farm: Pool, tmp_path: Path
) -> None:
    async with site_on(farm, tmp_path) as site:
        await works(site, farm)
        # its node does not answer: asking nicely may take a lease
        farm.signal("startd", signal.SIGSTOP)
        try:
            for kill in (False, True):
                [receipt] = await site.stop([model.StopOrder(drone_id(1), "", kill)])
                assert receipt.answer is model.OrderOutcome.OK
            assert drone_id(1) not in (await site.poll()).drones
        finally:
            farm.signal("startd", signal.SIGCONT)
        until(lambda: not processes_of(drone_id(1)), 60, what="nothing is left of it")


async def test_the_node_shows_what_drones_hold(farm: Pool, tmp_path: Path) -> None:
    async with site_on(farm, tmp_path) as site:

        async def all_free() -> model.Node | None:
            """The drones of the test before have ended; their startd tells so a moment later."""
            [node] = (await site.poll()).nodes
            return (
                node
                if (node.gpu_milli, node.free_gpu_milli, node.free_cpus) == (8000, 8000, 32)
                else None
            )

        before = await eventually("all of it is free", all_free, 90)
        assert before.types == (A100.name,)
        await site.start([order(1), order(2)])
        # A schedd tells that a job runs a moment before it tells where.
        on = {
            (await seen(site, serial, lambda drone: runs(drone) and drone.node)).node
            for serial in (1, 2)
        }
        assert on == {before.name}

        async def less() -> bool:
            [node] = (await site.poll()).nodes
            return (node.free_gpu_milli, node.free_cpus) == (6000, 32 - 2 * A100.cpus)

        await eventually("two drones' room is taken", less, 90)


async def test_without_a_token_that_counts_a_human_is_told(farm: Pool, tmp_path: Path) -> None:
    forged = tmp_path / "token"
    forged.write_text("eyJhbGciOiJIUzI1NiIsImtpZCI6IlBPT0wifQ.eyJpc3MiOiJzaXRlLnRlc3QifQ.x")
    async with site_on(farm, tmp_path, token={"file": str(forged)}) as site:
        with pytest.raises(AuthError):
            await site.poll()
