"""An HTCondor cluster as a site: drones are jobs of one of its schedds."""

from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.htcondor.site.site import HTCondorSite

__all__ = ["HTCondorSite", "HTCondorSiteConfig"]
