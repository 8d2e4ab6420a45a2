"""``provisioner render deployment``: the controller as objects of Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from kubernetes.aio import client
from pydantic import BaseModel

from adapters.kubernetes.rendering import ROLE
from provisioner.answers.errors import Exit
from tests.cli.conftest import Cli

MODELS: dict[str, type[BaseModel]] = {
    "ServiceAccount": client.V1ServiceAccount,
    "PersistentVolumeClaim": client.V1PersistentVolumeClaim,
    "NetworkPolicy": client.V1NetworkPolicy,
    "Deployment": client.V1Deployment,
}
"""Versions of objects in the newest release of Kubernetes."""


@pytest.fixture
def objects(cli: Cli) -> dict[str, dict[str, Any]]:
    ran = cli("render", "deployment", "--image", "here/controller: 1", "--namespace", "gpu")
    assert ran.code == Exit.OK, ran.err
    found = {each["kind"]: each for each in yaml.safe_load_all(ran.out)}
    for kind, each in found.items():
        MODELS[kind].model_validate(each)
    return found


def test_one_controller_at_a_time_holds_the_record(objects: dict[str, dict[str, Any]]) -> None:
    assert {each["metadata"]["namespace"] for each in objects.values()} == {"gpu"}
    assert (
        objects["ServiceAccount"]["metadata"]["name"] == ROLE
    )  # to which `render kubernetes` gives the rights
    spec = objects["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    pod = spec["template"]["spec"]
    claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [{"claimName": objects["PersistentVolumeClaim"]["metadata"]["name"]}]
    assert pod["serviceAccountName"] == ROLE
    for name in ("NetworkPolicy", "Deployment"):
        chosen = objects[name]["spec"].get("podSelector") or objects[name]["spec"]["selector"]
        assert chosen["matchLabels"] == spec["template"]["metadata"]["labels"]


def test_both_containers_are_unprivileged_and_only_the_controller_has_secrets(
    objects: dict[str, dict[str, Any]],
) -> None:
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["automountServiceAccountToken"] is False
    controller, web = pod["containers"]
    for each in (controller, web):
        assert each["image"] == "here/controller: 1"
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        writable = [m["name"] for m in each["volumeMounts"] if not m.get("readOnly")]
        assert writable == ["record"]
    secret = {
        volume["name"] for volume in pod["volumes"] if {"secret", "projected"} & volume.keys()
    }
    mounts = [{m["name"] for m in each["volumeMounts"]} for each in (controller, web)]
    assert [each & secret for each in mounts] == [secret, set()]
    assert controller["readinessProbe"]["exec"]["command"][-1].endswith("|| [ $? = 1 ]")
