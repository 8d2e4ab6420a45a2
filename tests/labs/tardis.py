"""A real COBalD/TARDIS that starts drones at the lab's HTCondor site for the lab's overlay pool.

It is set up as its documentation says: HTCondor as batch system and as site, a JDL, a start script.
Its shell commands go through wrappers that know which pool is meant and note each call.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.labs import htcondor
from tests.labs.htcondor import COMMON, LOCAL, LOOPBACK, Pool, until
from tests.labs.htcondor_sites import GRID, NODE, SitePool

SITE_NAME, MACHINE_TYPE = "Topas", "a100"
"""TARDIS writes the first one in small letters into the names of its drones."""

OVERLAY = "COLLECTOR_UPDATE_INTERVAL = 5\n"
"""Configuration of the overlay: TARDIS ends with an error where no collector is listed, and the lab forgets in 30 s."""
COBALD = """
pipeline:
  - !LinearController
    low_utilisation: 0.5
    high_allocation: 0.5
    rate: 0.5
    interval: 1
  - !Limiter
    minimum: 1
    maximum: {most}
  - !TardisPoolFactory
    configuration: tardis.yml
logging:
  version: 1
  root: {{level: INFO, handlers: [console]}}
  handlers: {{console: {{class: logging.StreamHandler}}}}
"""
TARDIS = """
Plugins:
  SqliteRegistry: {{db_file: drones.db}}
BatchSystem:
  adapter: HTCondor
  ratios:
    gpu_ratio: Real(TotalSlotGPUs-GPUs)/TotalSlotGPUs
  max_age: 0.05
Sites:
  - {{name: {site}, adapter: HTCondor, quota: {most}, drone_heartbeat_interval: 2}}
{site}:
  bulk_size: 1
  MachineTypes: [{kind}]
  MachineTypeConfiguration:
    {kind}: {{jdl: drone.jdl}}
  MachineMetaData:
    {kind}: {{Cores: 1, Memory: 4, Disk: 1}}
"""
JDL = """
executable = {directory}/start.sh
transfer_input_files = {directory}/drone.conf, {directory}/drone.token
should_transfer_files = YES
when_to_transfer_output = ON_EXIT
environment = ${{Environment}}
request_cpus = $Cores
request_memory = ${{Memory}}
request_disk = ${{Disk}}
request_gpus = 1
+IsBackfill = True
"""
START = """#!/bin/sh
mkdir -p d/etc d/run d/log d/lock d/spool d/execute d/cred tokens
mv drone.token tokens/ && chmod 700 tokens && chmod 600 tokens/drone.token
HERE=$PWD CONDOR_CONFIG=$PWD/drone.conf exec {prefix}/usr/sbin/condor_master -f
"""
STARTD = """
TardisDroneUuid = "$ENV(TardisDroneUuid)"
STARTD_ATTRS = $(STARTD_ATTRS) TardisDroneUuid
"""
WRAPPER = """#!/bin/sh
echo "{tool} $*" >>{directory}/calls
exec {as_account} env CONDOR_CONFIG={config} {prefix}/usr/bin/{tool} "$@"
"""


@dataclass
class Tardis:
    """TARDIS as a process, not started yet. ``most``: quota of drones, of one GPU each."""

    directory: Path
    overlay: Pool
    site: SitePool
    most: int = 4
    process: subprocess.Popen[bytes] | None = None
    programs: Path = field(default_factory=lambda: htcondor.fetched("get-tardis.sh"))

    def write(self) -> None:
        """Its configuration, the files of its drones, and the wrappers."""
        (self.directory / "bin").mkdir(parents=True)
        prefix, account = self.overlay.condor.prefix, self.overlay.account
        words = {"site": SITE_NAME, "kind": MACHINE_TYPE, "most": self.most}
        texts = {"cobald.yml": COBALD, "tardis.yml": TARDIS, "drone.jdl": JDL, "start.sh": START}
        for name, text in texts.items():
            (self.directory / name).write_text(
                text.format(directory=self.directory, prefix=prefix, **words)
            )
        (self.directory / "start.sh").chmod(0o755)
        (self.directory / "drone.token").write_text(self.overlay.token("condor") + "\n")
        node = {
            "name": "$ENV(TardisDroneUuid)",
            "cpus": 2,
            "memory_mib": 1024,
            "simulate": 4,
            "gpus": self.most,
            "rank": 0,
        }
        where = {
            "prefix": prefix,
            "dir": "$ENV(HERE)/d",
            "tokens": "$ENV(HERE)/tokens",
            "keys": "$ENV(HERE)/no-keys",
        }
        pool = {"collector": self.overlay.collector, "domain": self.overlay.domain}
        common = COMMON.format(name=self.overlay.name, address=LOCAL, **where, **pool)
        config = (
            LOOPBACK + common + NODE.format(domain=self.overlay.domain, grace_s=5, **node) + STARTD
        )
        (self.directory / "drone.conf").write_text(config)
        drops = (
            f"setpriv --reuid={account.uid} --regid={account.gid} --clear-groups"
            if account.run
            else ""
        )
        for tools, of, identity in (
            (("condor_status", "condor_drain"), self.overlay, "admin"),
            (("condor_submit", "condor_q", "condor_rm", "condor_suspend"), self.site, GRID),
        ):
            client = of.dir / "clients" / identity / "condor_config"
            for tool in tools:
                wrapper = self.directory / "bin" / tool
                text = WRAPPER.format(
                    tool=tool,
                    directory=self.directory,
                    as_account=drops,
                    config=client,
                    prefix=prefix,
                )
                wrapper.write_text(text)
                wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        account.give(self.directory)

    def start(self) -> None:
        self.write()
        env = {
            **os.environ,
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": "",
        }
        env["LD_LIBRARY_PATH"] = ""
        command = (self.programs / "bin/python", "-m", "cobald.daemon", "cobald.yml")
        self.process = htcondor.launch(command, self.directory / "log", env=env, cwd=self.directory)

    def calls(self, tool: str) -> list[str]:
        """Return the arguments of its calls of a tool."""
        lines = (self.directory / "calls").read_text().splitlines()
        return [line.removeprefix(f"{tool} ") for line in lines if line.startswith(f"{tool} ")]

    def drones(self) -> list[htcondor.Ad]:
        """Return the ads of its slots in the pool, not those that jobs have carved from them."""
        return self.overlay.slots('TardisDroneUuid isnt undefined && SlotType isnt "Dynamic"')

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def stop(self) -> None:
        """End it, as a person would, and the drones that it leaves behind."""
        if self.process is not None:
            htcondor.end(self.process, signal.SIGINT, 30)
        self.site.empty("-constraint", "true", force_after_s=20)
        until(lambda: not self.drones(), 60, what="its drones are gone")


@contextmanager
def running_tardis(
    directory: Path, overlay: Pool, site: SitePool, most: int = 4
) -> Iterator[Tardis]:
    tardis = Tardis(directory, overlay, site, most)
    try:
        tardis.start()
        yield tardis
    finally:
        tardis.stop()
