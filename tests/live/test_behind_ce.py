"""The controller behind a compute element: jobs that a real JobRouter manages, and their routed copies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adapters.htcondor.site.owner import group_jobs, job_constraint
from adapters.htcondor.site.settings import HTCondorOwnerConfig
from provisioner.model import (
    OverlayView,
    Policy,
    PolledOverlay,
    PolledSite,
    SitePolicy,
    SiteView,
    Snapshot,
)
from provisioner.planner import decide
from tests.htcondor_overlay.live import A100, overlay_on, seen
from tests.labs.compute_element import ROUTE_GROUP, ROUTED_OWNER, running_ce, submit, tokens
from tests.labs.htcondor import Condor, LabError, Pool, StartDrone, gpu_job, until
from tests.live.test_site_blocking import parsed

JOBS = 20


def drones_for(view: OverlayView) -> int:
    """Return how many drones the planner starts where there is room for all."""
    now = view.taken_at
    most = {"max_drones": 100, "max_pending": 100, "max_starts_per_tick": 100}
    policy = Policy(max_drones=100, sites={"lab": SitePolicy("lab", **most)})
    polled = {"lab": PolledSite("lab", SiteView("lab", now))}
    overlay = PolledOverlay(view)
    snapshot = Snapshot(now, 1, "kit-ab", 1, policy, (A100,), overlay, polled, {})
    return len(decide(snapshot).starts)


def done_sources(ce: Pool, cluster: int) -> int:
    """Return how many source jobs the router has finished."""
    return sum(ad.get("Managed") == "ScheddDone" for ad in ce.jobs(cluster))


def owners_waiting_jobs(ce: Pool, pool: Pool) -> int:
    """Return how many jobs wait for the site adapter, where these schedds are those of a site's owner."""
    which = job_constraint(HTCondorOwnerConfig(schedds=("ce", "pool")))
    queues = [
        parsed(each.run("condor_q", "-allusers", "-long", "-constraint", which))
        for each in {ce, pool}
    ]
    return sum(len(group.submitted) for ads in queues for group in group_jobs(ads).groups)


@pytest.fixture(params=[1, 2], ids=["one-schedd", "two-schedds"])
def ce_and_pool(condor: Condor, request: pytest.FixtureRequest) -> Iterator[tuple[Pool, Pool]]:
    with running_ce(condor, schedds=request.param) as found:
        yield found


async def test_what_a_router_manages_counts_once(
    ce_and_pool: tuple[Pool, Pool], drone_on: StartDrone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.htcondor.overlay.history.HISTORY_INTERVAL_S", 1.0)
    ce, pool = ce_and_pool
    cluster = submit(ce, JOBS, seconds=1)
    both = {"token": None, "token_directory": str(tokens(ce, pool))}
    async with overlay_on(pool, **both) as overlay:
        view = await seen(overlay, lambda v: len(v.routed) == JOBS and v.classes[0].waiting == JOBS)
        assert not view.notices
        (jobs,) = view.classes
        assert (jobs.waiting, jobs.fresh, jobs.gpu_milli) == (JOBS, 0, 1000)
        assert (jobs.owner, jobs.group) == (ROUTED_OWNER, ROUTE_GROUP)
        assert drones_for(view) == JOBS
        sources = {f"{cluster}.{n}" for n in range(JOBS)}
        assert view.routed.keys() == sources
        copies = {f"{ad['ClusterId']}.{ad['ProcId']}" for ad in pool.jobs() if "RoutedBy" in ad}
        assert {*view.routed.values()} == copies
        assert owners_waiting_jobs(ce, pool) == JOBS

        def routed_again(view: OverlayView) -> bool:
            assert sum(each.idle for each in view.classes) <= JOBS
            return len(view.routed) == JOBS and {*view.routed.values()} != copies

        pool.run("condor_rm", sorted(copies)[0], identity=ROUTED_OWNER)
        view = await seen(overlay, routed_again)
        copies |= {*view.routed.values()}

        drone_on(pool, "kit-1")
        until(lambda: done_sources(ce, cluster) >= 2, 120, what="the router has finished two")
        view = await seen(overlay, lambda v: len(v.completions or ()) >= 2)
        assert {each.job_number for each in view.completions or ()} <= copies
        assert {each.routed_from for each in view.completions or ()} <= sources
        assert sum(each.idle + each.running for each in view.classes) < JOBS


POSES = """
+x509UserProxyVOName = "cms"
+x509UserProxyFirstFQAN = "/cms/Role=pilot"
+AuthTokenIssuer = "https://cms"
+orig_AuthTokenIssuer = "https://cms"
"""
GROUPS = {
    "nothing": ("", ""),
    "a group": ('"group_atlas"', "group_atlas"),
    "a mebibyte": (f'"{"c" * (1 << 20)}"', "c" * 77 + "..."),
    "quotes and a backslash": (r'"cms\"} 1\nx"', "cms???1?nx"),
    "a number": ("17", ""),
}


async def test_nobody_poses_as_another_vo(condor: Condor) -> None:
    with running_ce(condor, schedds=1) as (_, pool):
        pilots = submit(pool, 1, POSES)
        expected = {}
        for n, (group, vo) in enumerate(GROUPS.values()):
            more = POSES + (f"+AcctGroup = {group}\n" if group else "")
            expected[pool.submit(gpu_job(more=more, memory_mib=200 + n))] = vo
        last = max(expected)
        for name in ("x509UserProxyVOName", "AuthTokenIssuer", "orig_AuthTokenIssuer"):
            with pytest.raises(LabError, match=f'"{name}"'):
                pool.run("condor_qedit", str(last), name, '"cms"', identity="alice")
        async with overlay_on(pool) as overlay:
            view = await seen(overlay, lambda v: v.routed and len(v.classes) == 1 + len(expected))
        vos = {int(float(each.job_ids)): each.vo for each in view.classes}
        copy = int(float(view.routed[f"{pilots}.0"]))
        assert vos == {**expected, copy: pool.domain}, (
            "the issuer of the token, as the router saw it"
        )


async def test_an_operator_names_the_vo_and_its_member(condor: Condor) -> None:
    with running_ce(condor, schedds=1) as (_, pool):
        submit(pool, 1)
        name = 'ifThenElse(orig_AuthTokenIssuer == "overlay.test", "ours", undefined)'
        member = 'strcat(RouteName, " ", Owner)'
        async with overlay_on(pool, vo=name, vo_member=member) as overlay:
            view = await seen(overlay, lambda v: v.routed)
        (jobs,) = view.classes
        assert (jobs.vo, jobs.vo_member) == ("ours", f"pool {ROUTED_OWNER}")
