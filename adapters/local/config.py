"""Options of the ``local`` site."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from adapters.shared.parcel import check_environment
from provisioner.config.models import ConfigSection
from provisioner.config.units import Capability, ConfigPath, Duration, Size
from provisioner.interfaces import OptionFinding
from provisioner.model import DroneType

_SITE_VARIABLES = re.compile(r"PROVISIONER_.*|DRONE_.*|CUDA_VISIBLE_DEVICES")


class GpuSpec(ConfigSection):
    """Equal GPUs, declared instead of detected."""

    count: int = Field(1, ge=1, le=1024)
    """Number of such GPUs."""
    model: str = Field("", examples=["A100-SXM4-40GB"])
    """Model, as `nvidia-smi` names it."""
    vram: Size = Field(0, examples=["40 GiB"])
    """Memory of each."""
    capability: Capability = Field(0, examples=[8.0])
    """CUDA compute capability."""
    simulate: int | None = Field(None, ge=0, le=9, examples=[4])
    """For tests: pretend to find the model of this number of `condor_gpu_discovery -simulate` (2: V100, 4: A100)."""


class LocalSiteConfig(ConfigSection):
    """Options of the ``local`` site."""

    root: ConfigPath = Field(examples=["var/drones"], json_schema_extra={"places_drones": "shared"})
    """Directory on a local disk, with one below it for each drone. Made if missing."""
    gpus: Literal["auto"] | tuple[GpuSpec, ...] = "auto"
    """`auto`: what `nvidia-smi` lists, none where there is no `nvidia-smi`. A list declares GPUs,
    real or not; they are numbered from 0 in its order."""
    cpus: int = Field(default_factory=lambda: len(os.sched_getaffinity(0)), ge=1)
    """CPUs for drones. Default: those that the controller may use."""
    memory: Size | None = None
    """Memory for drones. Default: all of this host's."""
    disk: Size | None = None
    """Disk for drones. Default: the size of `root`'s file system."""
    retain_finished: Duration = 3600.0
    """Time for which the directory of an ended drone is kept for the operator."""
    account: str = Field("", pattern=r"^([a-z_][a-z0-9_-]*)?$", examples=["gpu-drones"])
    """Account of the drones, which the controller reaches by `sudo` without a password. Empty: the controller's
    own; if that is root, `DRONE_USER`."""
    same_account: bool = False
    """Let jobs of other people run under an account that can read the controller's secrets, such as its own."""
    nice: int = Field(0, ge=0, le=19)
    """Niceness of drones; 0 is that of the controller."""
    env: Annotated[
        dict[str, str], AfterValidator(partial(check_environment, reserved=_SITE_VARIABLES))
    ] = Field({})
    """Environment variables added for each drone."""

    def drone_account(self) -> tuple[str, str]:
        """Return the option that names the account of drones, and that account."""
        return "account", self.account

    def types_too_large(self, types: Sequence[DroneType]) -> Iterator[OptionFinding]:
        """Yield types that this host can never hold. GPUs that `nvidia-smi` would have to list are left out."""
        from adapters.local.resources import FreeHostResources, declared_host

        root = self.root.absolute()
        while not root.exists():
            root = root.parent
        whole = FreeHostResources.of(declared_host(self, root))
        for kind in types:
            asked = replace(kind, gpu_milli=0) if self.gpus == "auto" else kind
            if isinstance(found := whole.find(asked), str):
                yield (
                    ("types", kind.name),
                    f"`{kind.name}` can never start on this host: {found}. Make it smaller",
                )
