"""Orders become submit descriptions: in how many, with which files, and which orders cannot."""

from __future__ import annotations

import re
from dataclasses import replace

import classad2
import htcondor2  # noqa: F401 - for regexp
import pytest

from adapters.htcondor.site.submission import device_pattern, unsubmittable
from provisioner.model import DroneId
from tests.htcondor_site.orders import A100, CPU, DRONE, order, submitted


def test_what_differs_in_more_than_the_id_goes_apart() -> None:
    other = replace(DRONE, files={**DRONE.files, "token": b"another"})
    hurried = replace(order(4), idle_timeout_s=60.0)
    found = submitted(order(1), order(2, CPU), order(3, A100, other), hurried, order(5))
    serials = [[drone_id.rpartition("-")[2] for drone_id in batch.drone_ids] for batch in found]
    assert serials == [["1", "5"], ["2"], ["3"], ["4"]]
    assert len({batch.digest for batch in found}) == 2  # of files there are two kinds


def test_what_cannot_be_said_in_a_submit_description_is_refused() -> None:
    strangers = (DroneId("other-ab12-1"), DroneId("main-x,y"))
    boots = [replace(DRONE, files={name: b""}) for name in ("../token", "drone.sh")]
    boots += [
        replace(DRONE, env=env) for env in ({"A": "two\nlines"}, {"A B": "x"}, {"A": "$$(x)"})
    ]
    bad = [replace(order(1), drone_id=drone_id) for drone_id in strangers]
    for each in (*bad, order(1, A100, None), *(order(1, A100, boot) for boot in boots)):
        assert unsubmittable(each, "main"), each
    assert not unsubmittable(order(1), "main")


def test_a_drone_for_amd_gpus_asks_for_gpus_without_a_capability() -> None:
    [batch] = submitted(
        order(1, replace(A100, vendor="amd", target="gfx90a", capability=0, driver=0))
    )
    (line,) = [each for each in batch.description.splitlines() if each.startswith("require_gpus")]
    assert "Capability =?= undefined" in line and "Capability >=" not in line
    env = next(each for each in batch.description.splitlines() if each.startswith("environment"))
    assert "DRONE_VENDOR='amd'" in env and "DRONE_TARGET='gfx90a'" in env


def test_secrets_and_scripts_are_files_and_no_part_of_the_description() -> None:
    [batch] = submitted(order(1))
    assert batch.files["token"] == b"secret"
    assert batch.files["drone.sh"] == DRONE.script
    assert "secret" not in batch.description
    assert "secret" not in repr(batch)
    taken = re.search(r"^transfer_input_files = (.*)$", batch.description, re.MULTILINE)
    assert taken is not None
    # a directory goes as a whole
    assert taken[1] == "$(inputs)/checks, $(inputs)/drone.sh, $(inputs)/token"


@pytest.mark.parametrize(
    ("model", "device", "fits"),
    [
        ("V100", "Tesla V100S-PCIE-32GB", False),
        ("a100-sxm4-40gb", "A100-SXM4-40GB", True),
        ("A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", False),
        ("A10", "NVIDIA A100-SXM4-40GB", False),
        ("GeForce GTX 1080 (x)", "NVIDIA GeForce GTX 1080 (x)", True),
        ("Q.8", "Qx8", False),
        ("Tesla T4", "NVIDIA T4", True),
        ("Quadro RTX 6000", "NVIDIA RTX 6000 Ada Generation", False),
        ("H100-80GB-HBM3", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H100 80GB HBM3", "H100-80GB-HBM3", True),
        ("amd instinct_mi300a", "AMD Instinct MI300A", True),
    ],
)
def test_a_model_is_told_from_its_cousins(model: str, device: str, fits: bool) -> None:
    found = classad2.ExprTree(f'regexp("{device_pattern(model)}", DeviceName, "i")').eval(
        classad2.ClassAd({"DeviceName": device})
    )
    assert found is fits


@pytest.mark.parametrize(("deadline", "limit_s"), [("10s", 120), ("45s", 180)])
def test_a_job_whose_files_never_come_goes_by_itself_when_its_controller_has_died(
    deadline: str, limit_s: int
) -> None:
    [batch] = submitted(order(1), submit_deadline=deadline)
    [line] = [
        each for each in batch.description.splitlines() if each.startswith("periodic_remove = ")
    ]
    policy = classad2.ExprTree(line.partition(" = ")[2])
    now = int(classad2.ExprTree("time()").eval())
    spooling = {"JobStatus": 5, "HoldReasonCode": 16}
    for since_s, gone in ((limit_s - 30, False), (limit_s + 30, True)):
        assert (
            policy.eval(classad2.ClassAd({**spooling, "EnteredCurrentStatus": now - since_s}))
            is gone
        )
