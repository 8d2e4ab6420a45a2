"""Three real sites at once, from the files of `site_configs`: an overlay pool, a cluster of an owner, Slurm, a cloud.

The controller's files are those that an operator starts from. Addresses, time-outs, limits and the
simulated GPUs differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.labs import htcondor
from tests.labs.controller import A100, V100, LabController, Settings, gpu_type
from tests.labs.facilities import IMAGE
from tests.labs.htcondor import IDENTITIES, Condor, Pool
from tests.labs.htcondor_sites import (
    ETP_SCHEDD,
    EVENT_LOG,
    GRACE_S,
    GRID,
    PREEMPTS_LATE,
    SITE_IDENTITIES,
    SITE_SCHEDD,
    NodeShape,
    SitePool,
    etp_pool,
)
from tests.labs.openstack import OWNER as CLOUD_OWNER, OpenStack, OpenStackLab, running_openstack
from tests.labs.openstack_sites import access
from tests.labs.ports import free_port
from tests.labs.slurm import Slurm, SlurmLab, running_slurm
from tests.labs.slurm_sites import ways

SITE_FILES = Path(__file__).parents[2] / "site_configs"
NODES = (
    NodeShape("topas-a100-1", gpus=4, cpus=96, memory_mib=400 * 1024, simulate=4),
    NodeShape("topas-v100s-1", gpus=4, cpus=96, memory_mib=400 * 1024, simulate=2),
    NodeShape("topas-v100-1", gpus=4, cpus=24, memory_mib=200 * 1024, simulate=2),
)
USERS = ("alice", "bob", "carol")
DEADLINES = {"poll_deadline": "20s", "order_deadline": "45s", "order_confirm": "60s"}


def site_file(name: str, most_drones: int) -> dict[str, Any]:
    """Return an operator's site file without its name, limited to so many drones."""
    file: dict[str, Any] = yaml.safe_load((SITE_FILES / name).read_text())
    file.pop("site")
    file["limits"] = {
        "max_drones": most_drones,
        "max_gpus": most_drones,
        "max_pending": 12,
        "max_starts_per_tick": 8,
    }
    return file


@dataclass
class AcceptanceTopas:
    """The owner's HTCondor cluster; one of its drone types gives a fifth of a GPU to each small job."""

    site: SitePool
    etp: Pool
    name: str = "topas"
    most: int = 16

    def settings(self, controller: LabController) -> Settings:
        file = site_file("topas.yaml", self.most)
        (controller.directory / "owner-tokens").mkdir(mode=0o700, exist_ok=True)
        controller.secret("grid.token", self.site.token(GRID, SITE_IDENTITIES[GRID]) + "\n")
        controller.secret("owner-tokens/etp", self.etp.token("reader", ("READ",)) + "\n")
        file["timeouts"] = controller.timeouts(missing="5s", grace=f"{GRACE_S}s", **DEADLINES)
        types = file["types"]
        for name, gpu in (("v100s", V100), ("v100", V100), ("a100", A100)):
            types[name] |= {**gpu_type(*gpu), "disk": "2 GiB"}
        types["cpu"] |= {"memory": "4 GiB", "disk": "2 GiB", "max_drones": 3}
        fifths = {"sharing": "time-sliced", "shares": 5, "max_drones": 2, "price": 1.8}
        types["a100-fifths"] = types["a100"] | fifths
        options = file["options"]
        options |= {
            "collector": self.site.collector,
            "schedd": SITE_SCHEDD,
            "token": {"file": "grid.token"},
            "token_directory": "owner-tokens",
            "client_config": htcondor.LOOPBACK,
            "work_directory": "work-topas",
            "lease": "20s",
            "deadline": "15s",
            "submit_deadline": "20s",
            "owner": {"schedds": [SITE_SCHEDD, ETP_SCHEDD]},
        }
        options["types"]["v100s"] = {"requirements": 'regexp("^topas-v100s-", TARGET.Machine)'}
        return file


@dataclass
class AcceptanceHoreka:
    """The Slurm cluster, by its command-line tools."""

    slurm: SlurmLab
    name: str = "horeka"
    most: int = 12

    def settings(self, controller: LabController) -> Settings:
        file = site_file("horeka.yaml", self.most)
        file["timeouts"] = controller.timeouts(missing="3s", grace="4s", **DEADLINES)
        for name, gpu in (("a100", A100), ("a100x4", A100), ("h100", V100)):
            gpus = file["types"][name]["gpus"]
            file["types"][name] |= {
                **gpu_type(*gpu),
                "gpus": gpus,
                "disk": "2 GiB",
                "walltime": "1h",
            }
        options = file["options"]
        options.pop("tools")
        tools = ways(self.slurm, controller.directory)["tools"]
        options |= {
            "account": "lab",
            "same_account": True,
            "deadline": "15s",
            "submit_deadline": "20s",
            **tools,
        }
        options["hardware"][0]["nodes"] = "hkn[0801-0802]"
        options["hardware"][1]["nodes"] = "hkn0901"
        return file


