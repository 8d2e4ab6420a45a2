"""TARDIS's Kubernetes sites become sites with one pod for each drone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from provisioner.migrate import ImportOutcome, ImportResult
from tests.migrate.examples import converted, finding

CLOUDS = (Path(__file__).parent / "tardis" / "clouds.yml").read_text()
TYPE = "Kube-site.MachineTypeConfiguration.example"


def options(made: ImportResult) -> Any:
    return yaml.safe_load(made.files["site_configs/kube-site.yaml"])["options"]


def test_address_namespace_and_image() -> None:
    made = converted(CLOUDS)
    found = options(made)
    assert found["namespace"] == "default"
    assert found["types"] == {"example": {"image": "busybox:1.26.1"}}
    assert finding(made, "Kube-site.token").verdict is ImportOutcome.NEEDED
    assert finding(made, f"{TYPE}.args").verdict is ImportOutcome.DROPPED
    assert finding(made, f"{TYPE}.hpa").verdict is ImportOutcome.DROPPED
    assert "gee-heim" not in "".join(made.files.values())


def test_a_second_namespace_and_a_missing_image_need_you() -> None:
    two = CLOUDS.replace("MachineTypes: [example]", "MachineTypes: [example, other]")
    made = converted(
        two.replace(
            "    example: {namespace", "    other: {namespace: physics}\n    example: {namespace", 1
        )
    )
    assert options(made)["namespace"] == "default"
    assert (
        finding(made, "Kube-site.MachineTypeConfiguration.other.namespace").verdict
        is ImportOutcome.NEEDED
    )
    assert (
        finding(made, "Kube-site.MachineTypeConfiguration.other.image").verdict
        is ImportOutcome.NEEDED
    )


def test_a_namespace_of_the_second_type_is_not_that_of_the_site() -> None:
    two = CLOUDS.replace("MachineTypes: [example]", "MachineTypes: [other, example]")
    two = two.replace(
        "    example: {namespace: default",
        "    other: {image: x}\n    example: {namespace: physics",
        1,
    )
    made = converted(two)
    assert options(made).get("namespace") == "default"
    assert finding(made, f"{TYPE}.namespace").verdict is ImportOutcome.NEEDED
