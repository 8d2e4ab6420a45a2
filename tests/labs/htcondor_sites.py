"""An owner's cluster in the lab: nodes with declared GPUs that preempt drones, a schedd that flocks there, our overlay.

Three pools on loopback. The pools' event logs show afterwards what happened, to the
millisecond: a sample taken while it happens misses what is short, and a busy host is no reason for
a test to fail.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

from tests.labs import htcondor
from tests.labs.controller import A100, LabController, Settings, gpu_type, limits
from tests.labs.htcondor import Ad, Condor, LabError, Pool, until

# --------------------------------------------------------------------------------------------------
# what happened


class Happened(IntEnum):
    """Kinds of events in a schedd's log, by HTCondor's numbers."""

    SUBMITTED = 0
    STARTED = 1
    EVICTED = 4
    ENDED = 5
    REMOVED = 9
    HELD = 12


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job."""

    what: Happened
    job: str
    """``cluster.process``."""
    at: float
    text: str


EVENT_LOG = """
EVENT_LOG = $(LOG)/EventLog
EVENT_LOG_FORMAT_OPTIONS = UTC, ISO_DATE, SUB_SECOND
EVENT_LOG_MAX_SIZE = 0
"""
"""Configuration of a schedd whose history :func:`events` tells."""

_EVENT = re.compile(
    r"(\d{3}) \((\d+)\.(\d+)\.\d+\) (\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d\.\d+)Z? (.*)", re.DOTALL
)


def events(pool: Pool, *clusters: int) -> list[Event]:
    """What happened to the jobs of these clusters (none: all), oldest first."""
    text = (pool.dir / "log/EventLog").read_text(errors="replace")
    found = []
    for each in text.split("\n...\n"):
        if (told := _EVENT.match(each.lstrip())) and int(told[1]) in set(Happened):
            at = datetime.fromisoformat(f"{told[4]}T{told[5]}").replace(tzinfo=UTC).timestamp()
            event = Event(Happened(int(told[1])), f"{int(told[2])}.{int(told[3])}", at, told[6])
            if not clusters or int(told[2]) in clusters:
                found.append(event)
    return sorted(found, key=lambda event: event.at)


# ------------------------------------------------------------------------------------------------------
# the cluster


GRID, OWNER = "grid", "owner1"
"""Who submits the drones, and whose jobs come first."""

SITE_SCHEDD, ETP_SCHEDD = "head@site.test", "login@etp.test"
"""The owner's jobs wait in both. (Two schedds of one name would overwrite each other's ad in the site's collector.)"""

SITE_IDENTITIES: Mapping[str, tuple[str, ...]] = {
    "condor": (),
    "admin": (),
    "reader": ("READ",),
    GRID: ("READ", "WRITE"),
    OWNER: (),
}

SITE = (
    """
NETWORK_HOSTNAME = head.site.test
SCHEDD_NAME = head@site.test
ALLOW_WRITE = $(ALLOW_WRITE) grid@site.test owner1@site.test
ALLOW_ADVERTISE_SCHEDD = $(ALLOW_ADVERTISE_SCHEDD) etp-schedd@site.test
PERIODIC_EXPR_INTERVAL = 2
NEGOTIATOR_CONSIDER_PREEMPTION = True
NEGOTIATOR_CONSIDER_EARLY_PREEMPTION = False
PREEMPTION_REQUIREMENTS = False
"""
    + EVENT_LOG
)

NODE = (
    htcondor.ONE_SLOT
    + """
DAEMON_LIST = MASTER STARTD
# this is what tells nodes apart on one host: Machine in their ads, and the end of their slots' names
NETWORK_HOSTNAME = {name}.site.test
USE_SHARED_PORT = True
SHARED_PORT_PORT = 0
ALLOW_READ = *@{domain}
ALLOW_WRITE = condor@{domain}
ALLOW_DAEMON = condor@{domain}
ALLOW_ADMINISTRATOR = condor@{domain} admin@{domain}

NUM_CPUS = {cpus}
MEMORY = {memory_mib}
DISK = 400000000
RESERVED_MEMORY = 0
GPU_DISCOVERY_EXTRA = -extra -simulate:{simulate},{gpus}
# drones find the GPUs that their job was given of those that the node pretends to have
STARTER_JOB_ENVIRONMENT = "DRONE_GPU_SIMULATE={simulate},{gpus}"

# the owner first; a drone gets its notice, and 10 s
STARTD_JOB_ATTRS = $(STARTD_JOB_ATTRS) IsBackfill
RANK = {rank}
MAXJOBRETIREMENTTIME = ifThenElse(TARGET.IsBackfill =?= True, 0, 24*3600)
MACHINEMAXVACATETIME = {grace_s}
SUSPEND = False
PREEMPT = False
KILL = False
WANT_SUSPEND = False
WANT_VACATE = True
IS_OWNER = False
START = True

STARTER_DEBUG = D_ALWAYS D_SUB_SECOND
"""
)