@dataclass
class AcceptanceGridka:
    """The OpenStack cloud, with a project of its owner."""

    cloud: OpenStackLab
    name: str = "gridka"
    most: int = 6

    def settings(self, controller: LabController) -> Settings:
        file = site_file("gridka-cloud.yaml", self.most)
        image = controller.directory / "image.sh"
        image.write_text(
            IMAGE.format(prefix=controller.pool.condor.prefix).replace('"vgpu"', '"a100-10g"')
        )
        file["timeouts"] = controller.timeouts(missing="3s", grace="4s", **DEADLINES)
        size = {"cpus": 8, "memory": "16 GiB", "disk": "10 GiB", "walltime": "1h", "max_drones": 3}
        file["types"]["v100s"] |= {**gpu_type(*A100), **size}
        file["types"]["a100-10g"] |= {**gpu_type(*V100), **size}
        host = {"gpus": 8, "cpus": 64, "memory": "512 GiB", "disk": "4000 GiB"}
        options = file["options"]
        options.pop("security_groups")
        options |= {
            **access(self.cloud, controller.directory),
            "image": "worker",
            "networks": ["drones"],
            "types": {
                "v100s": {"flavor": "gpu.h100.pci"},
                "a100-10g": {"flavor": "gpu.h100.vgpu", "boot_volume": {"size": "20 GiB"}},
            },
            "setup": "image.sh",
            "env": {"CONDOR_PREFIX": "/opt/condor", "DRONE_GPU_IGNORE": "cuda"},
            "deadline": "15s",
            "create_deadline": "20s",
            "hosts": [{"names": ["gpu01", "gpu02"], "types": ["v100s", "a100-10g"], **host}],
            "owner": access(self.cloud, controller.directory, CLOUD_OWNER),
        }
        return file


@dataclass
class AcceptanceLab:
    """All of it; the controller is not started yet."""

    overlay: Pool
    site: SitePool
    etp: Pool
    slurm: SlurmLab
    cloud: OpenStackLab
    controller: LabController
    most: Mapping[str, int]
    """Drones allowed at each site."""
    web_port: int

    def edit(self, site: str, **limits: int) -> None:
        """Change limits in the file of a site."""
        file = self.controller.directory / f"site-{site}.yaml"
        settings = json.loads(file.read_text())
        settings["limits"] |= limits
        file.write_text(json.dumps(settings, indent=1))


def listen_at(controller: LabController, port: int) -> None:
    """Add the web service's port to a configuration that was written."""
    settings = json.loads(controller.config.read_text())
    settings["web"] = {"listen": f"127.0.0.1:{port}"}
    controller.config.write_text(json.dumps(settings, indent=1))


@contextmanager
def acceptance_lab(condor: Condor) -> Iterator[AcceptanceLab]:
    """Start three HTCondor pools, Slurm and OpenStack; in the end nothing of it is left."""
    more_users = "ALLOW_WRITE = $(ALLOW_WRITE) bob@overlay.test carol@overlay.test\n"
    identities = {**IDENTITIES, "bob": (), "carol": ()}
    with ExitStack() as stack:
        root = stack.enter_context(htcondor.lab_directory("topas"))
        directory = stack.enter_context(htcondor.lab_directory("controller"))
        overlay = Pool(root, condor, config=EVENT_LOG + more_users, identities=identities)
        site = SitePool(root, condor, NODES, rank=PREEMPTS_LATE)
        etp = etp_pool(root, condor, site)
        slurm = stack.enter_context(running_slurm(Slurm.fetched("trixie"), min_job_age_s=60))
        cloud = stack.enter_context(running_openstack(OpenStack.fetched()))
        sites = (AcceptanceTopas(site, etp), AcceptanceHoreka(slurm), AcceptanceGridka(cloud))
        policy = {
            "interval": "2s",
            "active_interval": "1s",
            "max_drones": 34,
            "overlay_max_age": "20s",
        }
        controller = LabController(overlay, directory / "c", sites=sites, idle_s=20, policy=policy)
        controller.write()
        port = free_port()
        listen_at(controller, port)
        site.node_config = controller.prints("render", "blocking", "--site", "topas")
        for pool in (overlay, site, etp):
            stack.enter_context(htcondor.running(pool))
        try:
            most = {each.name: each.most for each in sites}
            yield AcceptanceLab(overlay, site, etp, slurm, cloud, controller, most, port)
        except AssertionError:
            print(controller.story())
            raise
        finally:
            controller.clean_up()
