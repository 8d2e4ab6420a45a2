"""Two real processes with one record: the leader is killed or stopped, and the other goes on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from adapters.embedded import queue
from provisioner.model import Drone, DroneState, RequestKind
from provisioner.processes import DRONE_TAG
from provisioner.store import StoreError
from provisioner.store.database import Place, ServerSchema
from provisioner.store.lease import Lease
from provisioner.store.reader import Reader
from tests.controller.test_process import ADAPTER, CONTROLLER, SITE, Host, host
from tests.labs.network import WANTED, Apart, available
from tests.labs.postgresql import QUICK, PostgresServer, postgres_or_skip

__all__ = ["host"]
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LEASE_S = 2
MOST = 4
ORDERS = """
    async def start(self, orders):
        self.order("asked", orders)
        await asyncio.sleep(self.start_s)
        for order in orders:
            (self.root / "drones" / order.drone_id).touch()
        self.order("started", orders)
        if (self.root / "unread").exists():
            await asyncio.sleep(30)
        return [OrderResult(o.drone_id, OrderOutcome.OK, "r-" + o.drone_id) for o in orders]

    async def stop(self, orders):
        self.order("stopped", orders)
        for order in orders:
            (self.root / "drones" / order.drone_id).unlink(missing_ok=True)
        return [OrderResult(o.drone_id, OrderOutcome.OK) for o in orders]

    def order(self, what, orders):
        with (self.root / "orders").open("a") as log:
            for order in orders:
                log.write(f"{time.monotonic()} {os.getpid()} {what} {order.drone_id}\\n")
