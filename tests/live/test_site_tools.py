"""A site's schedd by way of HTCondor's own tools, on this host and over a real ssh, against real pools."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.htcondor.classads import number
from adapters.htcondor.site.client import CondorToolsClient
from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.htcondor.site.submission import SubmitDescription, of_drones
from provisioner.adapter_tests import eventually
from provisioner.interfaces import AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import DroneId
from tests.labs.htcondor import Pool, own, until
from tests.shared_commands.sshd import fetched, running_sshd

STAY = b"#!/bin/sh\nexec sleep 600\n"
DESCRIPTION = """\
universe = vanilla
executable = $(inputs)/begin.sh
transfer_input_files = $(inputs)/token
initialdir = $(outputs)/$(drone_id)
should_transfer_files = YES
when_to_transfer_output = ON_EXIT
request_cpus = 1
request_memory = 64
request_disk = 1024
leave_in_queue = False
My.DroneId = "$(drone_id)"
"""


def three(name: str, description: str = DESCRIPTION) -> SubmitDescription:
    drone_ids = tuple(DroneId(own(f"{name}-{n}")) for n in range(3))
    return SubmitDescription(description, drone_ids, {"begin.sh": STAY, "token": b"\0secret"})


def of(batch: SubmitDescription) -> str:
    return of_drones(batch.drone_ids)


def config(pool: Pool, work: Path, identity: str = "alice", **more: object) -> HTCondorSiteConfig:
    """The site as a controller on the pool's own host has it: with a token, nothing of the host's configuration."""
    token = work / "token"
    token.touch(mode=0o600)
    token.write_text(pool.token(identity, ("READ",) if identity == "reader" else ()) + "\n")
    return HTCondorSiteConfig.model_validate(
        {
            "collector": pool.collector,
            "transport": "tools",
            "token": {"file": token},
            "work_directory": work / "var",
            "client_config": f"TRUST_DOMAIN = {pool.domain}\nNO_DNS = True\nDEFAULT_DOMAIN_NAME = test\n",
            "tools": {"path": str(pool.condor.prefix / "usr/bin")},
            "deadline": "20s",
            **more,
        }
    )


def cluster(settings: HTCondorSiteConfig) -> CondorToolsClient:
    return CondorToolsClient(settings, "site")


async def story(tools: CondorToolsClient, batch: SubmitDescription) -> None:
    """Submit three, see them, remove them, see that they are gone; then nothing is an answer too."""
    assert list(await tools.ads("jobs", of(batch), ["DroneId"])) == []
    submitted = await tools.submit(batch)
    ads = await tools.ads("jobs", of(batch), ["DroneId", "ClusterId", "ProcId", "Requirements"])
    assert sorted(ad["DroneId"] for ad in ads) == list(batch.drone_ids)
    assert {ad["ClusterId"] for ad in ads} == {submitted}
    assert [ad["DroneId"] for ad in sorted(ads, key=lambda ad: ad["ProcId"])] == list(
        batch.drone_ids
    )
    assert all("TARGET" in str(ad.lookup("Requirements")) for ad in ads), (
        "expressions come as they are"
    )

    async def idle() -> bool:
        """Idle jobs of all users, as the collector has them once the schedd has told it."""
        return (
            sum(
                number(ad, "IdleJobs") or 0
                for ad in await tools.ads("submitters", "true", ["IdleJobs"])
            )
            >= 3
        )

    await eventually("the collector knows of idle jobs", idle, 60, 0.2)
    ids = [f"{ad['ClusterId']}.{ad['ProcId']}" for ad in ads]
    await tools.remove([*ids, "99999.0"], "no longer wanted")
    await gone(tools, batch)
    await tools.remove(ids, "no longer wanted")
    await tools.remove(ids, "no longer wanted", force=True)
    assert list(await tools.ads("slots", "true", ["Name"])) == [], "a pool without nodes"


async def gone(tools: CondorToolsClient, batch: SubmitDescription) -> None:
    async def ask() -> bool:
        return not await tools.ads("jobs", of(batch), ["DroneId"])

    await eventually("the jobs are gone", ask, 60, 0.2)


@pytest.mark.parametrize("spool", [True, False])
async def test_three_drones_come_and_go_by_the_tools_of_this_host(
    overlay_pool: Pool, tmp_path: Path, spool: bool
) -> None:
    async with cluster(config(overlay_pool, tmp_path, spool=spool)) as tools:
        await story(tools, three(f"here-{spool}".lower()))
    inputs = [
        p
        for p in (tmp_path / "var/site/inputs").rglob("*")
        if p.is_file() and not p.name.startswith("put.")
    ]
    assert {(p.name, p.stat().st_mode & 0o777) for p in inputs} == {
        ("begin.sh", 0o700),
        ("token", 0o600),
    }


async def test_three_drones_come_and_go_over_ssh(overlay_pool: Pool) -> None:
    """The account on the login node has its own token; nothing of the controller's goes there but the drone's files."""
    client = overlay_pool.dir / "clients" / "alice" / "condor_config"
    with running_sshd(fetched()) as server:
        settings = HTCondorSiteConfig.model_validate(
            {
                "collector": overlay_pool.collector,
                "transport": "tools",
                "work_directory": "/nonexistent",
                "tools": {
                    "path": str(overlay_pool.condor.prefix / "usr/bin"),
                    "condor_config": str(client),
                    "ssh": server.settings().model_dump(exclude_none=True)
                    | dict.fromkeys(("retry", "retry_at_most"), "200ms")
                    | {"connect_deadline": "20s", "keepalive": "5s"},
                },
            }
        )
        async with cluster(settings) as tools:
            batch = three("ssh")
            await story(tools, batch)
            await tools.clean_up((), ())
            left = sorted(p.name for p in (server.home / "provisioner/site/outputs").iterdir())
            assert left == sorted(batch.drone_ids), "young ones stay"
            server.stop()
            with pytest.raises(UnavailableError):
                await tools.ads("jobs", "true", ["DroneId"])
            with pytest.raises(UnavailableError):
                await tools.submit(three("ssh-down"))
        assert server.logins() == 1


async def test_nothing_is_refused_or_submitted_in_part(overlay_pool: Pool, tmp_path: Path) -> None:
    async with cluster(config(overlay_pool, tmp_path)) as tools:
        for line, words in (
            ("request_cpus = ))", "[Pp]arse|expression"),
            ("executable = /nothing/there", "nothing"),
        ):
            batch = three("bad", DESCRIPTION + line + "\n")
            with pytest.raises(RejectedError, match=words):
                await tools.submit(batch)
            assert list(await tools.ads("jobs", of(batch), ["DroneId"])) == []
        with pytest.raises(UnavailableError, match=r"-constraint|\(\(|fetch"):
            await tools.ads("jobs", "((", ["DroneId"])


async def test_who_may_only_read_is_denied_what_is_not_reading(
    overlay_pool: Pool, tmp_path: Path
) -> None:
    async with cluster(config(overlay_pool, tmp_path)) as tools:
        batch = three("other")
        job = await tools.submit(batch)
    async with cluster(config(overlay_pool, tmp_path, "reader")) as reader:
        assert len(await reader.ads("jobs", of(batch), ["DroneId"])) == 3
        with pytest.raises(AuthError, match="DENIED"):
            await reader.submit(three("reader"))
        with pytest.raises(AuthError, match="DENIED"):
            await reader.remove([f"{job}.0"], "not mine")
    async with cluster(config(overlay_pool, tmp_path)) as tools:
        assert len(await tools.ads("jobs", of(batch), ["DroneId"])) == 3
        await tools.remove([f"{job}.{n}" for n in range(3)], "over")
        await gone(tools, batch)


async def test_a_token_that_is_no_good_is_a_matter_for_a_human(
    overlay_pool: Pool, tmp_path: Path
) -> None:
    """Though `condor_q` and `condor_submit` themselves only say that they do not find the schedd."""
    settings = config(
        overlay_pool,
        tmp_path,
        schedd=overlay_pool.run("condor_status", "-schedd", "-af", "Name").strip(),
    )
    token = tmp_path / "token"
    token.write_text(token.read_text().strip()[:-8] + "AAAAAAAA\n")
    async with cluster(settings) as tools:
        for asked in (
            tools.ads("jobs", "true", ["DroneId"]),
            tools.ads("slots", "true", ["Name"]),
            tools.submit(three("denied")),
            tools.remove(["1.0"], "x"),
        ):
            with pytest.raises(AuthError, match="AUTHENTICATE"):
                await asked


async def test_silence_is_never_an_empty_queue(
    new_pool: Callable[[], Pool], tmp_path: Path
) -> None:
    """A schedd that hangs, one that is dead, a collector that is dead: nobody's queue is empty."""
    pool = new_pool()
    settings = config(pool, tmp_path, deadline="4s", submit_deadline="6s")
    master = pool.process.pid if pool.process else 0
    async with cluster(settings) as tools:
        batch = three("silent")
        job = await tools.submit(batch)
        pool.signal("schedd", signal.SIGSTOP)
        with pytest.raises(UnavailableError, match="no answer within 4 s"):
            await tools.ads("jobs", "true", ["DroneId"])
        with pytest.raises(OutcomeUnknownError, match="no answer within"):
            await tools.submit(three("hangs"))
        with pytest.raises(OutcomeUnknownError, match="no answer within"):
            await tools.remove([f"{job}.0"], "x")
        pool.signal("schedd", signal.SIGCONT)
        os.kill(master, signal.SIGSTOP)  # nobody brings it up again
        try:
            for daemon in ("schedd", "collector"):
                pool.signal(daemon, signal.SIGKILL)
                with pytest.raises(UnavailableError):
                    await tools.ads("jobs", "true", ["DroneId"])
                with pytest.raises(UnavailableError):
                    await tools.submit(three("dead"))
                with pytest.raises((UnavailableError, OutcomeUnknownError)):
                    await tools.remove([f"{job}.0"], "x")
            with pytest.raises(UnavailableError):
                await tools.ads("slots", "true", ["Name"])
        finally:
            os.kill(master, signal.SIGCONT)
        await asyncio.to_thread(
            until, lambda: len(pool.jobs(job)) == 3, 60, what="the schedd is back"
        )
        assert len(await tools.ads("jobs", of(batch), ["DroneId"])) == 3
