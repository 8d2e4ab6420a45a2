"""Drones as pods of a Kubernetes cluster, by its API."""

from adapters.kubernetes.site import KubernetesSite

__all__ = ["KubernetesSite"]
