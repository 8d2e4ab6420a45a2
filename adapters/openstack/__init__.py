"""Drones as virtual machines of an OpenStack cloud: servers of one project, by Nova's API."""

from adapters.openstack.site import OpenStackSite

__all__ = ["OpenStackSite"]
