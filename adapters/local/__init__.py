"""The ``local`` site: drones are process groups on this host."""

from adapters.local.config import GpuSpec, LocalSiteConfig
from adapters.local.site import LocalSite

__all__ = ["GpuSpec", "LocalSite", "LocalSiteConfig"]
