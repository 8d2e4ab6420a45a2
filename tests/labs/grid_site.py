"""A compute element in the lab: a schedd with a JobRouter and nodes behind it, and the access point that submits to it.

What HTCondor-CE is made of: Condor-C (gridmanager and c-gahp) hands a job to the element's schedd,
whose JobRouter makes a job of the pool out of it. Two pools on loopback.
"""

from __future__ import annotations

import pwd
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from provisioner.model import DroneId
from tests.labs import htcondor
from tests.labs.controller import A100, LabController, Settings, gpu_type
from tests.labs.htcondor import ONE_SLOT, Condor, Pool, until
from tests.labs.network import Apart, inside
from tests.labs.scitokens import Issuer
from tests.labs.shared_gpu_site import SITE, FarmWorld

ELEMENT_SCHEDD = "ce@ce.test"

ROUTER = """
SCHEDD_NAME = ce@ce.test
NETWORK_HOSTNAME = ce.test
JOB_ROUTER_POLLING_PERIOD = 1
JOB_ROUTER_ROUTE_NAMES = pool
JOB_ROUTER_ROUTE_pool @=route
  REQUIREMENTS (RoutedBy is undefined)
  UNIVERSE VANILLA
  SET AcctGroup "atlas"
@route
# the pool behind an element has a negotiator, and its own schedd has none: only routed jobs may match
START = TARGET.RoutedBy isnt undefined
"""

MANY_GPUS = """
NUM_CPUS = 128
MEMORY = 262144
GPU_DISCOVERY_EXTRA = -extra -simulate:4,40
STARTER_JOB_ENVIRONMENT = "DRONE_GPU_SIMULATE=4,40"
"""
"""A node of the element where drones find their GPUs."""
ACCESS = """
NETWORK_HOSTNAME = ap.test
SCHEDD_NAME = ap@ap.test
# quick: a minute or more for all of these
GRIDMANAGER_JOB_PROBE_INTERVAL = 2
GRIDMANAGER_CHECKPROXY_INTERVAL = 5
GRIDMANAGER_CONTACT_SCHEDD_DELAY = 1
GRIDMANAGER_RESOURCE_PROBE_INTERVAL = 3
GRIDMANAGER_RESOURCE_PROBE_DELAY = 3
PERIODIC_EXPR_INTERVAL = 2
SUBMIT_REQUIREMENT_NAMES = Gpus
SUBMIT_REQUIREMENT_Gpus = (RequestGPUs ?: 0) <= 8
SUBMIT_REQUIREMENT_Gpus_REASON = "no node has more than 8 GPUs"
"""


def owner(element: Pool) -> str:
    """Return the account of the lab: a JobRouter that is not root routes the jobs of its own account alone."""
    return pwd.getpwuid(element.account.uid).pw_name


class AccessPoint(Pool):
    """The schedd that the controller submits to, whose gridmanager has a token of the element."""

    def __init__(
        self,
        root: Path,
        condor: Condor,
        element: Pool,
        apart: Apart | None = None,
        issuer: Issuer | None = None,
    ) -> None:
        if apart:
            self.around = inside(apart.namespace)
            self.address, self.clients_address = apart.there, apart.here
        more = issuer.access_point if issuer else ""
        super().__init__(root, condor, "ap", "COLLECTOR NEGOTIATOR SCHEDD", ACCESS + more)
        if not issuer:
            self.let_in(element, "READ", "WRITE")

    def let_in(self, element: Pool, *authz: str) -> None:
        """Have a token of the element that is good for no more than this."""
        token = element.token(owner(element), authz)
        self.write_token("element", self.dir / "etc/tokens", token)


class Element(Pool):
    """The element and its pool."""

    def __init__(self, root: Path, condor: Condor, more: str, apart: Apart | None) -> None:
        if apart:
            self.address = self.clients_address = apart.far
        daemons = "COLLECTOR NEGOTIATOR SCHEDD STARTD JOB_ROUTER"
        super().__init__(root, condor, "ce", daemons, ONE_SLOT + SITE + ROUTER + more)


@contextmanager
def through_element(
    condor: Condor, more: str = "", apart: Apart | None = None, ours: Condor | None = None
) -> Iterator[tuple[AccessPoint, Pool]]:
    """Start an element with a node of 8 GPUs, and an access point; ``more`` configures the element.

    ``apart``: the network of the access point, from which the element's address can be cut off.
    ``ours``: another release of HTCondor on the access point.
    """
    with (
        htcondor.lab_directory("element") as root,
        _running(root, condor, more, apart, ours) as both,
    ):
        yield both


