"""Each transport at a real cluster: questions are answered, orders carried out, refusals and silence told apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any, ClassVar

import pytest

from adapters.slurm.records import SlurmClient, SlurmJob
from adapters.slurm.site import make_client
from provisioner.adapter_tests import eventually
from provisioner.interfaces import AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind
from tests.labs.htcondor import own
from tests.labs.slurm import SlurmLab
from tests.labs.slurm_sites import lab_job, site_config, speaks

MARKS = [pytest.mark.xdist_group("slurm"), pytest.mark.asyncio]
pytestmark = MARKS
OVER = ("CANCELLED", "COMPLETED", "FAILED")
_NTH = count(1)


def unique(word: str) -> str:
    """The name of jobs that this test alone has: Slurm remembers ended ones."""
    return f"{own(f'{word}{next(_NTH)}')}.a100.kit"


async def seen(
    cluster: SlurmClient, name: str, wanted: Callable[[Sequence[SlurmJob]], bool]
) -> dict[str, SlurmJob]:
    """Our jobs of that name, as soon as they are as wanted."""

    async def ask() -> dict[str, SlurmJob] | None:
        jobs = [job for job in await cluster.own_jobs() if job.name == name]
        return {job.remote_id: job for job in jobs} if wanted(jobs) else None

    return await eventually(f"jobs {name} are as wanted", ask, 60, 0.3)


async def accounted(cluster: SlurmClient, remote_ids: Iterable[str]) -> dict[str, SlurmJob]:
    """Until the ends of all of them are in the accounts, where 22.05 writes them some seconds later."""
    expected = set(remote_ids)

    async def ask() -> dict[str, SlurmJob] | None:
        found = {job.remote_id: job for job in await cluster.ended_jobs(sorted(expected), 0) or ()}
        return (
            found
            if {each for each, job in found.items() if job.state in OVER} == expected
            else None
        )

    return await eventually(f"the accounts have {expected}", ask, 60, 0.3)


def in_state(state: str, number: int) -> Callable[[Sequence[SlurmJob]], bool]:
    return lambda jobs: sum(job.state == state for job in jobs) == number


class TransportStories:
    """Stories for a module with the fixtures ``slurm`` (the lab) and ``cluster`` (a client of it)."""

    async def test_a_task_keeps_its_name_from_waiting_to_its_end(
        self, slurm: SlurmLab, cluster: SlurmClient
    ) -> None:
        """Also the last one to start, whose number is the whole array's."""
        name, before = unique("array"), time.time()
        number = await cluster.submit(lab_job(name, tasks=range(10)))
        jobs = await seen(cluster, name, in_state("RUNNING", 8))
        assert set(jobs) == {f"{number}_{task}" for task in range(10)}
        running = {each: job for each, job in jobs.items() if job.state == "RUNNING"}
        waiting = [each for each in jobs if each not in running]
        for job in jobs.values():
            assert (job.user, job.account, job.partition, job.limit_s) == (
                "drone",
                "lab",
                "accelerated",
                300.0,
            )
            assert abs(job.submitted_at - before) < 30 and job.exit_code is None
            assert (job.nodes != ()) == (job.state == "RUNNING")
        assert {job.ends_at - job.started_at for job in running.values()} == {300}

        active = {job.remote_id: job for job in await cluster.active_jobs(["accelerated"])}
        assert set(jobs) <= set(active)
        shapes = {
            (job.node_count, job.cpus, job.memory_mib, *job.gpus.items())
            for job in map(active.get, running)
        }
        assert shapes == {(1, 8, 2048, ("a100", 1))}
        nodes = {node.name: node for node in await cluster.nodes()}
        assert sum(node.used_gpus.get("a100", 0) for node in nodes.values()) == 8
        assert sum(node.used_cpus for node in nodes.values()) == 64

        some = list(running)[:2]
        await cluster.cancel([*some, waiting[0], f"{number}_77", "999999"])
        after = await seen(cluster, name, in_state("CANCELLED", 2))
        assert waiting[0] not in after, "slurmctld keeps no record of a task that never began"
        assert after[waiting[1]].state in ("PENDING", "RUNNING")
        ended = await accounted(cluster, some)
        assert {each: job.nodes for each, job in ended.items()} == {
            each: running[each].nodes for each in some
        }
        await cluster.cancel(list(after), kill=True)
        ended = await seen(
            cluster,
            name,
            lambda jobs: all(job.state == "CANCELLED" and not job.flags for job in jobs),
        )
        assert set(ended) >= set(running)

    async def test_accounting_reports_ends(self, cluster: SlurmClient) -> None:
        name, before = unique("ends"), time.time() - 5
        number = await cluster.submit(lab_job(name, "exit $SLURM_ARRAY_TASK_ID", tasks=(0, 3)))
        await seen(
            cluster, name, lambda jobs: {job.state for job in jobs} == {"COMPLETED", "FAILED"}
        )
        found = await accounted(cluster, (f"{number}_0", f"{number}_3"))
        ends = {each: (job.name, job.state, job.exit_code) for each, job in found.items()}
        assert ends == {f"{number}_0": (name, "COMPLETED", 0), f"{number}_3": (name, "FAILED", 3)}
        since = await cluster.ended_jobs([], before)
        assert since is not None and set(found) <= {job.remote_id for job in since}
        assert await cluster.ended_jobs(["999999"], before) == []

    async def test_nodes_partitions_reservations_and_version(
        self, slurm: SlurmLab, cluster: SlurmClient
    ) -> None:
        assert {node.name: dict(node.gpus) for node in await cluster.nodes()} == {
            name: {kind: 4} for name, kind in slurm.setup.nodes.items()
        }
        partitions = {each.name: each for each in await cluster.partitions()}
        first, backfill = partitions["accelerated"], partitions["backfill"]
        assert (first.nodes, first.up, first.max_s) == (("hkn0801", "hkn0802"), True, 172800.0)
        assert (backfill.grace_s, backfill.tier < first.tier) == (6.0, True)
        assert await cluster.reservations() == []
        start = int(time.time()) + 7200
        made = (
            "reservationname=dark",
            "starttime=now+2hours",
            "duration=60",
            "nodes=hkn0901",
            "flags=maint",
        )
        slurm.run("scontrol", "create", "reservation", *made, "users=root", user="root")
        try:
            (dark,) = await cluster.reservations()
        finally:
            slurm.run("scontrol", "delete", "reservationname=dark", user="root")
        assert (dark.name, dark.nodes) == ("dark", ("hkn0901",))
        assert abs(dark.starts_at - start) < 60 and dark.ends_at - dark.starts_at == 3600
        configuration = await cluster.configuration()
        assert tuple(map(int, configuration["SLURM_VERSION"].split(".")[:2])) == slurm.slurm.version
        assert configuration["AccountingStorageType"] == "accounting_storage/slurmdbd"

    async def test_a_step_has_time_at_a_polite_end_and_none_at_a_kill(
        self, slurm: SlurmLab, cluster: SlurmClient
    ) -> None:
        """Its batch script cleans up either way."""
        name = unique("kill")
        heard = [slurm.shared / f"{name}.{task}" for task in (0, 1)]
        file = f"{slurm.shared / name}.$SLURM_ARRAY_TASK_ID"
        step = f"exec >>{file}; trap 'sleep 2; echo left; exit' TERM; echo up; while :; do sleep 0.1; done"
        script = (
            f'trap : TERM\nsrun --export=ALL sh -c "$(cat <<\\EOF\n{step}\nEOF\n)" &\nwait\n'
            f"wait\necho clean >>{file}"
        )
        number = await cluster.submit(lab_job(name, script, tasks=(0, 1)))
        await seen(
            cluster, name, lambda jobs: all(file.exists() and file.read_text() for file in heard)
        )
        await cluster.cancel([f"{number}_0"])
        await cluster.cancel([f"{number}_1"], kill=True)
        await seen(
            cluster, name, lambda jobs: all(job.state in OVER and not job.flags for job in jobs)
        )
        assert [file.read_text() for file in heard] == ["up\nleft\nclean\n", "up\nclean\n"]

    async def test_a_refusal_has_its_kind_and_leaves_no_drone(self, cluster: SlurmClient) -> None:
        name = unique("refused")
        wrong: Sequence[dict[str, str]] = (
            {"partition": "nowhere"},
            {"gres": "gpu:a100:9"},
            {"constraint": "gold"},
            {"account": "nobody"},
            {"reservation": "nosuch"},
        )
        for options in wrong:
            with pytest.raises(RejectedError) as refused:
                await cluster.submit(lab_job(name, **options))
            assert refused.value.kind is FaultKind.CONFIG, refused.value
        records = [job for job in await cluster.own_jobs() if job.name == name]
        assert {(job.state, job.nodes) for job in records} <= {("FAILED", ())}

    async def test_configured_options_arrive(self, slurm: SlurmLab, cluster: SlurmClient) -> None:
        options: dict[str, Any] = {
            "nice": "7",
            "comment": "hello",
            "exclude": "hkn[0801]",
            "exclusive": "user",
        }
        options |= {"gres-flags": "disable-binding"}
        number = await cluster.submit(lab_job(unique("more"), **options))
        told = slurm.run("scontrol", "show", "job", "-d", str(number))
        for wanted in ("Nice=7", "Comment=hello", "ExcNodeList=hkn0801", "=USER", "Requeue=0"):
            assert wanted.lower() in told.lower(), told

    async def test_an_order_in_silence_may_have_been_carried_out(
        self, slurm: SlurmLab, cluster: SlurmClient
    ) -> None:
        name = unique("silence")
        await cluster.own_jobs()
        await cluster.cancel(["999999"])
        slurm.signal("slurmctld", SIGSTOP)
        try:
            with pytest.raises(UnavailableError):
                await cluster.own_jobs()
            with pytest.raises(OutcomeUnknownError):
                await cluster.submit(lab_job(name))
        finally:
            slurm.signal("slurmctld", SIGCONT)

        async def ask() -> int | None:
            try:
                return len([job for job in await cluster.own_jobs() if job.name == name])
            except UnavailableError:
                return None

        assert await eventually("slurmctld answers", ask, 60, 0.3) <= 1


