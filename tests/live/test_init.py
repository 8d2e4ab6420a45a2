"""`provisioner init` at real sites: what it writes passes `check --live` unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import yaml

from tests.labs.controller import LabController
from tests.labs.htcondor import IDENTITIES, Condor, lab_directory, own, running_pool
from tests.labs.kubernetes import ROBOT, KubernetesLab
from tests.labs.slurm import SlurmLab


@pytest.fixture
def operator(newest_condor: Condor) -> Iterator[LabController]:
    """The commands of an operator in a directory of their own, before a pool; no controller runs."""
    with running_pool(newest_condor) as pool, lab_directory("init") as directory:
        controller = LabController(pool, directory, name=own("init"))
        controller.secret("controller.token", pool.token("admin", IDENTITIES["admin"]) + "\n")
        yield controller


def init(operator: LabController, kind: str, *more: str) -> dict[str, object]:
    """Write the files, have all of them checked, and return the drone types."""
    values = (f"condor_prefix={operator.pool.condor.prefix}", f"controller={operator.name}", *more)
    pool = ("--pool", operator.pool.collector, "--token", "controller.token")
    key = ("--key", str(operator.pool.key))
    settings = [part for each in values for part in ("--set", each)]
    written = operator.call("init", "--kind", kind, *pool, *key, *settings)
    assert written.returncode == 0, written.stderr
    checked = operator.call("check", "--live")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"site:{kind}" in checked.stdout and "warning" not in checked.stderr
    return yaml.safe_load((operator.directory / f"{kind}.yaml").read_text())["types"]


@pytest.mark.matrix
@pytest.mark.xdist_group("slurm")
def test_at_a_slurm_cluster(
    operator: LabController, slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{slurm.tools}:{os.environ['PATH']}")
    types = init(operator, "slurm", "same_account=true")
    assert types.keys() == {"a100", "h100"}


@pytest.mark.matrix
def test_at_a_kubernetes_cluster(
    operator: LabController, kubernetes: KubernetesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig("robot", ROBOT, kubernetes.url)))
    types = init(operator, "kubernetes", "image=registry.invalid/drone:1")
    assert types.keys() == {"a100", "h100"}