PREEMPTS = "ifThenElse(TARGET.IsBackfill =?= True, 0, 10)"
"""RANK of a node that takes a drone's place for an owner's job at the next negotiation."""

PREEMPTS_LATE = "ifThenElse(TARGET.IsBackfill =?= True, 0, ifThenElse(time() - (TARGET.QDate ?: 0) > 60, 10, 0))"
"""RANK of a node that gives drones a minute to make room by themselves, with the least loss, before it takes it."""

GRACE_S = 10


@dataclass(frozen=True)
class NodeShape:
    """One node: its declared hardware, ``simulate`` being the model's number in ``condor_gpu_discovery``."""

    name: str
    gpus: int = 8
    cpus: int = 128
    memory_mib: int = 400 * 1024
    simulate: int = 4

    @property
    def machine(self) -> str:
        return f"{self.name}.site.test"


class SitePool(Pool):
    """An HTCondor cluster with nodes; each node is a ``condor_master`` with a startd of its own."""

    def __init__(
        self,
        root: Path,
        condor: Condor,
        nodes: Sequence[NodeShape],
        *,
        rank: str = PREEMPTS,
        config: str = "",
        node_config: str = "",
    ) -> None:
        super().__init__(root, condor, "site", config=SITE + config, identities=SITE_IDENTITIES)
        self.nodes = tuple(nodes)
        self.rank, self.node_config = rank, node_config

    def start(self) -> SitePool:
        super().start()
        for node in self.nodes:
            directory = self.dir / node.name
            htcondor.make_directories(directory)
            config = directory / "etc/condor_config"
            config.write_text(
                self._common(directory, self.dir / "etc/tokens", directory / "no-keys")
                + NODE.format(**vars(node), domain=self.domain, rank=self.rank, grace_s=GRACE_S)
                + self.node_config
            )
            self.account.give(directory)
            self._master(directory, config)
        until(lambda: len(self.room()) == len(self.nodes), 60, what="all nodes in the pool")
        return self

    def room(self) -> dict[str, tuple[int, int, int]]:
        """GPUs, CPUs and MiB that nobody holds, by node."""
        return {
            str(ad["Machine"]).partition(".")[0]: tuple(
                int(ad.get(name, 0)) for name in ("GPUs", "Cpus", "Memory")
            )
            for ad in self.slots('SlotType == "Partitionable"')
        }

    def of(self, identity: str) -> list[Ad]:
        """Ads of someone's jobs in the queue."""
        return [ad for ad in self.jobs() if ad.get("Owner") == identity]

    def negotiations(self) -> int:
        """How many negotiation cycles there have been."""
        return (
            (self.dir / "log/NegotiatorLog")
            .read_text(errors="replace")
            .count("Finished Negotiation Cycle")
        )


def node_of(ad: Ad) -> str:
    """Name of the node that a job runs on, ``""`` if it does not."""
    return str(ad.get("RemoteHost", "")).rpartition("@")[2].partition(".")[0]


def drone_of(ad: Ad) -> str:
    """Id of the drone that an overlay job runs in, ``""`` if it does not: ``slot1_1@<drone>@<host>``."""
    parts = str(ad.get("RemoteHost", "")).split("@")
    return parts[1] if len(parts) == 3 else ""


def carriers(overlay: Pool, cluster: int) -> set[str]:
    """Ids of the drones that the jobs of a cluster run in."""
    return {drone_of(ad) for ad in overlay.jobs(cluster)} - {""}


def interval_s(controller: LabController) -> float:
    """The controller's longest tick so far, by the log of those that acted; a busy host makes it longer."""
    at = [
        (
            int(line.partition(" tick=")[2].split()[0]),
            datetime.fromisoformat(line.split()[0]).timestamp(),
        )
        for line in controller.log().splitlines()
        if " tick=" in line
    ]
    return max(((b - a) / (n - m) for (m, a), (n, b) in pairwise(at) if n > m), default=1.0)


def owner_job(
    seconds: float = 600,
    *,
    gpus: int = 1,
    cpus: int = 8,
    memory_mib: int = 20480,
    n: int = 1,
    more: str = "",
) -> str:
    """A submit description of the owner, or of a drone's shape: sleeps."""
    wants_gpus = f"request_gpus = {gpus}\n" if gpus else ""
    return f"""executable = /bin/sleep
arguments = {seconds}
{wants_gpus}request_cpus = {cpus}
request_memory = {memory_mib}MB
request_disk = 1MB
transfer_executable = False
should_transfer_files = YES
when_to_transfer_output = ON_EXIT
{more}
queue {n}
"""


# -------------------------------------------------------------------------------------------------
# the flocking pool

STUDENT = "student"

ETP = (
    """
NETWORK_HOSTNAME = login.etp.test
SCHEDD_NAME = login@etp.test
FLOCK_TO = {site}
FLOCK_COLLECTOR_HOSTS = $(FLOCK_TO)
FLOCK_NEGOTIATOR_HOSTS = $(FLOCK_TO)
FLOCK_INCREMENT = 2
ALLOW_WRITE = $(ALLOW_WRITE) student@etp.test
"""
    + EVENT_LOG
)