@pytest.fixture(params=["tools", "ssh", "rest", "socket"])
def way(slurm: SlurmLab, request: pytest.FixtureRequest) -> str:
    speaks(slurm, request.param)
    return request.param


@pytest.fixture
async def cluster(slurm: SlurmLab, way: str, tmp_path: Path) -> AsyncIterator[SlurmClient]:
    async with make_client(
        site_config(slurm, way, tmp_path, deadline="8s", submit_deadline="8s"), "kit"
    ) as found:
        yield found
    await asyncio.to_thread(slurm.empty)


class TestTransports(TransportStories):
    pytestmark: ClassVar = MARKS


async def test_a_controller_that_is_away_is_no_empty_queue(slurm: SlurmLab, tmp_path: Path) -> None:
    name = unique("away")
    async with make_client(site_config(slurm, "tools", tmp_path, deadline="12s"), "kit") as cluster:
        await asyncio.to_thread(slurm.stop_daemon, "slurmctld")
        try:
            calls = (
                cluster.own_jobs(),
                cluster.nodes(),
                cluster.submit(lab_job(name)),
                cluster.cancel(["1"]),
            )
            answers = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            await asyncio.to_thread(slurm.restart, "slurmctld")
        assert [isinstance(answer, UnavailableError) for answer in answers] == [True] * 4, answers
        assert [job for job in await cluster.own_jobs() if job.name == name] == []