@contextmanager
def _running(
    root: Path,
    condor: Condor,
    more: str,
    apart: Apart | None = None,
    ours: Condor | None = None,
    issuer: Issuer | None = None,
) -> Iterator[tuple[AccessPoint, Pool]]:
    element = Element(root, condor, more, apart)
    element.config.write_text(
        element.config.read_text() + f"ALLOW_WRITE = $(ALLOW_WRITE) {owner(element)}@ce.test\n"
    )
    access = AccessPoint(root, ours or condor, element, apart, issuer)
    with htcondor.running(element), htcondor.running(access):
        until(
            lambda: len(element.slots('SlotType == "Partitionable"')) == 1,
            60,
            what="the node is in the pool",
        )
        yield access, element


@contextmanager
def trusting_element(condor: Condor) -> Iterator[tuple[AccessPoint, Pool, Issuer]]:
    """Start an element that takes the tokens of an issuer, and an access point that has no other credentials."""
    with htcondor.lab_directory("element") as root:
        user = f"{pwd.getpwuid(htcondor.account().uid).pw_name}@ce.test"
        issuer = Issuer(root / "issuer", user)
        htcondor.account().give(issuer.directory)
        with _running(root, condor, MANY_GPUS + issuer.element, issuer=issuer) as (access, element):
            yield access, element, issuer


def grid_commands(element: Pool) -> dict[str, str]:
    """Submit commands that send a drone to the element."""
    return {
        "universe": "grid",
        "grid_resource": f"condor {ELEMENT_SCHEDD} {element.collector}",
    }


class ElementWorld(FarmWorld):
    """The contract's view of the access point, and of what runs behind the element."""

    longest_wait_s = 120.0

    def __init__(
        self, access: AccessPoint, element: Pool, work: Path, controller: str, **options: object
    ) -> None:
        super().__init__(access, work, controller, submit=grid_commands(element), **options)
        self.element = element

    async def alive(self, drone_id: DroneId) -> int:
        """Count here and there: a drone that runs twice behind the element is one job here."""
        routed = [
            ad
            for ad in self.element.jobs()
            if ad.get("DroneId") == drone_id and "RoutedFromJobId" in ad
        ]
        there = len([ad for ad in routed if ad["JobStatus"] not in (3, 4)])
        return max(there, await super().alive(drone_id))


@dataclass(frozen=True)
class ElementSite:
    """The access point and the element as a site of a controller."""

    access: AccessPoint
    element: Pool
    most: int
    max_pending: int
    name: str = "behind"
    commands: Mapping[str, str] = field(default_factory=dict)
    """Further submit commands."""

    def settings(self, controller: LabController) -> Settings:
        controller.secret("access.token", self.access.token("alice") + "\n")
        size = {"cpus": 2, "memory": "512 MiB", "disk": "10 MiB"}
        return {
            "adapter": "htcondor",
            "limits": {
                "max_drones": self.most,
                "max_pending": self.max_pending,
                "max_starts_per_tick": self.most,
            },
            "timeouts": controller.timeouts(
                missing="5s",
                grace="3s",
                poll_deadline="20s",
                order_deadline="30s",
                order_confirm="40s",
                stopping="90s",
            ),
            "types": {"a100": gpu_type(*A100, **size)},
            "options": {
                "collector": self.access.collector,
                "token": {"file": "access.token"},
                "client_config": htcondor.interface(self.access.clients_address),
                "work_directory": "work-behind",
                "submit": {**grid_commands(self.element), **self.commands},
                "submit_deadline": "25s",
            },
        }

    def there(self) -> Counter[str]:
        """Count the jobs of each drone that wait or run behind the element."""
        return Counter(
            str(ad["DroneId"])
            for ad in self.element.jobs()
            if "RoutedFromJobId" in ad and ad["JobStatus"] in (1, 2, 6)
        )

    def at_the_element(self) -> Mapping[str, str]:
        """Return the element's name of each job that it has of ours, by drone."""
        return {
            str(ad["DroneId"]): str(ad["GridJobId"])
            for ad in self.access.jobs()
            if "GridJobId" in ad
        }
