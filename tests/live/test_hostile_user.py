"""A hostile user in the pool: an ordinary user's jobs are done without a hold or a ban, with real
daemons and the whole controller."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest

from adapters.htcondor.tokens import TokenSigner
from provisioner.model import BreakerState
from tests.labs.controller import BIG, LabController
from tests.labs.htcondor import (
    ADS_OF_ONES_OWN,
    IDENTITIES,
    Condor,
    LabError,
    Pool,
    gpu_job,
    lab_directory,
    running_pool,
)

pytestmark = pytest.mark.matrix

POOL = """
ALLOW_WRITE = $(ALLOW_WRITE) mallory@$(TRUST_DOMAIN)
ALLOW_ADVERTISE_STARTD = condor@$(TRUST_DOMAIN) drone-*@$(TRUST_DOMAIN)
ALLOW_ADVERTISE_MASTER = condor@$(TRUST_DOMAIN) drone-*@$(TRUST_DOMAIN)
"""
DISK_MIB = 100
PATIENT_S = 900.0
"""Longest time for a story, on any host: it ends as soon as the jobs are done."""
LOOK_FOR_A_TOKEN = """\
echo "drone $PROVISIONER_DRONE_ID"
until [ -d condor ] || [ "$PWD" = / ]; do cd ..; done
grep -rhoaE 'eyJ[A-Za-z0-9_-]+[.]eyJ[A-Za-z0-9_-]+[.][A-Za-z0-9_-]+' . /proc/[0-9]*/environ 2>/dev/null
exit 0
"""
FORGED = {
    "huge": "Cpus = 2147483647\nMemory = 9e18\nDisk = 1e308\nGPUs = 1000000\nTotalSlotGPUs = 1000000",
    "negative": "Cpus = -1\nMemory = -5\nGPUs = -1\nNumDynamicSlots = -3\nJobStarts = -1",
    "odd": 'Cpus = "many"\nMemory = {1, 2}\nDisk = [a = 1]\nGPUs = error\nChildState = 7\nGPUs_Capability = "x"',
    "clock": "MyCurrentTime = 1\nDaemonStartTime = 99999999999\nDroneRetiresAt = 1\nEnteredCurrentState = -1",
    "state": "DroneHealthy = False\nDroneDraining = True\nDraining = True\nDroneReady = False\nStart = False",
    "long": f'GPUs_DeviceName = "{"x" * 1_000_000}"',
}
"""Slot ads, each with the id of a drone that is not the sender."""
SLOT = """MyType = "Machine"
Machine = "forged.test"
SiteName = "big"
DroneType = "a100"
SlotType = "Partitionable"
PartitionableSlot = True
SlotID = 1
State = "Unclaimed"
Activity = "Idle"
DroneReady = True
Requirements = True
Start = True
Rank = 0
"""


@contextmanager
def lab_of_two_users(condor: Condor, more: str) -> Iterator[tuple[Pool, LabController]]:
    """A site with little scratch for each drone, and a controller that signs a token for each."""
    users = {**IDENTITIES, "mallory": ()}
    with (
        running_pool(condor, config=POOL + more, identities=users) as pool,
        lab_directory("hostile") as directory,
    ):
        site = replace(BIG, type={"disk": f"{DISK_MIB} MiB"})
        options = {
            "drone_token_mode": "signing-key",
            "drone_signing_key": str(pool.key),
            "drone_token": None,
        }
        controller = LabController(pool, directory / "c", (site,), idle_s=20, options=options)
        try:
            yield pool, controller
        finally:
            controller.clean_up()


@dataclass
class Hostile:
    """A user of the pool, in waves: jobs of each kind, and slot ads with the token of a drone."""

    pool: Pool
    controller: LabController
    wide: bool
    """True for many of each kind in a wave, false for one."""
    waves: int = 0
    sent: int = 0
    thief: int = 0
    has_token: bool = False

    def wave(self) -> None:
        n = 5 if self.wide else 1
        self.waves += 1
        if not self.thief:
            self.thief = self._submit(gpu_job(program=self.pool.program("steal", LOOK_FOR_A_TOKEN)))
        for nothing in ({"gpus": 0, "cpus": 0, "memory_mib": 0}, {"cpus": 0, "memory_mib": 0}):
            self._submit(
                gpu_job(1, n=n, **nothing).replace("request_disk = 1MB", "request_disk = 0")
            )
        self._submit(gpu_job(1, more=f'+Blob = "{"x" * 1_000_000}{self.waves}"'))
        self._submit("universe = parallel\nmachine_count = 2\n" + gpu_job(600, n=n))
        self._submit(gpu_job(0, n=4 * n).replace("exec sleep 0", "exit 3"))
        if self.waves <= 2:  # what the host has to bear is not what the test is about
            fill = f"dd if=/dev/zero of=fill bs=1048576 count={DISK_MIB + 60} 2>/dev/null; exec sleep 600"
            eat = "dd if=/dev/zero bs=700M count=1 2>/dev/null | ( sleep 60; cat >/dev/null )"
            for greed in (fill, eat):
                self._submit(gpu_job().replace("exec sleep 1", greed))
        self.forge()

    def _submit(self, text: str) -> int:
        return self.pool.submit(text, identity="mallory")

    def _take_token(self) -> None:
        """Use what the thief has found: if that is nothing it is given the token of its drone."""
        out = self.pool.dir / "jobs" / f"out.{self.thief}.0"
        if not out.exists() or not (said := out.read_text()).startswith("drone "):
            return
        drone_id, *stolen = said.split()[1:]
        signer = TokenSigner(self.pool.key, "POOL", self.pool.domain)
        self.pool.client(
            "thief",
            token=next(iter(stolen), signer.token(f"drone-{drone_id}", time.time(), 3600.0)),
        )
        self.has_token = True

    def forge(self) -> None:
        """Advertise slots in the name of each drone that is listed, and of drones that never were."""
        if not self.has_token:
            self._take_token()
        if not self.has_token:
            return
        slots = self.pool.slots('DroneId isnt undefined && SlotType == "Partitionable"')
        there = {
            str(ad["DroneId"]): ad for ad in slots if self.controller.name in str(ad["DroneId"])
        }
        prefix = next(iter(there), f"{self.controller.name}-x-1").rpartition("-")[0]
        kinds = list(FORGED.items())
        ads = []
        for number, (drone_id, real) in enumerate(sorted(there.items())):
            kind, text = kinds[(number + self.waves) % len(kinds)]
            names = [
                (f"slot1@{kind}{number}", "<127.0.0.1:9>"),
                (str(real["Name"]), str(real["MyAddress"])),
            ]
            ads += [self._ad(drone_id, name, address, text) for name, address in names]
        first = 900_000 + 100 * self.waves
        unknown = [999_999_999, *range(first, first + (100 if self.wide else 5))]
        ads += [
            self._ad(f"{prefix}-{n}", f"slot1@unknown{n}", "<127.0.0.1:9>", "Cpus = 8")
            for n in unknown
        ]
        with suppress(LabError):  # a collector that refuses one of them closes the connection
            self.pool.advertise("\n".join(ads), "-multiple", identity="thief")
        self.sent += len(ads)

    @staticmethod
    def _ad(drone_id: str, name: str, address: str, more: str) -> str:
        own = f'Name = "{name}"\nMyAddress = "{address}"\nDroneId = "{drone_id}"\n'
        lines = dict(line.split(" = ", 1) for line in f"{SLOT}{own}{more}".splitlines())
        return "".join(f"{key} = {value}\n" for key, value in lines.items())


@dataclass
class Told:
    """Results of a story."""

    waits_s: list[float] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    bans: set[str] = field(default_factory=set)


def story(condor: Condor, *, batches: int, each: int, every_s: float, more: str = "") -> Told:
    """Run an ordinary user's short jobs, in batches, beside a hostile user; return their waits.
    ``more``: further configuration of the pool."""
    told = Told()
    with lab_of_two_users(condor, more) as (pool, controller):
        controller.start()
        enemy = Hostile(pool, controller, wide=batches > 2)
        submitted: dict[int, float] = {}
        began, next_at = time.monotonic(), 0.0
        while True:
            now = time.monotonic() - began
            if enemy.waves and not enemy.sent:
                enemy.forge()
            forged = enemy.sent or len(submitted) < batches - 1  # none of that after the last batch
            if len(submitted) < batches and now >= next_at and forged:
                next_at = now + every_s
                enemy.wave()
                before = time.time()
                job = gpu_job(1, n=each, more="max_retries = 0").replace(
                    "env | sort", "date +began:%s.%N"
                )
                submitted[pool.submit(job)] = before
            poll(pool, controller, told)
            queued = {ad["ClusterId"] for ad in pool.jobs() if ad["Owner"] == "alice"}
            if len(submitted) == batches and not queued:
                break
            assert now < PATIENT_S, (pool.jobs(), controller.story())
            time.sleep(1.0)
        # a forged ad must have had the time to do its worst
        controller.ticks(5)
        poll(pool, controller, told)
        for cluster, at in submitted.items():
            for out in sorted((pool.dir / "jobs").glob(f"out.{cluster}.*")):
                found = re.match(r"began:([0-9.]+)", out.read_text())
                assert found is not None, out.read_text()
                told.waits_s.append(float(found[1]) - at)
            assert {ad["ExitCode"] for ad in pool.history(cluster)} == {0}
            assert not [ad for ad in pool.history(cluster) if ad.get("NumHolds")]
        sound(controller)
    return told


def poll(pool: Pool, controller: LabController, told: Told) -> None:
    """Note what must not be: a job of the ordinary user that is held, a ban that concerns them."""
    held = [ad for ad in pool.jobs() if ad["Owner"] == "alice" and ad["JobStatus"] == 5]
    told.held += [f"{ad['ClusterId']}.{ad['ProcId']}: {ad.get('HoldReason')}" for ad in held]
    views = controller.record.views()
    overlay = views.overlay.view if views is not None else None
    theirs = {c.id for c in overlay.classes if c.owner == "alice"} if overlay is not None else set()
    for scope, breaker in controller.record.breakers().items():
        if breaker.state is not BreakerState.ACTIVE and (
            not scope.class_id or scope.class_id in theirs
        ):
            told.bans.add(f"{scope}: {breaker.state.value}, {breaker.fault}")


def sound(controller: LabController) -> None:
    """Check that the controller runs, has failed on nothing, and has numbered its drones in order."""
    assert controller.process is not None and controller.process.poll() is None
    log = controller.log()
    assert "Traceback" not in log, log[-5000:]
    events = [event.name for event in controller.record.events()]
    assert not {"plan.rejected", "planner-failed", "store.write_failed"} & set(events), events
    assert max(int(drone["id"].rpartition("-")[2]) for drone in controller.drones()) < 2_000_000


@pytest.mark.timeout(1.5 * PATIENT_S)
@pytest.mark.parametrize("more", [ADS_OF_ONES_OWN, ""], ids=["refused-ads", "accepted-ads"])
def test_an_ordinary_users_jobs_are_done_beside_many_jobs_of_a_hostile_user(
    condor: Condor, more: str
) -> None:
    told = story(condor, batches=10, each=5, every_s=5.0, more=more)
    print(
        f"{condor.version}: mean wait {statistics.fmean(told.waits_s):.1f} s, longest {max(told.waits_s):.1f} s"
    )
    assert (len(told.waits_s), told.held, told.bans) == (50, [], set())


@pytest.mark.timeout(1.5 * PATIENT_S)
def test_an_ordinary_users_jobs_are_done_beside_a_hostile_user(condor: Condor) -> None:
    told = story(condor, batches=2, each=4, every_s=10.0)
    assert (len(told.waits_s), told.held, told.bans) == (8, [], set())