async def test_a_token_of_somebody_else_is_not_believed(slurm: SlurmLab, tmp_path: Path) -> None:
    speaks(slurm, "rest")
    config = site_config(slurm, "rest", tmp_path)
    await asyncio.to_thread((tmp_path / "token").write_text, slurm.token("owner"))
    async with make_client(config, "kit") as cluster:
        with pytest.raises(AuthError):
            await cluster.own_jobs()
        await asyncio.to_thread((tmp_path / "token").write_text, slurm.token("drone"))
        await cluster.own_jobs()


async def test_an_older_slurmrestd_is_told_with_its_versions(
    slurm: SlurmLab, tmp_path: Path
) -> None:
    if slurm.slurm.version >= (23, 11):
        pytest.skip("this slurmrestd speaks our versions")
    async with make_client(site_config(slurm, "rest", tmp_path), "kit") as cluster:
        with pytest.raises(
            UnavailableError, match=r"offers none of the versions .*`transport: tools`"
        ) as down:
            await cluster.own_jobs()
        assert down.value.kind is FaultKind.CONFIG


async def test_a_socket_that_is_not_there_is_a_site_that_is_down(
    slurm: SlurmLab, tmp_path: Path
) -> None:
    config = site_config(slurm, "socket", tmp_path)
    assert config.rest is not None
    nowhere = config.model_copy(
        update={"rest": config.rest.model_copy(update={"url": "unix:/nowhere"})}
    )
    async with make_client(nowhere, "kit") as cluster:
        with pytest.raises(UnavailableError, match="no connection to its socket /nowhere"):
            await cluster.own_jobs()
        with pytest.raises(UnavailableError):
            await cluster.submit(lab_job("x"))
