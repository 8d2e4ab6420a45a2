"""Credentials at a computing element: a job carries them, until they expire or are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapters.htcondor.site import HTCondorSite
from provisioner.model import (
    Bootstrap,
    DroneId,
    FaultKind,
    OrderOutcome,
    SitePolicy,
    StartOrder,
)
from tests.htcondor_overlay.live import overlay_on, seen
from tests.labs import htcondor, voms as voms_lab
from tests.labs.controller import LabController
from tests.labs.grid_site import ElementSite, grid_commands, through_element, trusting_element
from tests.labs.htcondor import LOOPBACK, Condor, Pool, gpu_job, running_pool, until
from tests.labs.scitokens import ISSUER, SUBJECT, Issuer
from tests.labs.shared_gpu_site import A100, HERE, site_config

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("element")]

DAY_S = 86400


@contextmanager
def by_token(
    condor: Condor,
) -> Iterator[tuple[Pool, Pool, Issuer, LabController]]:
    """Start an overlay, and a controller that reaches an element with SciTokens alone."""
    with (
        running_pool(condor) as overlay,
        trusting_element(condor) as (access, element, issuer),
        htcondor.lab_directory("controller") as directory,
    ):
        commands = {"scitokens_file": str(issuer.directory / "token")}
        site = ElementSite(access, element, most=2, max_pending=2, commands=commands)
        controller = LabController(overlay, directory / "c", sites=(site,))
        try:
            yield overlay, element, issuer, controller
        except AssertionError:
            print(controller.story())
            print(access.log("GridmanagerLog.alice", 60))
            raise
        finally:
            controller.clean_up()
            give(access, issuer, issuer.scitoken())
            for pool in (access, element):
                pool.empty("-all", force_after_s=20)


def give(pool: Pool, issuer: Issuer, token: str) -> None:
    """Replace the token of the access point."""
    file = issuer.directory / "token"
    fresh = file.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_text(token + "\n")
    pool.account.give(fresh)
    os.replace(fresh, file)


@pytest.mark.matrix
def test_a_drone_reaches_an_element_by_its_scitoken_until_that_expires(condor: Condor) -> None:
    with by_token(condor) as (overlay, element, issuer, controller):
        give(element, issuer, issuer.scitoken())
        controller.start()
        job = overlay.submit(gpu_job(1))
        until(lambda: not overlay.jobs(job), 120, what="the job is done", every_s=0.5)
        [source] = [ad for ad in element.jobs() if "RoutedFromJobId" not in ad]
        assert (source["AuthTokenIssuer"], source["AuthTokenSubject"]) == (ISSUER, SUBJECT)
        assert not unusable(controller)

        give(element, issuer, issuer.scitoken(-60))
        controller.ticks(2)
        [told] = unusable(controller)
        assert "`submit.scitokens_file`: the credential of drones expired at 20" in told
        assert f"Renew file {issuer.directory}/token" in told
        for words in (("check",), ("check", "--live")):
            done = controller.call(*words)
            assert done.returncode and told in done.stdout + done.stderr
        job = overlay.submit(gpu_job(1))
        controller.ticks(5)
        assert len(controller.drones()) == 1, "nothing is started with it"

        give(element, issuer, issuer.scitoken(sub="stranger"))
        until(
            lambda: "has not answered for" in controller.site_row()["note"],
            120,
            what="the element does not take the token",
            every_s=0.5,
        )
        assert not unusable(controller) and len(controller.drones()) == 2
        give(element, issuer, issuer.scitoken())
        until(lambda: not overlay.jobs(job), 240, what="the job is done", every_s=0.5)


@pytest.mark.matrix
def test_a_scitoken_that_may_not_submit_fails_its_drones_as_refused(
    newest_condor: Condor,
) -> None:
    with by_token(newest_condor) as (overlay, element, issuer, controller):
        give(element, issuer, issuer.scitoken(scope="condor:/READ"))
        controller.start()
        overlay.submit(gpu_job(1))
        # the gridmanager tries four times, and looks in between whether the element answers at all
        until(lambda: controller.states()["failed"], 240, what="the drone failed", every_s=1.0)
        faults = [each.fault for each in controller.record.breakers().values()]
        assert {fault.kind for fault in faults if fault} == {FaultKind.DENIED}
        told = controller.site_row()["note"]
        assert "the computing element refuses the credentials: " in told


def unusable(controller: LabController) -> list[str]:
    troubles = controller.json("status")["troubles"]
    return [each["text"] for each in troubles if each["kind"] == "credential-unusable"]


COPIED = "DELEGATE_JOB_GSI_CREDENTIALS"
"""23.9 of Debian cannot receive a delegated proxy."""


@pytest.fixture
def voms(monkeypatch: pytest.MonkeyPatch) -> Iterator[voms_lab.Authority]:
    """An authority whose proxies all of HTCondor's daemons can read."""
    with htcondor.lab_directory("voms") as root:
        try:
            authority = voms_lab.Authority(root / "ca")
        except htcondor.LabError as error:
            pytest.skip(f"no VOMS: {error}")
        monkeypatch.setattr(Pool, "more_env", authority.env)
        yield authority


async def test_a_drones_job_carries_its_proxy_and_the_pool_behind_the_element_knows_the_vo(
    condor: Condor, voms: voms_lab.Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = LOOPBACK
    if condor.version.startswith("23."):
        lines += f"{COPIED} = False\n"
        monkeypatch.setattr(Pool, "more_env", {**voms.env, f"_CONDOR_{COPIED}": "False"})
    expired = voms.proxy("expired", -10)
    good = voms.proxy("good")
    htcondor.account().give(voms.directory)
    with through_element(condor, voms_lab.READS_VOMS) as (access, element):

        def site(proxy: Path) -> HTCondorSite:
            submit = {**grid_commands(element), "x509userproxy": str(proxy)}
            more = {"submit": submit, "client_config": lines}
            config = site_config(access, tmp_path / proxy.name, **more)
            return HTCondorSite(HERE, config, [A100], "main-ab12")

        def order(serial: int) -> StartOrder:
            boot = Bootstrap(b"#!/bin/sh\nexec sleep 1000\n", {}, {})
            return StartOrder(DroneId(f"main-ab12-{serial}"), A100, 600.0, 5.0, boot)

        async with site(expired) as late:
            [result] = await late.start([order(1)])
            assert result.answer is OrderOutcome.REJECTED and result.fault, result
            assert (
                result.fault.kind is FaultKind.DENIED
                and "proxy has expired" in result.fault.message
            )
            [told] = await late.audit(SitePolicy(HERE))
            assert "it was not taken" in told.message and "proxy has expired" in told.message
        async with site(good) as here:
            [result] = await here.start([order(2)])
            assert result.answer is OrderOutcome.OK, result
            until(lambda: routed(element), 90, what="it is at the element")
            [ad] = routed(element)
            assert ad["x509UserProxyVOName"] == voms_lab.VO
            assert ad["x509UserProxyFirstFQAN"] == voms_lab.FQAN
            async with overlay_on(element) as pool:
                view = await seen(pool, lambda v: v.classes)
            assert {each.vo for each in view.classes} == {voms_lab.VO}
            assert view.routed, "the source job is known by its copy"
        access.empty("-all", force_after_s=20)
        element.empty("-all", force_after_s=20)


def routed(element: Pool) -> list[htcondor.Ad]:
    return [ad for ad in element.jobs() if "RoutedFromJobId" in ad]
