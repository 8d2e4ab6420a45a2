"""Jobs and the token of the drone that they run in: no file has it while they run, and the drone stays in the pool."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from adapters.htcondor.tokens import TokenSigner
from tests.labs import htcondor
from tests.labs.htcondor import DroneProcess, Pool, StartDrone, gpu_job, own, until

SEARCH = """\
until [ -d condor ] || [ "$PWD" = / ]; do cd ..; done
echo "$PWD"
grep -rlsE 'eyJ[A-Za-z0-9_-]+[.]eyJ' . /proc/self/environ
exit 0
"""
"""Prints the directory of its drone and each file below that holds something like a token."""


def _search(pool: Pool) -> int:
    return pool.submit(gpu_job(program=pool.program("search", SEARCH)))


def _ends(pool: Pool, cluster: int) -> str:
    """Return the output of a job, once it is done."""
    until(lambda: pool.statuses(cluster) != [1], 90, what=f"job {cluster} starts")
    until(lambda: not pool.jobs(cluster), 60, what=f"job {cluster} is done")
    return (pool.dir / "jobs" / f"out.{cluster}.0").read_text()


def _listed(pool: Pool, drone: DroneProcess) -> bool:
    assert drone.process.poll() is None, drone.story()
    try:
        return any(ad.get("DroneReady") is True for ad in pool.drone_slots(drone.id))
    except htcondor.LabError:  # the collector is not there yet
        return False


def test_a_job_cannot_read_the_drones_token_before_or_after_the_collector_starts_anew(
    new_pool: Callable[[], Pool], drone_on: StartDrone
) -> None:
    pool = new_pool()
    first = _search(pool)  # it waits: it gets the first moment in which the drone takes jobs
    drone = drone_on(pool, "token-2", env={"DRONE_POOL_LOST_S": "40"})
    assert _ends(pool, first).split() == [str(drone.dir)]
    assert not (drone.dir / "token").exists()

    pool.signal("collector", signal.SIGKILL)
    until(lambda: not _listed(pool, drone), what="the new collector does not know the drone")
    until(lambda: _listed(pool, drone), 90, what="the drone is in the pool again")
    placed = drone.dir / "condor/etc/tokens/drone"
    until(lambda: not placed.exists(), what="its token is put away again")
    assert _ends(pool, _search(pool)).split() == [str(drone.dir)]


OWN_TOKENS = """
ALLOW_ADVERTISE_STARTD = condor@$(TRUST_DOMAIN) drone-*@$(TRUST_DOMAIN)
ALLOW_ADVERTISE_MASTER = condor@$(TRUST_DOMAIN) drone-*@$(TRUST_DOMAIN)
"""


@pytest.mark.parametrize("refused", [False, True], ids=["plain", "refused"])
def test_a_drone_joins_with_a_signed_token_and_a_slot_ad_forged_with_anothers_sets_no_clock(
    new_pool: Callable[[str], Pool], drone_on: StartDrone, refused: bool
) -> None:
    """The drone took its clock to be hours off, by the ad of another, and left with exit status 71.
    A pool that has the line of the reference does not even list such an ad."""
    pool = new_pool(OWN_TOKENS + htcondor.ADS_OF_ONES_OWN * refused)
    drone_id, thief = own("token-4"), f"drone-{own('token-5')}"
    pool.client(thief, htcondor.IDENTITIES["drone"])
    forged = (
        f'MyType = "Machine"\nName = "slot1@forged"\nMyAddress = "<127.0.0.1:9>"\nDroneId = "{drone_id}"\n'
        'SlotType = "Partitionable"\nState = "Unclaimed"\nActivity = "Idle"\nMyCurrentTime = 1000000\n'
    )

    def takes_jobs_beside_the_forged_ad() -> bool:
        pool.advertise(forged, identity=thief)
        return _listed(pool, drone)

    token = TokenSigner(pool.key, "POOL", pool.domain).token(
        f"drone-{drone_id}", time.time(), 3600.0
    )
    env = {"DRONE_IDENTITY": f"drone-{drone_id}@{pool.domain}", "DRONE_CHECK_S": "5"}
    drone = drone_on(pool, "token-4", token=token, env=env)
    until(takes_jobs_beside_the_forged_ad, 60, what="the drone takes jobs")
    senders = {str(ad["AuthenticatedIdentity"]) for ad in pool.drone_slots(drone_id)}
    assert senders == {
        f"drone-{drone_id}@{pool.domain}",
        *(() if refused else (f"{thief}@{pool.domain}",)),
    }
    assert abs(int((drone.dir / "condor/clock").read_text())) < 1000
    drone.stop()
    assert drone.outcome["reason"] == "stopped", drone.story()


def test_a_stolen_token_reads_and_advertises_and_no_more(
    new_pool: Callable[[str], Pool], drone_on: StartDrone
) -> None:
    """A job can take the token of its drone out of a process of that drone."""
    pool = new_pool(OWN_TOKENS)
    drone_id = own("token-6")
    thief = f"drone-{drone_id}"
    token = TokenSigner(pool.key, "POOL", pool.domain).token(thief, time.time(), 3600.0)
    pool.client(thief, token=token)
    drone = drone_on(pool, "token-6", token=token, env={"DRONE_IDENTITY": f"{thief}@{pool.domain}"})
    until(lambda: _listed(pool, drone), 60, what="the drone takes jobs")
    job = pool.submit(htcondor.gpu_job(120, gpus=2))
    slot = drone.slot(pool)
    assert "slot1" in pool.run("condor_status", "-af", "Name", identity=thief)
    pool.advertise(
        'MyType = "Machine"\nName = "x@y"\nMyAddress = "<127.0.0.1:9>"\n', identity=thief
    )

    schedd = 'MyType = "Scheduler"\nName = "s"\nMyAddress = "<127.0.0.1:9>"\n'
    order = (
        f'MyType = "Generic"\nName = "order"\nDroneOrderFor = "{drone_id}"\nDroneOrder = 9\n'
        'DroneOrderMode = "fast"\n'
    )
    forbidden: list[Callable[[], object]] = [
        lambda: pool.submit(htcondor.gpu_job(1), identity=thief),
        lambda: pool.run("condor_rm", str(job), identity=thief),
        lambda: pool.run("condor_hold", str(job), identity=thief),
        lambda: pool.run("condor_qedit", str(job), "JobPrio", "1", identity=thief),
        lambda: pool.run("condor_drain", str(slot["Machine"]), identity=thief),
        lambda: pool.run("condor_off", "-collector", identity=thief),
        lambda: pool.advertise(schedd, identity=thief, command="UPDATE_SCHEDD_AD"),
        lambda: pool.advertise(order, identity=thief, command="UPDATE_AD_GENERIC"),
    ]
    for attempt in forbidden:
        with pytest.raises(htcondor.LabError):
            attempt()
    assert [ad["JobStatus"] for ad in pool.jobs(job)] == [1] and _listed(pool, drone)
    pool.remove(job)
    drone.stop()