def etp_pool(root: Path, condor: Condor, site: Pool) -> Pool:
    """The owner's own pool, without a node: its schedd flocks to the site, which gave it one token, one way."""
    etp = Pool(
        root,
        condor,
        "etp",
        config=ETP.format(site=site.collector),
        identities={"condor": (), "admin": (), "reader": ("READ",), STUDENT: ()},
    )
    file = etp.dir / "etc/tokens/site"
    file.touch(mode=0o600)
    file.write_text(site.token("etp-schedd", ("READ", "ADVERTISE_SCHEDD")) + "\n")
    etp.account.give(file.parent)
    return etp


# ------------------------------------------------------------------------------------------- as the
# controller has it

SIZE = {"cpus": 8, "memory": "20 GiB", "disk": "2 GiB"}
GPU_TYPE = {"a100": gpu_type(*A100, **SIZE)}
CPU_TYPE = {"cpu": {"gpus": 0, **SIZE, "memory": "4 GiB"}}


@dataclass(frozen=True)
class TopasSite:
    """The owner's cluster as a site of ours."""

    site: SitePool
    etp: Pool
    types: Settings = field(default_factory=lambda: GPU_TYPE)
    most: int = 40
    preempt_proactively: bool = True
    name: str = "topas"

    def settings(self, controller: LabController) -> Settings:
        (controller.directory / "owner-tokens").mkdir(mode=0o700, exist_ok=True)
        controller.secret("grid.token", self.site.token(GRID, SITE_IDENTITIES[GRID]) + "\n")
        controller.secret("owner-tokens/etp", self.etp.token("reader", ("READ",)) + "\n")
        deadlines = {"poll_deadline": "20s", "order_deadline": "30s", "order_confirm": "40s"}
        options = {
            "collector": self.site.collector,
            "schedd": SITE_SCHEDD,
            "token": {"file": "grid.token"},
            "token_directory": "owner-tokens",
            "client_config": htcondor.LOOPBACK,
            "work_directory": f"work-{self.name}",
            "submit": {"+IsBackfill": "True"},
            "lease": "20s",
            "deadline": "15s",
            "submit_deadline": "20s",
            "owner": {"schedds": [SITE_SCHEDD, ETP_SCHEDD]},
        }
        return {
            "adapter": "htcondor",
            "limits": limits(self.most),
            "timeouts": controller.timeouts(missing="5s", grace=f"{GRACE_S}s", **deadlines),
            "blocking": [{"cpus": 8, "memory": "20 GiB"}],
            "owner": {"preempt_proactively": self.preempt_proactively},
            "types": self.types,
            "options": options,
        }


# ----------------------------------------------------------------------------------------------------
# all of it


@dataclass
class TopasLab:
    """The overlay, the owner's cluster, the owner's flocking schedd, and our controller (not started yet)."""

    overlay: Pool
    site: SitePool
    etp: Pool
    controller: LabController

    def drone_jobs(self) -> list[Ad]:
        """The site's jobs that are drones, whatever their state."""
        return self.site.of(GRID)

    def drones_at(self) -> Counter[str]:
        """Running drones by node."""
        return Counter(node_of(ad) for ad in self.drone_jobs() if ad.get("JobStatus") == 2)

    def story(self) -> str:
        """Everything there is to tell, for a failing test."""
        told = [self.controller.story()]
        for pool in (self.overlay, self.site, self.etp):
            with suppress(LabError, OSError, subprocess.SubprocessError):
                told.append(
                    f"--- {pool.name}\n{pool.run('condor_q', '-allusers', '-nobatch', timeout_s=10)}"
                )
        return "\n".join(told)


@contextmanager
def topas_lab(
    condor: Condor,
    nodes: Sequence[NodeShape] = (NodeShape("node1"),),
    *,
    rank: str = PREEMPTS,
    site_config: str = "",
    node_config: str | None = "",
    overlay_config: str = "",
) -> Iterator[TopasLab]:
    """Bring all of it up; in the end nothing of it is left. ``node_config`` None: what `provisioner
    render blocking` prints for the nodes."""
    with htcondor.lab_directory("topas") as root, htcondor.lab_directory("controller") as directory:
        overlay = Pool(root, condor, config=EVENT_LOG + overlay_config)
        site = SitePool(
            root, condor, nodes, rank=rank, config=site_config, node_config=node_config or ""
        )
        etp = etp_pool(root, condor, site)
        controller = LabController(overlay, directory / "c", sites=(TopasSite(site, etp),))
        if node_config is None:
            controller.write()
            site.node_config = controller.prints("render", "blocking", "--site", "topas")
        lab = TopasLab(overlay, site, etp, controller)
        with htcondor.running(overlay), htcondor.running(site), htcondor.running(etp):
            try:
                yield lab
            except AssertionError:
                print(lab.story())
                raise
            finally:
                controller.clean_up()
