"""What the settings name, looked up in a cloud that has it, has it twice, or does not have it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from adapters.openstack.creation import NameResolver, ResolvedNames
from adapters.openstack.nova import OpenStackCloud
from provisioner.interfaces import RejectedError
from provisioner.model import FaultKind
from tests.openstack.clouded import Clouded, running
from tests.openstack.stocked import A100, IMAGE, NETWORK, config, flavor, image, stocked

FLAVOR = "id-of-gpu.a100.1"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "s3cret")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def catalogue(clouded: Clouded, clock: Clock | None = None, **options: Any) -> AsyncIterator[NameResolver]:
    settings = config(clouded, **options)
    async with OpenStackCloud(settings, deadline_s=10, parallel=8) as cloud:
        yield NameResolver(cloud, settings, clock or Clock())


async def refusal(clouded: Clouded, **options: Any) -> str:
    """Why nothing can be made of the drone type."""
    async with running(clouded), catalogue(clouded, **options) as found:
        with pytest.raises(RejectedError) as told:
            await found.resolved(A100)
        assert told.value.kind is FaultKind.CONFIG
        return str(told.value)


async def test_names_are_looked_up() -> None:
    clouded = stocked()
    clouded.lists["images"] += [image(2), image(3, status="queued"), image(4, name="other")]
    clouded.lists["security-groups"] = [{"id": "s1", "name": "default"}, {"id": "s2", "name": "drones"}]
    clouded.lists["os-keypairs"] = [{"keypair": {"name": "admin"}}]
    async with running(clouded), catalogue(clouded, security_groups=["drones"], key_pair="admin") as found:
        newest = f"{IMAGE[:-1]}2"
        assert await found.resolved(A100) == ResolvedNames(FLAVOR, newest, (NETWORK,), ("s2",))
        assert {name: each.vcpus for name, each in (await found.flavors()).items()} == {"a100": 8}


@pytest.mark.parametrize(("networks", "resolved"), [(None, None), ([], ()), ([NETWORK], (NETWORK,))])
async def test_networks_may_be_left_to_the_cloud_or_be_none(
    networks: list[str] | None, resolved: tuple[str, ...] | None
) -> None:
    clouded = stocked()
    async with running(clouded), catalogue(clouded, networks=networks) as found:
        assert (await found.resolved(A100)).networks == resolved
        assert any("/networks" in each for each in clouded.asked) is bool(networks)


async def test_an_id_comes_before_a_name() -> None:
    clouded = stocked()
    clouded.lists["flavors"] = [flavor(FLAVOR), flavor()]
    async with running(clouded), catalogue(clouded, types={"a100": {"flavor": FLAVOR}}, image=IMAGE) as found:
        assert await found.resolved(A100) == ResolvedNames(FLAVOR, IMAGE, (NETWORK,))


async def test_it_is_asked_once_in_a_while_and_after_it_was_wrong() -> None:
    clouded, clock = stocked(), Clock()
    async with running(clouded), catalogue(clouded, clock) as found:
        for _ in range(3):
            await found.resolved(A100)
            await found.flavors()
        asked = len(clouded.asked)
        clock.now += 599
        await found.resolved(A100)
        assert len(clouded.asked) == asked
        clouded.lists["images"] = [image(7)]
        clock.now += 2
        assert (await found.resolved(A100)).image == f"{IMAGE[:-1]}7"
        clouded.lists["images"] = [image(8)]
        found.forget()
        assert (await found.resolved(A100)).image == f"{IMAGE[:-1]}8"


async def test_what_is_not_there_is_named_with_what_is() -> None:
    type_of = {"a100": {"flavor": "gpu.a100.2"}}
    assert await refusal(stocked(), types=type_of) == (
        "there is no flavour `gpu.a100.2` for this project: did you mean `gpu.a100.1`?"
    )
    assert await refusal(stocked(), networks=["public"]) == (
        "there is no network `public` for this project: choose from drones"
    )
    assert await refusal(stocked(), security_groups=["drones"]) == (
        "there is no security group `drones` for this project: there are none"
    )
    assert await refusal(stocked(), key_pair="me") == ("there is no key pair `me` for this project: there are none")
    assert await refusal(stocked(), image="ubuntu") == "there is no image `ubuntu` for this project"


async def test_a_disabled_flavour_is_none() -> None:
    clouded = stocked()
    clouded.lists["flavors"] = [flavor(**{"OS-FLV-DISABLED:disabled": True})]
    assert "there is no flavour" in await refusal(clouded)


async def test_a_name_of_two_networks_is_none_of_them() -> None:
    clouded = stocked()
    clouded.lists["networks"] += [{"id": "n2", "name": "drones"}]
    assert await refusal(clouded) == "2 of this cloud's networks are called `drones`: write the id of one"


async def test_an_image_that_is_not_ready_or_too_large() -> None:
    clouded = stocked()
    clouded.lists["images"] = [image(status="deactivated")]
    assert await refusal(clouded) == "image `drone` cannot be used now: it is deactivated"
    clouded = stocked()
    clouded.lists["images"] = [image(min_ram=32768)]
    assert await refusal(clouded) == "image `drone` wants 32 GiB of memory: flavour `gpu.a100.1` has less"


@pytest.mark.parametrize(
    ("told", "dimension", "message"),
    [
        ({"extra_specs": {}}, "gpus", "has 0 GPUs, drone type `a100` 1: change `gpus` or `flavor`"),
        ({"extra_specs": {"pci_passthrough:alias": "a100:2"}}, "gpus", "has 2 GPUs"),
        ({"vcpus": 4}, "cpus", "has 4 CPUs, drone type `a100` 8: change `cpus` or `flavor`"),
        ({"ram": 8192}, "memory", "has 8 GiB of memory, drone type `a100` 16 GiB: change `memory` or `flavor`"),
        ({"disk": 5}, "disk", "has 5 GiB of disk, drone type `a100` 10 GiB: change `disk` or the flavour"),
    ],
)
async def test_a_flavour_that_is_not_what_its_drone_type_says(
    told: dict[str, Any], dimension: str, message: str
) -> None:
    clouded = stocked()
    clouded.lists["flavors"] = [flavor(**told)]
    assert message in await refusal(clouded)
    async with running(clouded), catalogue(clouded) as found:
        [(what, words)] = await found.problems(A100)
        assert (what, message in words) == (dimension, True)


async def test_a_flavour_that_does_not_tell_its_gpus_is_for_a_person_to_judge() -> None:
    clouded = stocked()
    clouded.lists["flavors"] = [flavor(extra_specs={"accel:device_profile": "a100"})]
    async with running(clouded), catalogue(clouded) as found:
        assert (await found.resolved(A100)).flavor == FLAVOR
        [(what, words)] = await found.problems(A100)
        assert what == "gpus-unknown" and "does not tell how many GPUs it has" in words


async def test_of_a_disk_it_is_the_volume_that_counts() -> None:
    clouded = stocked()
    clouded.lists["flavors"] = [flavor(disk=0)]
    async with running(clouded), catalogue(clouded, boot_volume={"size": "10 GiB"}) as found:
        assert await found.problems(A100) == []
    clouded = stocked()
    assert "its boot volume has 5 GiB of disk" in await refusal(clouded, boot_volume={"size": "5 GiB"})


async def test_an_audit_tells_all_that_does_not_fit_and_what_is_missing_once() -> None:
    clouded = stocked()
    clouded.lists["flavors"] = [flavor(vcpus=1, ram=1)]
    async with running(clouded), catalogue(clouded) as found:
        assert [what for what, _ in await found.problems(A100)] == ["cpus", "memory"]
    async with running(stocked()) as clouded, catalogue(clouded, image="ubuntu") as found:
        assert await found.problems(A100) == [("options", "there is no image `ubuntu` for this project")]
    async with running(stocked()) as clouded, catalogue(clouded) as found:
        assert await found.problems(replace(A100, cpus=1)) == []
