"""A drill: the controller before the lab's cloud, with demand from a queue of its own, and every
server looked at past both all the time. What counts is what Nova has, so no drone has to join a
pool: a server only boots, and goes on so."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from adapters.embedded import queue
from tests.labs.controller import LabController, Settings, Sightings, gpu_type, limits
from tests.labs.htcondor import LabError, Pool, lab_directory, meanwhile, own, until
from tests.labs.openstack import TENANT, Credential, OpenStackLab

SITE = "cloud"
KIND = "small"
BOOTS = "#!/bin/sh\nexec sleep 800\n"
"""What a server does in place of a drone: it is being set up."""


@dataclass
class DrillSite:
    """The cloud as a site with a drone type that wants no GPU, of which Nova has only a few."""

    cloud: OpenStackLab
    credential: Credential
    most: int = 6
    flavor: str = "cpu.small"
    timeouts: Settings = field(default_factory=dict)
    options: Settings = field(default_factory=dict)
    gpus: int = 0
    name: str = SITE

    def settings(self, controller: LabController) -> Settings:
        setup = controller.directory / "setup.sh"
        setup.write_text(BOOTS)
        size = {"cpus": 1, "memory": "1 GiB", "disk": "1 GiB", "walltime": "1h"}
        kind = gpu_type("H100", 81920, 9.0, **size) if self.gpus else {"gpus": 0, **size}
        timeouts = {
            "poll_deadline": "20s",
            "view_max_age": "30s",
            "order_deadline": "12s",
            "order_confirm": "12s",
        }
        return {
            "adapter": "openstack",
            "limits": limits(self.most),
            "timeouts": timeouts
            | controller.timeouts(missing="2s", stopping="20s", grace="2s")
            | self.timeouts,
            "types": {KIND: kind},
            "options": {
                "cloud": "lab",
                "clouds_file": str(controller.secret("clouds.yaml", self.credential.clouds_yaml)),
                "image": "worker",
                "networks": ["drones"],
                "setup": str(setup),
                "types": {KIND: {"flavor": self.flavor}},
                "deadline": "10s",
                "create_deadline": "10s",
                "cleanup_interval": "2s",
                **self.options,
            },
        }


class QueueController(LabController):
    """With the embedded overlay, whose jobs are its own, and without a pool."""

    def overlay_settings(self) -> Settings:
        return {"adapter": "embedded", "options": {"path": "queue.db"}}


class Watch(Sightings):
    """Our servers in Nova, looked at past the provisioner and past the fronts."""

    def __init__(self, cloud: OpenStackLab, controller: LabController) -> None:
        super().__init__(controller, self._look)
        self._session, self._prefix = cloud.session(), f"{controller.name}-"
        self._began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 1))
        self.faults: set[tuple[str, int]] = set()
        """Drones whose servers were in ERROR, and the codes of their faults."""
        self.most_active = 0

    def servers(self, **query: str) -> list[dict[str, Any]]:
        """All pages. One that comes from Nova's API to its cell meanwhile may be listed in two of them."""
        found: dict[str, dict[str, Any]] = {}
        words = "".join(f"&{key}={value}" for key, value in query.items())
        marker = ""
        while page := self._session("GET", f"nova:/servers/detail?limit=1000{words}{marker}")[
            "servers"
        ]:
            found |= {each["id"]: each for each in page if each["name"].startswith(self._prefix)}
            marker = f"&marker={page[-1]['id']}"
        return list(found.values())

    def _look(self) -> Counter[str]:
        now = self.servers()
        self.faults |= {(each["name"], each["fault"]["code"]) for each in now if "fault" in each}
        self.most_active = max(self.most_active, sum(each["status"] == "ACTIVE" for each in now))
        return Counter(each["name"] for each in now)

    def ever(self) -> Counter[str]:
        """Count the servers that each drone has ever had by Nova's tables, deleted ones included: all
        but those that were deleted before they were on a host."""
        return Counter(each["name"] for each in self.servers(**{"changes-since": self._began}))


