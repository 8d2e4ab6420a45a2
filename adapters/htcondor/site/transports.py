"""Which way to a cluster the operator has chosen."""

from __future__ import annotations

from adapters.htcondor.site.bindings import BindingsCluster
from adapters.htcondor.site.cluster import Cluster
from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.htcondor.site.tools import ToolsCluster


def cluster_of(config: HTCondorSiteConfig, name: str) -> Cluster:
    """The way to the schedd of site ``name``, not entered yet."""
    return ToolsCluster(config, name) if config.transport == "tools" else BindingsCluster(config, name)
