"""Addresses of the balancer for jobs in drones."""

from __future__ import annotations

from provisioner.services.addresses import job_environment
from provisioner.settings import DroneType, InferenceServer, Service

CMS, ATLAS = Service(name="cms", grpc_port=8001), Service(name="atlas", grpc_port=9001)


def server(service: str, *models: str) -> DroneType:
    return DroneType(
        "topas",
        service,
        1000,
        8,
        2048,
        1024,
        server=InferenceServer(service=service, models=models),
    )


TYPES = (
    DroneType("topas", "a100", 1000, 8, 2048, 1024),
    server("cms", "deepmet:3", "particlenet:1"),
    server("atlas", "gnn4itk:1"),
    server("gone", "old:1"),
)


def test_the_only_service_is_for_all_jobs() -> None:
    assert job_environment([CMS], TYPES, "balancer.example.org") == {
        "DRONE_INFERENCE": "*=balancer.example.org:8001"
    }


def test_of_several_services_jobs_get_that_of_their_models() -> None:
    """By the name of a model with its version or without it."""
    (found,) = job_environment([CMS, ATLAS], TYPES, "10.0.0.1").values()
    assert found.split(",") == [
        "deepmet:3=10.0.0.1:8001",
        "deepmet=10.0.0.1:8001",
        "particlenet:1=10.0.0.1:8001",
        "particlenet=10.0.0.1:8001",
        "gnn4itk:1=10.0.0.1:9001",
        "gnn4itk=10.0.0.1:9001",
    ]


def test_without_servers_or_services_jobs_get_none() -> None:
    assert job_environment([CMS, ATLAS], TYPES[:1], "10.0.0.1") == {}
    assert job_environment([], TYPES, "10.0.0.1") == {}
