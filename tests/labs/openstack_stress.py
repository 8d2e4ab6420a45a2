"""A drill: the controller before the lab's cloud, with demand from a queue of its own, and every server looked at past
both all the time. What counts is what Nova has, so no drone has to join a pool: a server only boots, and goes on so."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, cast

from adapters.embedded import queue
from tests.labs.controller import LabController
from tests.labs.htcondor import LabError, Pool, lab_directory, own, until
from tests.labs.openstack import TENANT, Credential, OpenStackLab

SITE = "cloud"
KIND = "small"
BOOTS = "#!/bin/sh\nexec sleep 800\n"
"""What a server does in place of a drone: it is being set up."""


@dataclass
class DrillSite:
    """The cloud as a site with drone types that want no GPU, of which Nova has only a few."""

    cloud: OpenStackLab
    credential: Credential
    most: int = 6
    flavor: str = "cpu.small"
    timeouts: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    gpus: int = 0
    name: str = SITE

    def text(self, controller: LabController) -> str:
        """JSON is YAML."""
        clouds, setup = controller.directory / "clouds.yaml", controller.directory / "setup.sh"
        clouds.touch(mode=0o600)
        clouds.write_text(self.credential.clouds_yaml)
        setup.write_text(BOOTS)
        kind = {"gpus": self.gpus, "cpus": 1, "memory": "1 GiB", "disk": "1 GiB", "walltime": "1h"}
        gpu = {"gpu_model": "H100", "vram": "80 GiB", "capability": 9.0} if self.gpus else {}
        site = {
            "site": self.name,
            "adapter": "openstack",
            "limits": {"max_drones": self.most, "max_pending": self.most, "max_starts_per_tick": self.most},
            "timeouts": {
                "poll_deadline": "20s",
                "view_max_age": "30s",
                "order_deadline": "12s",
                "order_confirm": "12s",
                "missing": "2s",
                "booting": "30min",
                "stopping": "20s",
                "grace": "2s",
                **self.timeouts,
            },
            "types": {KIND: {**kind, **gpu}},
            "options": {
                "cloud": "lab",
                "clouds_file": str(clouds),
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
        return json.dumps(site, indent=1)


class QueueController(LabController):
    """With the embedded overlay, whose jobs are its own, and without a pool; quick at all it does."""

    def write(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        told = {
            "controller": self.name,
            "store": {"path": "provisioner.db"},
            "overlay": {"adapter": "embedded", "options": {"path": "queue.db"}},
            "sites": ["site-*.yaml"],
            "policy": {"interval": "500ms", "active_interval": "300ms", "idle_timeout": f"{self.idle_s}s"},
        }
        self.config.write_text(json.dumps(told, indent=1))
        for site in self.sites:
            (self.directory / f"site-{site.name}.yaml").write_text(site.text(self))

    def begin(self) -> None:
        """Only that: nothing is asked of it, and nothing waited for."""
        with (self.directory / "controller.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "provisioner.cli", "run", "--config", str(self.config)],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def done(self, *words: str) -> str:
        """What a call of the operator's command prints, which has to succeed."""
        called = self.call(*words)
        assert called.returncode == 0, called.stdout + called.stderr
        return called.stdout