@dataclass
class Drill:
    cloud: OpenStackLab
    site: DrillSite
    controller: QueueController
    watch: Watch

    @property
    def queue(self) -> Path:
        return self.controller.directory / "queue.db"

    def submit(self, jobs: int) -> None:
        """Jobs that need a drone each."""
        queue.submit(self.queue, ["sleep", "600"], count=jobs, gpus=self.site.gpus)

    def unsubmit(self) -> None:
        queue.remove(self.queue, [job.id for job in queue.jobs(self.queue)])

    def servers(self, *statuses: str) -> list[dict[str, Any]]:
        """Those that Nova has now, or of them those in one of these states."""
        return [each for each in self.watch.servers() if not statuses or each["status"] in statuses]

    def active(self, count: int, within_s: float = 60) -> None:
        until(
            lambda: len(self.servers("ACTIVE")) == count,
            within_s,
            what=f"{count} servers run",
            every_s=0.3,
        )

    def noted(self, *words: str, within_s: float = 40) -> dict[str, Any]:
        """Wait until the site's note, which is one line, has all these words."""

        def told() -> dict[str, Any] | None:
            row = self.controller.site_row()
            return row if all(word in row["note"] for word in words) else None

        row = until(told, within_s, what=f"the site's note says {words}", every_s=0.3)
        assert "\n" not in row["note"]
        return row

    def ended(self) -> list[dict[str, Any]]:
        return self.controller.drones(ended=True)

    def judge(self) -> None:
        """What holds in every drill: never above the cap, no drone twice, none that is not on record."""
        self.watch.no_orphan_no_duplicate(self.site.most)
        ever = self.watch.ever()
        assert max(ever.values(), default=0) <= 1, f"no drone twice at all: {ever}"
        assert ever.keys() <= {each["id"] for each in self.controller.drones()}, "a stray"

    def over(self, within_s: float = 60) -> None:
        """All are sent away; no server, port or volume is left, and no drone on record that lives."""
        self.unsubmit()
        if self.controller.live():
            self.controller.prints(
                "drones", "kill", "--site", self.site.name, "--reason", "over", "--yes"
            )
        until(
            lambda: not self.controller.live(),
            within_s,
            what="no drone on record lives",
            every_s=0.3,
        )
        until(lambda: not self.servers(), 30, what="no server is left", every_s=0.3)
        until(lambda: not self.leavings(), 30, what="no port and no volume is left", every_s=0.3)
        self.judge()

    def leavings(self) -> list[dict[str, Any]]:
        """Ports and volumes."""
        return [*self.cloud.ports(), *self.cloud.disks()]

    def story(self) -> str:
        """Everything there is to tell, for a failing test."""
        told = [self.controller.story()]
        with suppress(LabError, OSError):
            told += [
                f"{each['name']}: {each['status']} {each.get('fault')}" for each in self.servers()
            ]
        calls = [
            f"--- calls of {n}\n" + "\n".join(map(str, f.calls()[-25:]))
            for n, f in self.cloud.fronts.items()
        ]
        return "\n".join([*told, *calls])


@contextmanager
def drill(
    cloud: OpenStackLab, credential: Credential | None = None, **site: Any
) -> Iterator[Drill]:
    """A cloud that others use after us, and a controller of its own that is not started yet;
    ``site``: fields of ``DrillSite``."""
    here = DrillSite(cloud, credential or cloud.credential(TENANT), **site)
    with lab_directory("drill") as directory:
        # A name that no drill before had: Nova tells of servers that are gone as well.
        name = own(f"drill{secrets.token_hex(2)}")
        # Each look, ours and the controller's, is some calls of Nova, which costs more than all else.
        quick = {"interval": "1s", "active_interval": "500ms"}
        controller = QueueController(
            cast(Pool, None), directory / "c", (here,), boot_s=1800, name=name, policy=quick
        )
        found = Drill(cloud, here, controller, Watch(cloud, controller))
        try:
            with meanwhile(found.watch, 0.6):
                yield found
        except BaseException:
            print(found.story())
            raise
        finally:
            cloud.heal()
            controller.clean_up()
