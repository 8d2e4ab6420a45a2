"""Addresses of the balancer, as jobs get them: the variables that CMSSW reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from provisioner.settings import DroneType, Service

HOST, PORT = "SONIC_LOCAL_BALANCER_HOST", "SONIC_LOCAL_BALANCER_PORT"
ANY_MODEL: Final = "*"


def job_environment(
    services: Sequence[Service], types: Iterable[DroneType], host: str
) -> Mapping[str, str]:
    """Return the environment of drones from which their jobs get the address of their service.

    With several services a job gets that of the first one that has a model which it announces.
    """
    ports = {each.name: each.grpc_port for each in services}
    if len(services) == 1:
        models = [(ANY_MODEL, services[0].grpc_port)]
    else:
        models = [
            (name, ports[kind.server.service])
            for kind in types
            if kind.server is not None and kind.server.service in ports
            for model in kind.server.models
            for name in (model, model.partition(":")[0])
        ]
    addresses = dict.fromkeys(f"{name}={host}:{port}" for name, port in models)
    return {"DRONE_INFERENCE": ",".join(addresses)} if addresses else {}


def service_environment(service: Service, host: str) -> Mapping[str, str]:
    """Return the variables of one service."""
    return {HOST: host, PORT: str(service.grpc_port)}
