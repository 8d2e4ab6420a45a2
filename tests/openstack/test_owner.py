"""Which of the owner's servers are claims on what drones hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.openstack.capacity import OwnerRequests, claims, host_id, host_names, nodes, owner_load, owners
from adapters.openstack.records import Server, ServerFault, ServerFlavor
from adapters.openstack.settings import OpenStackOwnerConfig
from provisioner.model import OwnerDemand, OwnerLoad
from tests.openstack.test_hosts import DRONE, OURS, THEIRS, TYPES, config

NOW = 1_800_000_000.0
FLAVOR = ServerFlavor("gpu.2", 32, 131_072, 102_400, {"resources:VGPU": "2"})
PLAIN = replace(FLAVOR, extra={})
NO_HOST = ServerFault(500, "No valid host was found. There are not enough hosts available.")
FAILED = Server("t1", "etp-train-1", "ERROR", created_at=NOW - 90, updated_at=NOW - 60, flavor=FLAVOR, fault=NO_HOST)
RUNS = replace(
    FAILED,
    id="t2",
    name="etp-train-2",
    status="ACTIVE",
    fault=None,
    launched_at=NOW - 70,
    host_id=host_id(THEIRS, "gk-gpu-01"),
)
ONE = OwnerDemand(1, 2000, 32, 131_072, NOW - 90, disk_mib=102_400, who="etp-train-1")
PLACES = host_names(config().hosts, [OURS, THEIRS])


def owner(**more: Any) -> OpenStackOwnerConfig:
    return OpenStackOwnerConfig.model_validate({"cloud": "etp", **more})


def wanted(*servers: Server, hosts: Sequence[dict[str, Any]] | None = None, **more: Any) -> OwnerRequests:
    told = config(**({"hosts": hosts} if hosts is not None else {}))
    here = nodes(told, TYPES, [], servers, PLACES).nodes
    settings = owner(**more)
    return claims(owners(servers, settings), here, PLACES, settings, NOW)


# -------------------------------------------------------------------------------------------------------------- waiting


def test_a_server_that_found_no_host_claims_room() -> None:
    assert wanted(FAILED) == OwnerRequests((ONE,))


@pytest.mark.parametrize("task", ["", "scheduling"])
def test_one_that_looks_for_a_host_claims_room(task: str) -> None:
    looks = replace(FAILED, status="BUILD", task=task, fault=None, updated_at=NOW)
    assert wanted(looks).claims == (ONE,)
    assert (
        wanted(replace(looks, created_at=NOW - 3601)) == OwnerRequests()
    )  # stuck: Nova shows the present as its last change


@pytest.mark.parametrize(
    "server",
    [
        RUNS,
        replace(RUNS, status="SHUTOFF"),
        replace(FAILED, status="BUILD", fault=None, host_id=host_id(THEIRS, "gk-gpu-01")),
        replace(FAILED, launched_at=NOW - 80),
        replace(FAILED, task="deleting"),
        replace(FAILED, fault=None),
        replace(FAILED, fault=ServerFault(413, "Quota exceeded for cores: Requested 32, but used 32 of 40")),
        replace(FAILED, fault=ServerFault(500, "Image 1b2c could not be found.")),
        replace(FAILED, status="SHELVED_OFFLOADED", fault=None),
    ],
)
def test_what_leaving_drones_do_not_mend_is_none(server: Server) -> None:
    assert wanted(server) == OwnerRequests()


def test_a_failure_claims_for_a_while_only() -> None:
    assert wanted(replace(FAILED, updated_at=NOW - 3599)).claims == (ONE,)
    assert wanted(replace(FAILED, updated_at=NOW - 3601)) == OwnerRequests()
    assert wanted(replace(FAILED, updated_at=NOW - 121), wait="2min") == OwnerRequests()
    assert wanted(replace(FAILED, updated_at=NOW + 900)).claims == (ONE,)  # its clock is ahead


def test_one_that_was_made_anew_claims_nothing() -> None:
    again = replace(RUNS, name=FAILED.name, created_at=NOW - 30)
    assert wanted(FAILED, again) == OwnerRequests()
    looks = replace(again, status="BUILD", host_id="", launched_at=0.0)
    assert [claim.count for claim in wanted(FAILED, looks).claims] == [1]
    assert wanted(FAILED, replace(again, created_at=NOW - 500)).claims == (ONE,)  # that one was there before
    assert wanted(FAILED, replace(FAILED, id="t3", created_at=NOW - 30)).claims == (replace(ONE, count=2),)


def test_drones_and_servers_of_other_names_are_none() -> None:
    drone = replace(DRONE, status="ERROR", host_id="", launched_at=0.0, fault=NO_HOST, updated_at=NOW, created_at=NOW)
    assert wanted(drone) == OwnerRequests()
    assert wanted(FAILED, names="^etp-") == OwnerRequests((ONE,))
    assert wanted(FAILED, names="^web-") == OwnerRequests()


def test_servers_alike_are_one_claim_since_the_first_of_them() -> None:
    three = [replace(FAILED, id=f"t{n}", name=f"etp-{n}", created_at=NOW - n) for n in (5, 90, 30)]
    other = replace(FAILED, id="o", name="big", flavor=replace(FLAVOR, vcpus=64), created_at=NOW - 10)
    assert wanted(*three, other).claims == (
        replace(ONE, count=3, who="etp-30, etp-5, etp-90"),
        OwnerDemand(1, 2000, 64, 131_072, NOW - 10, disk_mib=102_400, who="big"),
    )


def test_only_hosts_that_could_hold_it_are_claimed() -> None:
    small = {"names": ["gk-gpu-01"], "gpus": 1, "cpus": 64, "memory": "256 GiB", "disk": "1000000 MiB"}
    large = {"names": ["gk-gpu-02"], "gpus": 4, "cpus": 64, "memory": "256 GiB", "disk": "1000000 MiB"}
    assert wanted(FAILED, hosts=[small, large]).claims == (replace(ONE, nodes=("gk-gpu-02",)),)
    assert wanted(FAILED, hosts=[small]) == OwnerRequests(
        (),
        (
            "owner: 1 servers (etp-train-1) find no host with 2 GPUs, 32 CPUs, 131072 MiB and a disk of 102400 MiB here"
            " even if all were empty: no room is made for them",
        ),
    )


def test_servers_without_a_gpu_claim_only_where_such_are_seen() -> None:
    plain = replace(FAILED, flavor=PLAIN)
    assert wanted(plain) == OwnerRequests()
    elsewhere = replace(RUNS, flavor=PLAIN, host_id=host_id(THEIRS, "web-7"))
    assert wanted(plain, elsewhere) == OwnerRequests()
    assert wanted(plain, replace(RUNS, flavor=PLAIN)).claims == (replace(ONE, gpu_milli=0),)


def test_what_he_calls_them_is_made_fit_for_a_line() -> None:
    [claim] = wanted(replace(FAILED, name="\x1b[2J" * 100)).claims
    assert claim.who.isprintable() and len(claim.who) <= 200


def test_many_sizes_that_fit_nowhere_are_summed_up() -> None:
    huge = [replace(FAILED, id=f"t{n}", flavor=replace(FLAVOR, vcpus=1000 + n)) for n in range(30)]
    found = wanted(*huge)
    assert (found.claims, len(found.notices)) == ((), 10)
    assert found.notices[-1] == "owner: 21 further sizes fit no node"


# ---------------------------------------------------------------------------------------------------------- the load


def test_what_he_holds_of_our_hosts() -> None:
    elsewhere = replace(RUNS, id="t3", host_id=host_id(THEIRS, "web-7"))
    off = replace(RUNS, id="t4", status="SHUTOFF")
    assert owner_load([FAILED, RUNS, elsewhere, off], PLACES) == OwnerLoad(2, 4000, 64, 262_144)
    assert owner_load([], PLACES) == OwnerLoad()
