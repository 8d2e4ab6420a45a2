"""The ``local`` site: drones are process groups on this host."""

from adapters.local_site.config import Config, GpuSpec
from adapters.local_site.site import LocalSite

__all__ = ["Config", "GpuSpec", "LocalSite"]