class Watch:
    """Our servers in Nova, looked at again and again past the provisioner and past the fronts."""

    def __init__(self, cloud: OpenStackLab, prefix: str) -> None:
        self._session, self._prefix = cloud.session(), prefix
        self._began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 1))
        self.seen: list[Counter[str]] = []
        """How many servers each drone had, at each look."""
        self.faults: set[tuple[str, int]] = set()
        """Drones whose servers were in ERROR, and the codes of their faults."""
        self.most_active = 0

    def servers(self, **query: str) -> list[dict[str, Any]]:
        """All pages. One that comes from Nova's API to its cell meanwhile may be listed in two of them."""
        found: dict[str, dict[str, Any]] = {}
        words = "".join(f"&{key}={value}" for key, value in query.items())
        marker = ""
        while page := self._session("GET", f"nova:/servers/detail?limit=1000{words}{marker}")["servers"]:
            found |= {each["id"]: each for each in page if each["name"].startswith(self._prefix)}
            marker = f"&marker={page[-1]['id']}"
        return list(found.values())

    def poll(self) -> None:
        now = self.servers()
        self.seen.append(Counter(each["name"] for each in now))
        self.faults |= {(each["name"], each["fault"]["code"]) for each in now if "fault" in each}
        self.most_active = max(self.most_active, sum(each["status"] == "ACTIVE" for each in now))

    def ever(self) -> Counter[str]:
        """How many servers each drone has ever had, as Nova's tables tell, deleted ones included: all but those that
        were deleted before they were on a host."""
        return Counter(each["name"] for each in self.servers(**{"changes-since": self._began}))

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        over = threading.Event()

        def watch() -> None:
            took_s = 0.0
            while not over.wait(0.3 + took_s):  # half of the time, so that Nova can do something else as well
                began = time.monotonic()
                with suppress(LabError, OSError, HTTPException):  # the lab is being restarted
                    self.poll()
                took_s = time.monotonic() - began

        watcher = threading.Thread(target=watch, name="watch")
        watcher.start()
        try:
            yield self
        finally:
            over.set()
            watcher.join()


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

    # ------------------------------------------------------------------------------------------------------- looking

    def servers(self, *statuses: str) -> list[dict[str, Any]]:
        """Those that Nova has now, or of them those in one of these states."""
        return [each for each in self.watch.servers() if not statuses or each["status"] in statuses]

    def active(self, count: int, within_s: float = 60) -> None:
        until(lambda: len(self.servers("ACTIVE")) == count, within_s, what=f"{count} servers run", every_s=0.3)

    def row(self) -> dict[str, Any]:
        """The site as `provisioner sites` tells it."""
        [row] = self.controller.json("sites")["items"]
        return cast("dict[str, Any]", row)

    def noted(self, *words: str, within_s: float = 40) -> dict[str, Any]:
        """Wait until the site's note has all these words: one line, and `status` shows the site with it."""

        def told() -> dict[str, Any] | None:
            row = self.row()
            return row if all(word in row["note"] for word in words) else None

        row = until(told, within_s, what=f"the site's note says {words}", every_s=0.3)
        assert "\n" not in row["note"]
        return row

    def ended(self) -> list[dict[str, Any]]:
        return [each for each in self.controller.drones() if each["ended_at"]]

    # ----------------------------------------------------------------------------------------------------- judging

    def judge(self) -> None:
        """What holds in every drill: never above the cap, no drone twice, none that is not on record."""
        assert self.watch.seen, "nothing was looked at"
        assert max(each.total() for each in self.watch.seen) <= self.site.most, "never above the cap"
        assert max(max(each.values(), default=0) for each in self.watch.seen) <= 1, "no drone twice at a time"
        ever = self.watch.ever()
        assert max(ever.values(), default=0) <= 1, f"no drone twice at all: {ever}"
        recorded = {each["id"] for each in self.controller.drones()}
        assert {*ever, *(drone_id for each in self.watch.seen for drone_id in each)} <= recorded, "a stray"

    def over(self, within_s: float = 60) -> None:
        """All are sent away; no server, port or volume is left, and no drone on record that lives."""
        self.unsubmit()
        if self.controller.live():
            self.controller.done("drones", "kill", "--site", self.site.name, "--reason", "over", "--yes")
        until(lambda: not self.controller.live(), within_s, what="no drone on record lives", every_s=0.3)
        until(lambda: not self.servers(), 30, what="no server is left", every_s=0.3)
        until(lambda: not self.leavings(), 30, what="no port and no volume is left", every_s=0.3)
        self.judge()

    def leavings(self) -> list[dict[str, Any]]:
        """Ports and volumes."""
        return [*self.cloud.ports(), *self.cloud.disks()]

    def story(self) -> str:
        """Everything there is to tell, for a failing test."""
        told = [f"--- the controller\n{self.controller.log()[-12000:]}"]
        for words in (("drones", "--all", "-o", "wide"), ("sites", "-o", "json"), ("status",)):
            with suppress(OSError, subprocess.SubprocessError):
                told.append(f"--- provisioner {words[0]}\n{self.controller.call(*words).stdout}")
        with suppress(LabError, OSError):
            rows = [(each["name"], each["status"], each.get("fault")) for each in self.servers()]
            told.append("--- servers\n" + "\n".join(map(str, rows)))
        calls = [f"--- calls of {n}\n" + "\n".join(map(str, f.calls()[-25:])) for n, f in self.cloud.fronts.items()]
        return "\n".join([*told, *calls])


@contextmanager
def drill(cloud: OpenStackLab, credential: Credential | None = None, **site: Any) -> Iterator[Drill]:
    """A cloud that others use after us, and a controller of its own that is not started yet; ``site``: fields of
    ``DrillSite``."""
    here = DrillSite(cloud, credential or cloud.credential(TENANT), **site)
    with lab_directory("drill") as directory:
        # A name that no drill before had: Nova tells of servers that are gone as well.
        name = own(f"drill{secrets.token_hex(2)}")
        controller = QueueController(cast(Pool, None), directory / "c", sites=(here,), name=name)
        found = Drill(cloud, here, controller, Watch(cloud, f"{controller.name}-"))
        try:
            with found.watch.watching():
                yield found
        except BaseException:
            print(found.story())
            raise
        finally:
            cloud.heal()
            controller.stop()
            controller.clean_up()