"""


class Pair:
    """Two members, at a site whose drones an operator kills one after the other: there is always something to do."""

    def __init__(
        self, host: Host, start_s: float, place: Place, *, first: tuple[str, ...] = ()
    ) -> None:
        """``first``: words that begin the command of the member that leads first."""
        self.host = host
        self.killed = set[str]()
        """Drones that were to be killed."""
        self.record = Reader(place)
        settings = CONTROLLER
        if isinstance(place, ServerSchema):
            settings = settings.replace("path: record.db", f'url: "{place}"')
        policy = f"ha: {{lease: {LEASE_S}s}}\n"
        (host.path / "provisioner.yaml").write_text(settings + policy)
        (host.path / "files_site.py").write_text(
            ADAPTER.partition("\n    async def start(")[0] + ORDERS
        )
        (host.path / "here" / "drones").mkdir(parents=True)
        (host.path / "here" / "orders").touch()
        times = "{order_deadline: 6s, order_confirm: 6s, missing: 1s, stopping: 2s, grace: 0s}"
        text = (
            SITE.replace("NAME", "here")
            .replace("ROOT", str(host.path / "here"))
            .replace("START", str(start_s))
            .replace("max_drones: 1", f"max_drones: {MOST}")
        )
        (host.path / "site-here.yaml").write_text(f"{text}timeouts: {times}\n")
        for _ in range(8):
            queue.submit(host.path / "queue.db", ["true"], memory_mib=16)
        self.members = list[subprocess.Popen[bytes]]()
        self.runs_another(*first)
        host.until(lambda: self.leader is not None)
        self.runs_another()

    def runs_another(self, *words: str) -> None:
        """Start a member by a command that begins with ``words``, and wait until it is on record."""
        new = self.host.run(before=words)
        self.members = [*(each for each in self.members if each.poll() is None), new]
        self.host.until(lambda: any(name.endswith(f"/{new.pid}") for name in self.names))

    @property
    def names(self) -> list[str]:
        try:
            return [each.name for each in self.record.lease()[1]]
        except StoreError:
            return []

    @property
    def lease(self) -> Lease:
        return self.record.lease()[0]

    @property
    def leader(self) -> subprocess.Popen[bytes] | None:
        try:
            lease = self.lease
        except StoreError:
            return None
        found = (m for m in self.members if lease.member.endswith(f"/{m.pid}"))
        return next(found, None) if lease.is_held else None

    @property
    def tick(self) -> int:
        views = self.record.views()
        return views.tick if views else 0

    @property
    def orders(self) -> Iterator[tuple[float, int, str, str]]:
        for line in (self.host.path / "here" / "orders").read_text().splitlines():
            at, pid, what, drone = line.split()
            yield float(at), int(pid), what, drone

    def count(self, what: str) -> int:
        return sum(each[2] == what for each in self.orders)

    def starts_more(self) -> None:
        """Wait until a drone was started, after one was killed."""
        starts = self.count("started")
        self.replaces_one()
        self.host.until(lambda: self.count("started") > starts)

    def alive(self) -> set[str]:
        return set(os.listdir(self.host.path / "here" / "drones"))

    def keeps_its_promises(self) -> None:
        """No id twice, no cap exceeded, no drone without a record."""
        assert max(Counter(each[3] for each in self.orders if each[2] == "asked").values()) == 1
        alive = set[str]()
        for _, _, what, drone in self.orders:
            if what == "started":
                alive.add(drone)
            elif what == "stopped":
                alive.discard(drone)
            assert len(alive) <= MOST
        self.host.until(
            lambda: self.alive() <= {each.id for each in self.record.drones(ended=None)}
        )

    def runs(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.replaces_one()
            for _ in range(25):
                assert len(self.alive()) <= MOST
                time.sleep(0.02)

    def replaces_one(self) -> None:
        """Have the oldest drone killed that nobody has asked to leave."""
        record = self.record
        for drone in record.drones():
            if not drone.is_leaving and not record.requests():
                self.killed.add(drone.id)
                record.ask(RequestKind.KILL, [drone.id], reason="load", by="test", at=record.now())
                return


@pytest.fixture
def file(host: Host) -> Path:
    return host.path / "record.db"


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_or_skip(*QUICK) as server:
        yield server


@pytest.fixture
def durable() -> Iterator[PostgresServer]:
    """A server that keeps what it has committed when it is stopped at once."""
    with postgres_or_skip() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.matrix)])
def place(request: pytest.FixtureRequest, file: Path) -> Place:
    if request.param == "sqlite":
        return file
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_place()


KILLS = int(os.environ.get("MEMBERS_KILLS", "2"))
STOPPED_S = float(os.environ.get("MEMBERS_STOPPED_S", "8"))


def test_the_standby_goes_on_when_the_leader_is_killed(host: Host, place: Place) -> None:
    pair = Pair(host, 0.3, place)
    took = []
    for _ in range(KILLS):
        pair.starts_more()
        pair.runs(1.5)
        leader = pair.leader
        assert leader is not None
        epoch, tick = pair.lease.epoch, pair.tick
        killed_at = time.monotonic()
        leader.kill()
        leader.wait()
        host.until(lambda epoch=epoch: pair.lease.epoch > epoch)
        host.until(lambda tick=tick: pair.tick > tick + 1)
        took.append(time.monotonic() - killed_at)
        pair.runs_another()
    pair.starts_more()
    pair.runs(2.0)
    pair.keeps_its_promises()
    print(f"take-overs: {[round(each, 1) for each in sorted(took)]} s")


def test_a_leader_that_was_stopped_amid_an_order_does_nothing_more(
    host: Host, place: Place
) -> None:
    pair = Pair(host, 1.5, place)
    pair.starts_more()
    old = pair.leader
    assert old is not None
    asked = pair.count("asked")
    pair.replaces_one()
    host.until(lambda: pair.count("asked") > asked)
    old.send_signal(signal.SIGSTOP)
    epoch = pair.lease.epoch
    host.until(lambda: pair.lease.epoch > epoch)
    does_nothing_more(pair, old)


def does_nothing_more(pair: Pair, old: subprocess.Popen[bytes]) -> None:
    """Wake up a former leader after a while, and check that it stands by."""
    pair.runs(STOPPED_S)
    woken_at = time.monotonic()
    old.send_signal(signal.SIGCONT)
    pair.runs(4.0)
    later = [each for each in pair.orders if each[0] > woken_at and each[1] == old.pid]
    assert [each for each in later if each[2] != "started"] == []
    assert pair.leader is not old and old.poll() is None
    assert len(pair.record.lease()[1]) == 2, "it stands by"
    pair.keeps_its_promises()


@pytest.mark.matrix
def test_a_leader_that_was_stopped_amid_a_record_does_nothing_more(
    host: Host, postgres: PostgresServer
) -> None:
    """It has locked the record: the next leader ends its connection."""
    pair = Pair(host, 0.3, postgres.new_place())
    pair.starts_more()
    old = pair.leader
    assert old is not None
    inside = f"state LIKE 'idle in transaction%' AND application_name = 'provisioner {old.pid}'"
    query = f"SELECT 'inside' FROM pg_stat_activity WHERE {inside}"

    def stopped_inside() -> bool:
        old.send_signal(signal.SIGSTOP)
        words = ("-h", str(postgres.directory), "-U", "provisioner", "postgres", "-c", query)
        if "inside" in postgres.run("psql", "-t", *words):
            return True
        old.send_signal(signal.SIGCONT)
        return False

    host.until(stopped_inside, 120.0)
    stopped_at = time.monotonic()
    epoch, tick = pair.lease.epoch, pair.tick
    host.until(lambda: pair.lease.epoch > epoch, 60.0)
    leads_at = time.monotonic()
    host.until(lambda: pair.tick > tick + 1, 90.0)
    print(f"lease: {leads_at - stopped_at:.1f} s, record: {time.monotonic() - stopped_at:.1f} s")
    does_nothing_more(pair, old)


@pytest.mark.parametrize("failure", ["killed", pytest.param("stopped", marks=pytest.mark.matrix)])
def test_a_start_whose_reply_is_lost_in_a_fail_over_is_settled_by_a_listing(
    host: Host, file: Path, failure: str
) -> None:
    pair = Pair(host, 0.0, file)
    pair.starts_more()
    old = pair.leader
    assert old is not None
    unread = host.path / "here" / "unread"
    unread.touch()
    pair.starts_more()
    drone = [each[3] for each in pair.orders if each[2] == "started"][-1]
    [asked] = [each for each in pair.record.drones() if each.id == drone]
    assert asked.state is DroneState.REQUESTED
    epoch = pair.lease.epoch
    old.send_signal(signal.SIGKILL if failure == "killed" else signal.SIGSTOP)
    host.until(lambda: pair.lease.epoch > epoch)
    unread.unlink()

    def settled() -> Drone | None:
        found = pair.record.drone(asked.id)
        return found if found and found.state is not DroneState.REQUESTED else None

    host.until(settled)
    old.send_signal(signal.SIGCONT)
    pair.starts_more()
    found = settled()
    assert found is not None and not found.state.ended and drone in pair.alive()
    pair.keeps_its_promises()


def test_an_operator_asks_the_leader_to_resign_and_the_next_one_starts_at_once(
    host: Host, file: Path
) -> None:
    pair = Pair(host, 0.2, file)
    pair.starts_more()
    old = pair.leader
    since = time.monotonic()
    pair.record.ask(RequestKind.RESIGN, [], reason="upgrade", by="test", at=pair.record.now())
    host.until(lambda: pair.leader not in (None, old))
    pair.starts_more()
    assert time.monotonic() - since < LEASE_S + 20
    assert [each.kind for each in pair.record.requests()] == []
    pair.keeps_its_promises()


def test_a_controller_on_its_own_refuses_a_record_that_members_share(
    host: Host, file: Path
) -> None:
    pair = Pair(host, 0.2, file)
    (host.path / "provisioner.yaml").write_text(CONTROLLER)
    alone = subprocess.run(host.command("--once"), env=host.env, cwd=host.path, capture_output=True)
    assert alone.returncode == 1 and b"is held by" in alone.stderr
    for each in pair.members:
        each.send_signal(signal.SIGTERM)
    assert [each.wait(30) for each in pair.members] == [0, 0]
    assert pair.lease.was_released and pair.record.lease()[1] == []
    again = subprocess.run(host.command("--once"), env=host.env, cwd=host.path, capture_output=True)
    assert again.returncode == 0, again.stderr


@pytest.mark.matrix
def test_members_resume_when_the_database_comes_back(host: Host, durable: PostgresServer) -> None:
    """It was stopped as by a crash; until then nobody gives an order, and no process ends."""
    pair = Pair(host, 0.3, durable.new_place())
    pair.starts_more()
    epoch = pair.lease.epoch
    durable.stop("immediate")
    time.sleep(LEASE_S + 1.0)
    orders = len(list(pair.orders))
    time.sleep(3 * LEASE_S)
    assert len(list(pair.orders)) == orders
    assert [each.poll() for each in pair.members] == [None, None]
    assert b"lease.renewal_failed" in (host.path / "stderr").read_bytes()
    durable.start()
    host.until(lambda: pair.leader is not None)
    pair.starts_more()
    pair.runs(2.0)
    pair.keeps_its_promises()
    assert pair.lease.epoch >= epoch


@pytest.mark.matrix
def test_connections_that_the_server_ends_are_made_anew(
    host: Host, postgres: PostgresServer
) -> None:
    pair = Pair(host, 0.3, postgres.new_place())
    for _ in range(3):
        pair.starts_more()
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'provisioner %'"
        postgres.run(
            "psql", "-h", str(postgres.directory), "-U", "provisioner", "postgres", "-c", others
        )
        pair.runs(1.0)
    pair.starts_more()
    pair.keeps_its_promises()
    assert [each.poll() for each in pair.members] == [None, None]


@pytest.mark.matrix
@pytest.mark.skipif(not available(), reason=WANTED)
def test_a_leader_without_a_network_stops_before_the_next_one_begins(host: Host) -> None:
    with Apart() as apart, postgres_or_skip(*QUICK, f"listen_addresses={apart.far}") as server:
        server.admit(f"{apart.there}/32", f"{apart.far}/32")
        place = server.new_place(apart.far)
        pair = Pair(host, 0.3, place, first=("ip", "netns", "exec", apart.namespace))
        old = pair.leader
        pair.starts_more()
        epoch = pair.lease.epoch
        pair.replaces_one()
        with apart.cut():
            host.until(lambda: pair.lease.epoch > epoch)
            new = pair.leader
            assert old is not None and new not in (None, old)
            pair.starts_more()
            pair.runs(STOPPED_S)
        orders = {
            each.pid: [o[0] for o in pair.orders if o[1] == each.pid] for each in pair.members
        }
        print(f"no order for {orders[new.pid][0] - orders[old.pid][-1]:.1f} s")
        assert orders[old.pid][-1] < orders[new.pid][0]
        host.until(lambda: len(pair.record.lease()[1]) == 2)
        pair.runs(4.0)
        assert pair.leader is new and old.poll() is None
        assert max(o[0] for o in pair.orders if o[1] == old.pid) == orders[old.pid][-1]
        pair.keeps_its_promises()


CLOCK = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t which, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, which, now);
    FILE *step = which == CLOCK_REALTIME ? fopen(getenv("CLOCK_STEP"), "r") : NULL;
    long seconds = 0;
    if (step != NULL) {
        if (fscanf(step, "%ld", &seconds) == 1) now->tv_sec += seconds;
        fclose(step);
    }
    return failed;
}
"""
"""A wall clock that is ahead by the seconds in a file, for LD_PRELOAD."""


