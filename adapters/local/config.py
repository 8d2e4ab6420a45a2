"""Options of the ``local`` site."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from provisioner.config.units import Capability, ConfigPath, Duration, PositiveDuration, Size
from provisioner.model import DroneType

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SITE_VARIABLES = re.compile(r"PROVISIONER_.*|DRONE_.*|CUDA_VISIBLE_DEVICES")


def _plain_environment(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not _VARIABLE_NAME.fullmatch(name) or "\0" in value:
            raise ValueError(f"`{name[:40]}` cannot be an environment variable: use letters, digits and `_`")
        if _SITE_VARIABLES.fullmatch(name):
            raise ValueError(f"`{name}` is set by the site itself: remove it")
    return env


class GpuSpec(BaseModel):
    """Equal GPUs, declared instead of detected."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = Field(default=1, ge=1, le=1024, description="How many.")
    model: str = Field(default="", description="Model, as `nvidia-smi` names it.", examples=["A100-SXM4-40GB"])
    vram: Size = Field(default=0, description="Memory of each.", examples=["40 GiB"])
    capability: Capability = Field(default=0, description="CUDA compute capability.", examples=[8.0])
    simulate: int | None = Field(
        default=None,
        ge=0,
        le=9,
        description="Not real: a drone on them pretends to find the model of this number of `condor_gpu_discovery"
        " -simulate` (2: V100, 4: A100), for tests.",
        examples=[4],
    )


class LocalSiteConfig(BaseModel):
    """Options of the ``local`` site."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: ConfigPath = Field(
        description="Directory, on a local disk, in which each drone gets its own, named by its id. Made if missing.",
        examples=["var/drones"],
        json_schema_extra={"places_drones": "shared"},
    )
    gpus: Literal["auto"] | tuple[GpuSpec, ...] = Field(
        default="auto",
        description="`auto`: what `nvidia-smi` lists, none where there is no `nvidia-smi`. A list declares GPUs, real "
        "or not; they are numbered from 0 in its order.",
    )
    cpus: int = Field(
        default_factory=lambda: len(os.sched_getaffinity(0)),
        ge=1,
        description="CPUs for drones. Default: those that the controller may use.",
    )
    memory: Size | None = Field(default=None, description="Memory for drones. Default: all of this host's.")
    disk: Size | None = Field(default=None, description="Disk for drones. Default: the size of `root`'s file system.")
    retain_finished: Duration = Field(
        default=3600.0, description="How long the directory of an ended drone is kept for the operator, then removed."
    )
    log_limit: Size = Field(
        default=64,
        ge=1,
        description="Largest log of a drone. Of a longer one only the end, at most 8 MiB, is kept at the next look.",
        examples=["64 MiB"],
    )
    probe_deadline: PositiveDuration = Field(default=20.0, description="Longest wait for `nvidia-smi`.")
    nice: int = Field(default=0, ge=0, le=19, description="Niceness of drones; 0 is that of the controller.")
    env: Annotated[dict[str, str], AfterValidator(_plain_environment)] = Field(
        default_factory=dict, description="Environment variables added for each drone."
    )

    def unfit(self, types: Sequence[DroneType]) -> Iterator[tuple[str, str]]:
        """Yield types that this host can never hold. GPUs that `nvidia-smi` would have to list are left out."""
        from adapters.local.resources import FreeHostResources, ResourceShortage, declared_host

        root = self.root.absolute()
        while not root.exists():
            root = root.parent
        host = declared_host(self, root)
        for kind in types:
            asked = replace(kind, gpu_milli=0) if self.gpus == "auto" else kind
            if isinstance(found := FreeHostResources.of(host).find(asked), ResourceShortage):
                yield kind.name, found.compared("of this host")
