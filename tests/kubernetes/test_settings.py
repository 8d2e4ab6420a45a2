"""Options that cannot work are refused at their place, with the remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from adapters.kubernetes.settings import KubernetesSiteConfig
from provisioner.model import DroneType

A100 = DroneType("cern", "a100", gpu_milli=1000, cpus=8, memory_mib=20480, disk_mib=10240)


REQUIRED = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
}


def config(**options: Any) -> KubernetesSiteConfig:
    return KubernetesSiteConfig.model_validate({"image": "x", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pod": {"restartPolicy": "Always"}}, "`restartPolicy` is set by the provisioner"),
        ({"container": {"command": ["x"]}}, "`command` is set by the provisioner"),
        ({"labels": {"gpu-drone-provisioner/drone": "x"}}, "is set by the provisioner"),
        ({"labels": {"no name": "x"}}, "is no name of a label"),
        (
            {"types": {"a100": {"resources": {"nvidia.com/gpumem": "much"}}}},
            "write a whole number or a quantity",
        ),
        ({"env": {"DRONE_ID": "x"}}, "`DRONE_ID` is set by the site"),
        ({"env": {"DRONE_VRAM_ENFORCED": "mps"}}, "`DRONE_VRAM_ENFORCED` is set by the site"),
        (
            {"pod": {"volumes": None}},
            "`volumes` must be a list of mappings: write one, or remove `volumes`",
        ),
        ({"pod": {"tolerations": {"key": "x"}}}, "`tolerations` must be a list of mappings"),
        ({"container": {"volumeMounts": "cvmfs"}}, "`volumeMounts` must be a list of mappings"),
        ({"types": {"a100": {"container": {"env": ["x"]}}}}, "`env` must be a list of mappings"),
        (
            {"container": {"env": [{"name": "DRONE_NODE", "value": "x"}]}},
            "`DRONE_NODE` is set by the provisioner",
        ),
        (
            {"pod": {"securityContext": {"runAsUser": 0}}},
            "`runAsUser` is set by the provisioner: remove it",
        ),
        (
            {"pod": {"securityContext": {"runAsNonRoot": False}}},
            "`runAsNonRoot` is set by the provisioner",
        ),
        (
            {"container": {"securityContext": {"privileged": True}}},
            "`privileged` is set by the provisioner",
        ),
        (
            {"container": {"securityContext": {"allowPrivilegeEscalation": True}}},
            "`allowPrivilegeEscalation` is set",
        ),
        (
            {"pod": {"automountServiceAccountToken": True}},
            "`automountServiceAccountToken` is set by the provisioner",
        ),
        ({"pod": {"hostPID": True}}, "`hostPID` is set by the provisioner"),
        (
            {"pod": {"nodeSelector": {"pool": "gpu"}}},
            "`nodeSelector` is set .*: remove it, or use its option",
        ),
        ({"namespace": "Not_a_label"}, "namespace"),
        ({"run_as": 0}, "run_as"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**options)


@pytest.mark.parametrize(
    ("kind", "options", "at", "message"),
    [
        (replace(A100, gpu_milli=500), {}, ("types", "a100", "gpus"), "write `gpus: 1`"),
        (A100, {"image": ""}, ("options",), "has no image"),
        (
            A100,
            {"types": {"a10": {}}},
            ("options", "types", "a10"),
            "there is no drone type `a10`.*a100",
        ),
        (
            A100,
            {"types": {"a100": {"resource": "x.org/gpu", "claim_template": "one"}}},
            ("options", "types", "a100", "claim_template"),
            "exclude each other",
        ),
        (
            A100,
            {"types": {"a100": {"products": ["A"], "pod": {"affinity": REQUIRED}}}},
            ("options", "types", "a100", "products"),
            "`products` and `nodeSelectorTerms` exclude each other",
        ),
        (
            A100,
            {"types": {"a100": {"resource": "nvidia.com/gpu.shared"}}},
            ("options", "types", "a100", "resource"),
            "GPUs of `nvidia.com/gpu.shared` are shared: write `enforced: none`",
        ),
        (
            A100,
            {"types": {"a100": {"resources": {"nvidia.com/gpu": 2}}}},
            ("options", "types", "a100", "resources", "nvidia.com/gpu"),
            "`nvidia.com/gpu` is set by the drone type: remove it",
        ),
    ],
)
def test_what_does_not_go_together(
    kind: DroneType, options: dict[str, Any], at: tuple[str, ...], message: str
) -> None:
    import re

    ((where, words),) = config(**options).type_conflicts([kind])
    assert where == at
    assert re.search(message, words)


def test_options_of_a_type_come_before_those_of_the_site() -> None:
    made = config(
        labels={"a": "1"},
        priority_class="low",
        types={"a100": {"labels": {"b": "2"}, "image": "y", "products": ["A"]}},
    )
    found = made.options("a100")
    assert (found.labels, found.image, found.priority_class) == ({"a": "1", "b": "2"}, "y", "low")
    assert made.options("other").image == "x"
    assert made.options("a100") is found, "a poll asks for them at each node"
    assert made == config(**made.model_dump(exclude_unset=True))


def test_a_kubeconfig_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    ((where, words),) = config(kubeconfig=str(tmp_path / "none")).host_warnings()
    assert where == ("kubeconfig",)
    assert "cannot be read" in words
