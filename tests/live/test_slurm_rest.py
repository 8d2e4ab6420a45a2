"""A real slurmrestd, over the network and as a unix socket behind ssh: names, ends, refusals, silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest

from adapters.slurm.records import SlurmJob
from adapters.slurm.rest import SlurmRestClient
from adapters.slurm.settings import SlurmSiteConfig
from provisioner.interfaces import AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind
from tests.labs.htcondor import own
from tests.labs.slurm import Slurm, SlurmLab
from tests.labs.slurm_sites import lab_job

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(180), pytest.mark.asyncio]

_NTH = count(1)


@pytest.fixture(autouse=True)
def spoken(slurm_programs: Slurm, request: pytest.FixtureRequest) -> None:
    """The API that we speak is of 23.11 and later; with an older Slurm one test shows that this is said."""
    if slurm_programs.version < (23, 11) and request.function is not test_the_cluster_tells_itself:
        pytest.skip("this slurmrestd speaks v0.0.38 at most")


def over_the_network(lab: SlurmLab, directory: Path) -> dict[str, Any]:
    (directory / "token").write_text(lab.token("drone"))
    return {"url": lab.rest_url, "user": "drone", "token": {"file": str(directory / "token")}}


def behind_ssh(lab: SlurmLab, _: Path) -> dict[str, Any]:
    login = {"host": "127.0.0.1", "port": lab.ssh_port, "user": "drone", "key": str(lab.key)}
    return {"url": f"unix:{lab.rest_socket}", "ssh": {**login, "known_hosts": str(lab.known_hosts)}}


@pytest.fixture(params=[over_the_network, behind_ssh], ids=["network", "ssh"])
def rest(request: pytest.FixtureRequest, slurm: SlurmLab, tmp_path: Path) -> dict[str, Any]:
    settings: dict[str, Any] = request.param(slurm, tmp_path)
    return settings


@pytest.fixture
async def cluster(slurm: SlurmLab, tmp_path: Path) -> AsyncIterator[SlurmRestClient]:
    async with by(over_the_network(slurm, tmp_path)) as found:
        yield found
    slurm.empty()


def by(rest: dict[str, Any], **more: str) -> SlurmRestClient:
    return SlurmRestClient(SlurmSiteConfig.model_validate({"transport": "rest", "rest": rest, **more}), "kit")


def unique(word: str) -> str:
    """The name of jobs that this test alone has: Slurm remembers ended ones."""
    return f"{own(f'{word}{next(_NTH)}')}.a100.kit"


async def seen(
    cluster: SlurmRestClient, name: str, wanted: Callable[[Sequence[SlurmJob]], bool]
) -> dict[str, SlurmJob]:
    """Our jobs of that name, as soon as they are as wanted."""
    until = time.monotonic() + 60
    while True:
        jobs = [job for job in await cluster.own_jobs() if job.name == name]
        if wanted(jobs):
            return {job.remote_id: job for job in jobs}
        assert time.monotonic() < until, jobs
        await asyncio.sleep(0.3)


def _text(path: str) -> str:
    return Path(path).read_text()


def in_state(state: str, count: int) -> Callable[[Sequence[SlurmJob]], bool]:
    return lambda jobs: sum(job.state == state for job in jobs) == count


async def test_an_array_task_keeps_its_name_from_waiting_to_its_end(rest: dict[str, Any], slurm: SlurmLab) -> None:
    name = unique("array")
    async with by(rest) as cluster:
        number = await cluster.submit(lab_job(name, tasks=tuple(range(10))))
        jobs = await seen(cluster, name, in_state("RUNNING", 8))

        assert set(jobs) == {f"{number}_{task}" for task in range(10)}
        for job in jobs.values():
            assert (job.user, job.account, job.limit_s, job.gpus) == ("drone", "lab", 300.0, {"a100": 1})
            assert (job.nodes != ()) == (job.state == "RUNNING")
        known = {job.remote_id for job in await cluster.active_jobs(["accelerated"])}
        assert set(jobs) <= known

        running = [each for each, job in jobs.items() if job.state == "RUNNING"]
        waiting = [each for each, job in jobs.items() if job.state == "PENDING"]
        await cluster.cancel([*running[:2], waiting[0], f"{number}_77"])
        after = await seen(cluster, name, in_state("CANCELLED", 2))
        assert waiting[0] not in after, "slurmctld keeps no record of a task that never began"
        assert after[waiting[1]].state in ("PENDING", "RUNNING")

        await cluster.cancel(list(after))
        ended = await seen(cluster, name, lambda jobs: all(job.state == "CANCELLED" and not job.flags for job in jobs))
        assert set(ended) >= set(running)
    slurm.empty()


async def test_the_accounting_tells_the_end_of_single_tasks(slurm: SlurmLab, cluster: SlurmRestClient) -> None:
    name, begun_at = unique("ended"), time.time() - 5
    number = await cluster.submit(lab_job(name, "exit 3", tasks=(0, 2)))
    await seen(cluster, name, in_state("FAILED", 2))

    until = time.monotonic() + 30
    while not (jobs := await cluster.ended_jobs([f"{number}_2", "999999"], begun_at)) or jobs[0].state != "FAILED":
        assert time.monotonic() < until
        await asyncio.sleep(0.5)
    assert [(job.remote_id, job.name, job.exit_code) for job in jobs] == [(f"{number}_2", name, 3)]
    everything = await cluster.ended_jobs([], begun_at)
    assert everything is not None
    assert {f"{number}_0", f"{number}_2"} <= {job.remote_id for job in everything}


async def test_a_step_has_time_at_a_polite_end_and_none_at_a_kill(slurm: SlurmLab, cluster: SlurmRestClient) -> None:
    name = unique("kill")
    heard = slurm.shared / name
    step = f"""exec >>{heard}.$SLURM_ARRAY_TASK_ID; trap 'sleep 2; echo left; exit' TERM; echo up
        while :; do sleep 0.1; done"""
    number = await cluster.submit(lab_job(name, f'srun sh -c "$(cat <<\\EOF\n{step}\nEOF\n)"', tasks=(0, 1)))
    await seen(cluster, name, lambda jobs: all(Path(f"{heard}.{task}").exists() for task in (0, 1)))

    await cluster.cancel([f"{number}_0"])
    await cluster.cancel([f"{number}_1"], kill=True)
    over = ("CANCELLED", "COMPLETED", "FAILED")
    await seen(cluster, name, lambda jobs: all(job.state in over and not job.flags for job in jobs))
    assert [_text(f"{heard}.{task}") for task in (0, 1)] == ["up\nleft\n", "up\n"]


async def test_a_no_is_told_by_its_kind_and_its_record_is_no_life(slurm: SlurmLab, cluster: SlurmRestClient) -> None:
    name = unique("refused")
    for special in ({"partition": "nowhere"}, {"gres": "gpu:a100:9"}, {"constraint": "gold"}):
        with pytest.raises(RejectedError) as told:
            await cluster.submit(lab_job(name, **special))
        assert told.value.kind is FaultKind.CONFIG, told.value
    records = [job for job in await cluster.own_jobs() if job.name == name]
    assert {(job.state, job.reason, job.nodes) for job in records} <= {("FAILED", "BadConstraints", ())}


async def test_what_the_admin_adds_arrives(slurm: SlurmLab, cluster: SlurmRestClient) -> None:
    more = {
        "nice": "7",
        "comment": "hello",
        "exclude": "hkn[0801]",
        "mail-type": "NONE",
        "exclusive": "user",
        "gres-flags": "disable-binding",
        "spread-job": True,
        "wckey": "",
        "prefer": "",
    }
    options = {option: value for option, value in more.items() if value}
    number = await cluster.submit(lab_job(unique("more"), **options))
    told = slurm.run("scontrol", "show", "job", "-d", str(number))
    for wanted in ("Nice=7", "Comment=hello", "ExcNodeList=hkn0801", "=USER", "Requeue=0"):
        assert wanted.lower() in told.lower(), told


async def test_a_job_that_was_taken_in_silence_is_found_afterwards(slurm: SlurmLab, tmp_path: Path) -> None:
    name = unique("silence")
    async with by(over_the_network(slurm, tmp_path), deadline="3s", submit_deadline="3s") as cluster:
        await cluster.own_jobs()
        slurm.signal("slurmctld", SIGSTOP)
        try:
            with pytest.raises(UnavailableError):
                await cluster.own_jobs()
            with pytest.raises(OutcomeUnknownError):
                await cluster.submit(lab_job(name))
        finally:
            slurm.signal("slurmctld", SIGCONT)
        until = time.monotonic() + 60
        while True:
            try:
                jobs = [job for job in await cluster.own_jobs() if job.name == name]
            except UnavailableError:
                jobs = []
            if jobs:
                break
            assert time.monotonic() < until
            await asyncio.sleep(0.3)
        assert len(jobs) == 1
    slurm.empty()


async def test_a_token_of_somebody_else_is_not_believed(slurm: SlurmLab, tmp_path: Path) -> None:
    settings = over_the_network(slurm, tmp_path)
    file = Path(settings["token"]["file"])
    await asyncio.to_thread(file.write_text, slurm.token("owner"))
    async with by(settings) as cluster:
        with pytest.raises(AuthError):
            await cluster.own_jobs()
        await asyncio.to_thread(file.write_text, slurm.token("drone"))
        await cluster.own_jobs()


async def test_the_cluster_tells_itself(slurm: SlurmLab, rest: dict[str, Any]) -> None:
    async with by(rest) as cluster:
        if slurm.slurm.version < (23, 11):
            with pytest.raises(
                UnavailableError, match=r"offers .*v0\.0\.38, and we speak .*`transport: tools`"
            ) as down:
                await cluster.own_jobs()
            assert down.value.kind is FaultKind.CONFIG
            return
        told = await cluster.configuration()
        assert tuple(map(int, told["SLURM_VERSION"].split(".")[:2])) == slurm.slurm.version
        assert told["AccountingStorageType"] == "accounting_storage/slurmdbd"
        nodes = {node.name: node for node in await cluster.nodes()}
        assert {name: dict(node.gpus) for name, node in nodes.items()} == {
            "hkn0801": {"a100": 4},
            "hkn0802": {"a100": 4},
            "hkn0901": {"h100": 4},
        }
        parts = {part.name: part for part in await cluster.partitions()}
        assert parts["accelerated"].nodes == ("hkn0801", "hkn0802") and parts["accelerated"].up
        assert parts["backfill"].grace_s == 6.0 and parts["backfill"].tier < parts["accelerated"].tier
        assert await cluster.reservations() == []


async def test_a_socket_that_is_not_there_is_a_site_that_is_down(slurm: SlurmLab, tmp_path: Path) -> None:
    settings = behind_ssh(slurm, tmp_path)
    async with by({**settings, "url": "unix:/nowhere"}) as cluster:
        with pytest.raises(UnavailableError, match="no connection to its socket /nowhere"):
            await cluster.own_jobs()
        with pytest.raises(UnavailableError):
            await cluster.submit(lab_job("x"))
