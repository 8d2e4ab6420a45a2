"""The ``local`` site: drones are process groups on this host."""

from adapters.local.config import Config, GpuSpec
from adapters.local.site import LocalSite

__all__ = ["Config", "GpuSpec", "LocalSite"]