@pytest.mark.matrix
@pytest.mark.parametrize("step_s", [3660, -3660])
def test_a_clock_that_is_set_by_an_hour_ends_no_drone(
    host: Host, postgres: PostgresServer, step_s: int
) -> None:
    """It is that of one member: first while it leads, then the other one leads, and then this one again."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for a clock that is set")
    library = host.path / "clock.so"
    build = (compiler, "-shared", "-fPIC", "-x", "c", "-o", str(library), "-")
    subprocess.run(build, input=CLOCK.encode(), check=True)
    file = host.path / "step"
    set_clock = ("env", f"LD_PRELOAD={library}", f"CLOCK_STEP={file}")
    pair = Pair(host, 0.3, postgres.new_place(), first=set_clock)
    stepped = pair.leader
    pair.starts_more()
    file.write_text(str(step_s))
    pair.runs(4.0)
    pair.starts_more()
    assert pair.leader is stepped
    for words in (set_clock, ()):
        leader = pair.leader
        assert leader is not None
        leader.kill()
        leader.wait()
        host.until(lambda: pair.leader is not None)
        pair.starts_more()
        pair.runs(2.0)
        pair.runs_another(*words)
    print(
        [
            f"{each.name} {dict(each.fields)}"
            for each in pair.record.events()
            if "clock" in each.name
        ]
    )
    assert {each[3] for each in pair.orders if each[2] == "stopped"} <= pair.killed
    pair.keeps_its_promises()


def drones_alive(directory: Path) -> set[bytes]:
    """Return the drones of a site in a directory of which there are processes."""
    tag = f"{DRONE_TAG}=".encode()
    found = set[bytes]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            text = path.read_bytes()
            if bytes(directory) in text:
                found |= {each for each in text.split(b"\0") if each.startswith(tag)}
    return found


@pytest.mark.matrix
def test_no_job_is_lost_while_leaders_are_killed(host: Host, postgres: PostgresServer) -> None:
    """Real drones of this host run real jobs, each of which notes that it began."""
    place = postgres.new_place()
    demo = ROOT / "site_configs" / "demo"
    settings = (
        (demo / "provisioner.yaml").read_text().replace("path: provisioner.db", f'url: "{place}"')
    )
    (host.path / "provisioner.yaml").write_text(f"{settings}ha: {{lease: {LEASE_S}s}}\n")
    site = (demo / "local.yaml").read_text()
    slow = re.sub(r"^  (queued|booting|joining|slot_loss): \d+s", r"  \1: 2min", site, flags=re.M)
    (host.path / "local.yaml").write_text(slow)
    jobs, ran = host.path / "queue.db", host.path / "ran"
    members = [host.run(), host.run()]
    record = Reader(place)
    wanted = list[int]()
    for _ in range(KILLS):
        for _ in range(8):
            command = ["sh", "-c", f'echo {len(wanted)} >> "{ran}"; sleep 3']
            wanted += queue.submit(jobs, command, vram_mib=1024, memory_mib=16)
        host.until(lambda: queue.counts(jobs)[queue.JobState.RUNNING] >= 4, 120.0)
        assert 0 < len(drones_alive(host.path)) <= 6
        lease = record.lease()[0]
        leader = next(each for each in members if lease.member.endswith(f"/{each.pid}"))
        leader.kill()
        leader.wait()
        members = [*(each for each in members if each is not leader), host.run()]
        host.until(lambda epoch=lease.epoch: record.lease()[0].epoch > epoch, 60.0)
    host.until(lambda: queue.counts(jobs)[queue.JobState.DONE] > len(wanted), 180.0)
    assert sorted(map(int, ran.read_text().split())) == [*range(len(wanted))], "each ran once"
    host.until(lambda: not drones_alive(host.path), 120.0)
    host.until(lambda: not record.drones())
